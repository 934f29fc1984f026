"""Inputs that change from call to call, as a user's do.

A contest on the same tensors in every call would flatter what needs stable addresses, a CUDA graph
above all. So each call takes the next of several copies of the arguments. The user's own tensors
are never given to a contestant: what a model writes to its inputs is put right from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .capture_model import CallArguments

T = TypeVar("T")

TURNS = 8
"""Copies, where the memory allows."""

SHARE = 0.25
"""Of the device's free memory, for all copies."""

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Types that are copied. What a subclass holds, only it knows."""


@dataclass(slots=True)
class RotatingInputs:
    """Copies of the arguments of one call. `calls` are taken in turn."""

    calls: list[CallArguments]
    _leaves: list[list[Any]]
    _own: list[Any]
    _written: frozenset[int] = frozenset()

    @staticmethod
    def of(call: CallArguments, static: Collection[int] = (), count: int = TURNS) -> RotatingInputs:
        """static: addresses of tensors that stay where they are in every call, such as weights."""
        own, form = tree_flatten((call.args, dict(call.kwargs)))
        moving = [i for i, leaf in enumerate(own) if _moves(leaf, static)]
        storages = {own[i].untyped_storage()._cdata: own[i].untyped_storage() for i in moving}
        count = _affordable(count, sum(s.nbytes() for s in storages.values()), own)
        calls, leaves = [], []
        for _ in range(count):
            made = list(own)
            copies: dict[int, torch.UntypedStorage] = {}
            for i in moving:
                made[i] = _copy(own[i], copies)
            args, kwargs = tree_unflatten(made, form)
            calls.append(CallArguments(tuple(args), kwargs))
            leaves.append(made)
        return RotatingInputs(calls, leaves, own)

    def __len__(self) -> int:
        return len(self.calls)

    def watch(self, run: Callable[[], T]) -> T:
        """Run something on the first turn, and remember which of its tensors it writes to."""
        before = [_version(leaf) for leaf in self._leaves[0]]
        result = run()
        after = [_version(leaf) for leaf in self._leaves[0]]
        pairs = enumerate(zip(before, after, strict=True))
        self._written |= {i for i, (a, b) in pairs if a != b}
        return result

    def one_after_another(self, call: Callable[[int], object]) -> Callable[[], object]:
        """A call without arguments, each time on the next turn."""
        number = itertools.count()
        return lambda: call(next(number))

    def restore(self, turn: int) -> None:
        """Give the tensors of a turn that calls write to the user's values again."""
        with torch.no_grad():
            for i in self._written:
                self._leaves[turn % len(self)][i].detach().copy_(self._own[i].detach())


def _moves(leaf: Any, static: Collection[int]) -> bool:
    if type(leaf) not in _PLAIN or leaf.layout is not torch.strided:
        return False
    return not isinstance(leaf, torch.nn.Parameter) and leaf.data_ptr() not in static


def _affordable(count: int, nbytes: int, leaves: Collection[Any]) -> int:
    devices = {x.device for x in leaves if isinstance(x, torch.Tensor) and x.is_cuda}
    if not devices:
        return min(count, 2)
    if not nbytes:
        return count
    room = min(torch.cuda.mem_get_info(device)[0] for device in devices) * SHARE
    return max(2, min(count, int(room / nbytes)))


def _copy(tensor: torch.Tensor, copies: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """The same view of a copy of its memory: arguments that share memory still do."""
    storage = tensor.untyped_storage()
    if storage._cdata not in copies:
        copies[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(copies[storage._cdata], tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            made = made.conj()
    for name, value in vars(tensor).items():
        if name.startswith("_dynamo"):  # which of its sizes vary
            setattr(made, name, value)
    return made.requires_grad_(tensor.requires_grad)


def _version(leaf: Any) -> int:
    return leaf._version if type(leaf) in _PLAIN and not leaf.is_inference() else 0
