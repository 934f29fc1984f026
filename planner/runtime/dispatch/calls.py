"""Kinds of calls: what of the arguments decides which plan a call has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
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
    """A call of tensors and plain values, as one question to torch and a comparison: faster than
    `kind_of_call`, and stricter, for strides and devices count, too."""

    names: tuple[str, ...]
    types: tuple[type, ...]
    """Of all arguments."""
    _check: Callable[..., bool]
    _tensors: Callable[[Any], tuple[Any, ...]] | None
    """What takes them out of the arguments; None where all are tensors."""
    _plain: Callable[[Any], tuple[Any, ...]]
    _values: tuple[Any, ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> TensorCall | None:
        """None where there is no tensor, or an argument is neither a tensor nor plain."""
        given = (*args, *kwargs.values())
        tensors = [x for x in given if type(x) in _TENSORS]
        plain = [place for place, value in enumerate(given) if type(value) in _SHOWN]
        if not tensors or len(tensors) + len(plain) < len(given):
            return None
        with suppress(TypeError, RuntimeError):  # a tensor without strides
            sizes: list[Any] = [list(x.shape) for x in tensors]
            strides: list[Any] = [list(x.stride()) for x in tensors]
            guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
            rest = [place for place in range(len(given)) if place not in plain]
            take = _taken(plain)
            return TensorCall(
                tuple(kwargs),
                tuple(map(type, given)),
                guards.check,
                _taken(rest) if plain else None,
                take,
                take(given),
            )
        return None

    @property
    def check_of_all(self) -> Callable[..., bool] | None:
        """Asks of all arguments whether they are alike; None where others than tensors are among
        them."""
        return None if self._tensors is not None else self._check

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether another call is like it."""
        if kwargs:
            if tuple(kwargs) != self.names:
                return False
            args = (*args, *kwargs.values())
        elif self.names:
            return False
        if self._tensors is None:
            return len(args) == len(self.types) and self._check(*args)
        # Types first: True is 1, and a tensor compares its elements.
        if tuple(map(type, args)) != self.types or self._plain(args) != self._values:
            return False
        return self._check(*self._tensors(args))


def _taken(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """What takes the items of these places."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda given: ()
    (place,) = places
    return itemgetter(slice(place, place + 1))
