"""The operators of torch by the names that a graph has for them."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def overload(op: str) -> Any:
    """torch's operator that a graph calls by this name ("aten.add.Tensor"). Raises AttributeError
    where torch has none, and ValueError for a name of another form."""
    namespace, name, kind = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), kind)
