"""Convolutions in float64, as a reference, on operands in planes.

For groups of channels torch has a kernel of its own. But where channels lie side by side it takes
cuDNN, whatever the type, and cuDNN's kernels for such images are made for 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...planner.graph.ops import overload

_CALLS = ("aten.convolution.default", "aten.convolution_backward.default")


def wide_convolution(op: str) -> Callable[..., Any] | None:
    """The operation on operands that lie in planes; None where it is no convolution."""
    if op not in _CALLS:
        return None
    call = overload(op)

    def in_planes(*args: Any, **named: Any) -> Any:
        return call(*map(_in_planes, args), **named)

    return in_planes


def _in_planes(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value
