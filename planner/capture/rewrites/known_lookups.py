"""Lookups by indices that follow from positions alone: views of what they read.

An image enlarged by its nearest pixels is `x[:, :, i, j]` with indices computed from `arange`.
Where such an index counts every pixel r times, the lookup is x with each pixel repeated:
`unsqueeze`, `expand` and a copy. A view has its place in a kernel's addresses; of an index a kernel
would load, check and convert a number for each element. Indices at a fixed step are a slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from ..capture import is_dynamic
from ..fx_nodes import called, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["known_lookups"]

aten = torch.ops.aten

_LOOKUPS = (aten.index.Tensor, aten._unsafe_index.Tensor)

_LONGEST = 1 << 16
"""Elements of an index that is computed here."""


class _EvenRun(NamedTuple):
    """What an index reads along its dimension: from `start` on `length` elements, `step` apart,
    each `times` in a row."""

    start: int
    length: int
    step: int
    times: int


def known_lookups(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with views in place of such lookups, or `gm` itself where there are
    none. `gm` is left as it is. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(n.target in _LOOKUPS for n in gm.graph.nodes):
        return gm

    def change(graph: fx.Graph) -> bool:
        replaced = False
        for node in list(graph.nodes):
            if node.target in _LOOKUPS:
                replaced |= _replaced(node)
        if replaced:
            graph.eliminate_dead_code()
        return replaced

    return rewritten_copy(gm, change, "lookups by known indices stay lookups")


def _replaced(node: fx.Node) -> bool:
    """Whether a lookup was one by known indices, and views stand in its place."""
    source, indices = node.args
    value, wanted = value_of(source), value_of(node)
    if value is None or wanted is None or not isinstance(indices, Sequence) or not wanted.numel():
        return False
    runs = _runs(value.shape, indices)
    if runs is None:
        return False
    with node.graph.inserting_before(node):
        found = _viewed(node, source, runs)
        made = value_of(found)
        if made.stride() != wanted.stride():
            if not wanted.is_contiguous(memory_format=torch.channels_last):
                return False
            kind = {"memory_format": torch.channels_last}
            found = called(node, aten.clone.default, (found,), **kind)
    if value_of(found).stride() != wanted.stride() or value_of(found).shape != wanted.shape:
        return False
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)
    return True


def _viewed(lookup: fx.Node, source: Any, runs: Sequence[_EvenRun | None]) -> fx.Node:
    """The source as its runs read it, in memory of its own. The nodes have the metadata of the
    lookup: torch cuts a joint graph behind the last node that is marked as of the forward pass."""
    found = source
    for dim, run in enumerate(runs):
        if run is not None and (run.start, run.step, run.length) != (
            0,
            1,
            value_of(found).shape[dim],
        ):
            end = run.start + run.step * (run.length - 1) + 1
            found = called(lookup, aten.slice.Tensor, (found, dim, run.start, end, run.step))
    shape = list(value_of(found).shape)
    times = [1 if run is None else run.times for run in runs]
    repeated = [dim for dim, n in enumerate(times) if n > 1]
    for place, dim in enumerate(repeated):
        found = called(lookup, aten.unsqueeze.default, (found, dim + place + 1))
    if repeated:
        parts = [[n] + [t] * (t > 1) for n, t in zip(shape, times, strict=True)]
        wide = list(itertools.chain.from_iterable(parts))
        found = called(lookup, aten.expand.default, (found, wide))
    dense = {"memory_format": torch.contiguous_format}
    found = called(lookup, aten.clone.default, (found,), **dense)
    if repeated:
        whole = [n * t for n, t in zip(shape, times, strict=True)]
        found = called(lookup, aten.view.default, (found, whole))
    return found


def _runs(shape: Sequence[int], indices: Sequence[Any]) -> list[_EvenRun | None] | None:
    """The run of each dimension, None of one that is read whole; None unless every index is known,
    and varies along a dimension of the result of its own, in order."""
    runs: list[_EvenRun | None] = [None] * len(shape)
    places = [i for i, index in enumerate(indices) if index is not None]
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None  # Indices that are apart put their dimensions first.
    kinds = [value_of(indices[place]) for place in places]
    if any(k is None or k.dtype not in (torch.int64, torch.int32) for k in kinds):
        return None
    rank = max(k.dim() for k in kinds)
    if rank != len(places):
        return None
    for number, (place, kind) in enumerate(zip(places, kinds, strict=True)):
        along = number - rank + kind.dim()
        if along < 0 or kind.shape[along] != kind.numel() or kind.numel() > _LONGEST:
            return None
        numbers = _computed(indices[place])
        run = None if numbers is None else _run(numbers, shape[place])
        if run is None:
            return None
        runs[place] = run
    return runs


def _run(numbers: list[int], size: int) -> _EvenRun | None:
    """The numbers as a run within a dimension of that size; negative ones count from its end."""
    if not numbers or not all(-size <= n < size for n in numbers):
        return None
    numbers = [n + size if n < 0 else n for n in numbers]
    times = next((i for i, n in enumerate(numbers) if n != numbers[0]), len(numbers))
    firsts = numbers[::times]
    step = firsts[1] - firsts[0] if len(firsts) > 1 else 1
    run = _EvenRun(firsts[0], len(firsts), step, times)
    read = [run.start + step * (i // times) for i in range(len(firsts) * times)]
    return run if step > 0 and read == numbers else None


def _computed(node: fx.Node) -> list[int] | None:
    """The numbers of a node that follows from numbers alone; None of any other."""
    order: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        each = pending.pop()
        value = value_of(each)
        target = each.target
        if each.op != "call_function" or value is None or value.numel() > _LONGEST:
            return None
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return None
        if torch.Tag.nondeterministic_seeded in target.tags:
            return None
        order.pop(each, None)
        order[each] = None
        pending += each.all_input_nodes
    numbers: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.device("cpu"):
        for each in reversed(order):
            args, named = fx.map_arg((each.args, each.kwargs), numbers.__getitem__)
            named = {k: torch.device("cpu") if k == "device" else v for k, v in named.items()}
            numbers[each] = each.target(*args, **named)  # type: ignore[operator]
        return numbers[node].flatten().tolist()  # type: ignore[no-any-return]
