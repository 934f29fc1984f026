"""Kinds of calls: what of the arguments decides which plan a call has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

MOST = 256
"""Kinds of calls that are remembered."""

_SHOWN = (int, float, bool, str, type(None))
_TENSORS = (torch.Tensor, torch.nn.Parameter)


def kind_of(value: Any) -> Any:
    """Shapes and types of tensors, and plain values; of anything else its type."""
    kind = type(value)
    if kind in _TENSORS:
        return value.shape, value.dtype, value.requires_grad
    if kind in _SHOWN:
        return value
    if kind is tuple or kind is list:
        return tuple([kind_of(item) for item in value])
    if kind is dict:
        return tuple([(name, kind_of(item)) for name, item in value.items()])
    return kind


def kind_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The kind of all arguments: a flat tuple, for it is made in each call."""
    found: list[Any] = []
    for value in args:
        if type(value) in _TENSORS:
            found += (value.shape, value.dtype, value.requires_grad)
        else:
            found.append(kind_of(value))
    for name, value in kwargs.items():
        found += (name, kind_of(value))
    return tuple(found)
