"""Kinds of calls: what of the arguments decides which plan a call has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

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


@dataclass(frozen=True, slots=True)
class TensorCall:
    """A call whose arguments are all tensors, as one question to torch: faster than `kind_of_call`,
    and stricter, for strides and devices count, too."""

    count: int
    names: tuple[str, ...]
    _check: Callable[..., bool]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> TensorCall | None:
        """None where an argument is no plain tensor."""
        given = (*args, *kwargs.values())
        if not given or not all(type(value) in _TENSORS for value in given):
            return None
        with suppress(TypeError, RuntimeError):  # a tensor without strides
            sizes: list[Any] = [list(x.shape) for x in given]
            strides: list[Any] = [list(x.stride()) for x in given]
            guards = TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
            return TensorCall(len(given), tuple(kwargs), guards.check)
        return None

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether another call is like it."""
        if not kwargs:
            return not self.names and len(args) == self.count and self._check(*args)
        if tuple(kwargs) != self.names or len(args) + len(kwargs) != self.count:
            return False
        return self._check(*args, *kwargs.values())
