"""Watches that what was read of a model is still there: by identity, in some ten microseconds.

`facts` reads all that a capture depends on, which takes a hundred times as long. As long as each
of those values is the very object that was read, its facts are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards


class Seen:
    """The places that were read, and what was there."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, str], torch.Tensor] = {}
        """By module path and name, each tensor once."""
        self._names: dict[int, str] = {}
        self._lengths: list[tuple[Mapping[Any, Any], int]] = []
        self._values: list[tuple[Mapping[Any, Any], tuple[Any, ...]]] = []
        self._mappings: list[tuple[Mapping[Any, Any], tuple[Any, ...]]] = []
        self._named: list[tuple[Mapping[Any, Any], Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self._guards: Any = None
        self._given: tuple[torch.Tensor, ...] = ()
        self._state: Any = None

    def attributes(self, read: Mapping[Any, Any]) -> None:
        """The attributes of a module, each of which is told by `named` if it matters."""
        self._lengths.append((read, len(read)))

    def values(self, read: Mapping[Any, Any]) -> None:
        """The parameters, buffers or modules of a module."""
        self._values.append((read, tuple(read.values())))

    def mapping(self, read: Mapping[Any, Any]) -> None:
        self._mappings.append((read, tuple(read.items())))

    def named(self, read: Mapping[Any, Any], name: str, value: Any) -> None:
        self._named.append((read, name, value))

    def attribute(self, read: Any, name: str, value: Any) -> None:
        self._attributes.append((read, name, value))

    def sequence(self, read: Any) -> None:
        if not isinstance(read, (tuple, frozenset)):
            self._sequences.append((read, tuple(read)))

    def tensor(self, value: torch.Tensor, path: str, name: str) -> str | None:
        """The name of the same tensor where it was seen before."""
        if id(value) in self._names:
            return self._names[id(value)]
        self._names[id(value)] = f"{path}.{name}"
        self.tensors[path, name] = value
        return None

    def done(self) -> None:
        """All was read: from now on it is watched."""
        self._given = tuple(self.tensors.values())
        self._guards = tensor_guards(self._given)
        self._state = GlobalStateGuard()

    def still(self) -> bool:
        """Whether everything is as it was read."""
        try:
            for read, count in self._lengths:
                if len(read) != count:
                    return False
            for read, values in self._values:
                if len(read) != len(values) or not all(map(is_, read.values(), values)):
                    return False
            for read, name, value in self._named:
                if read.get(name) is not value:
                    return False
            for owner, name, value in self._attributes:
                if getattr(owner, name) is not value:
                    return False
            for each, items in self._mappings:
                same = (
                    a is c and b is d for (a, b), (c, d) in zip(each.items(), items, strict=True)
                )
                if not all(same):
                    return False
            for each, items in self._sequences:
                if not all(a is b for a, b in zip(each, items, strict=True)):
                    return False
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        return bool(self._state.check() and self._guards.check(*self._given))


def tensor_guards(tensors: Sequence[torch.Tensor]) -> Any:
    """Dynamo's own check of tensors: type, layout, device, sizes, strides and gradients."""
    sizes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
