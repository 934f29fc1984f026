"""The order in which the groups of a plan and the operations between them run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ...capture.capture import Captured
from ...capture.collectives import process_group, process_groups
from ...errors import PlanError
from ...graph.graph import INPUT
from ...trace.indexed_writes import target_of
from .collective_order import Place, may_be_late, places
from .units import ScheduledUnit


def schedule(captured: Captured, groups: Mapping[int, ScheduledUnit]) -> tuple[ScheduledUnit, ...]:
    """The units that the graph's outputs and its side effects need, in an order that can run.

    A value that no group gives is computed by ATen. Raises PlanError when groups wait for each
    other.
    """
    # A value that two groups give is taken from the first.
    producer = {node: unit for unit in reversed([*groups.values()]) for node in unit.outputs}
    effects = tuple(i for i, n in enumerate(captured.fx_nodes) if _mutated(n) is not None)
    needed = _needed(captured, producer, effects)
    units: list[ScheduledUnit] = list(dict.fromkeys(needed.values()))
    number = {unit: i for i, unit in enumerate(units)}
    before: list[set[int]] = [set() for _ in units]
    for unit in units:
        for source in unit.inputs:
            if source in needed:
                before[number[unit]].add(number[needed[source]])
    for first, second in _effect_order(captured, needed, effects):
        if first != second:
            before[number[second]].add(number[first])
    given = places(captured, units) if process_groups(captured.fx_nodes) else None
    return tuple(units[i] for i in in_order(units, before, given))


def _needed(
    captured: Captured, producer: Mapping[int, ScheduledUnit], effects: Sequence[int]
) -> dict[int, ScheduledUnit]:
    """Node id to the unit that computes it, for every value that must exist."""
    nodes = captured.graph.nodes
    needed: dict[int, ScheduledUnit] = {}
    stack = [o for o in captured.graph.outputs if o is not None] + list(effects)
    while stack:
        i = stack.pop()
        if i in needed or nodes[i].op == INPUT:
            continue
        unit = producer.get(i) or ScheduledUnit(None, nodes[i].inputs, (i,))
        needed.update({o: unit for o in unit.outputs if producer.get(o, unit) is unit})
        stack.extend(unit.inputs)
    return needed


def in_order(
    units: Sequence[ScheduledUnit],
    before: Sequence[set[int]],
    given: Sequence[Place] | None = None,
) -> list[int]:
    """The places of units so that each comes after those `before` it, and among those that can run
    the one that stands first in the graph, or by the places given. Raises PlanError when units wait
    for each other."""
    after: list[list[int]] = [[] for _ in units]
    waits = [len(b) for b in before]
    for i, sources in enumerate(before):
        for source in sources:
            after[source].append(i)
    at: Sequence[Any] = given or [max(unit.outputs) for unit in units]
    ready = [(at[i], i) for i, n in enumerate(waits) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for j in after[i]:
            waits[j] -= 1
            if waits[j] == 0:
                heapq.heappush(ready, (at[j], j))
    if len(order) < len(units):
        stuck = sorted({units[i].group for i, n in enumerate(waits) if n} - {None}, key=str)
        raise PlanError(f"groups {stuck} of the plan wait for each other")
    return order


def _mutated(node: fx.Node) -> tuple[fx.Node, ...] | None:
    """The values that the node writes to (perhaps none: another effect); None for a pure one. The
    ranks of a process group must all come to its collectives in one order: these are effects."""
    if process_group(node) is not None:
        return ()
    if node.op != "call_function" or not node.is_impure(impure_random=False):
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        return tuple(node.all_input_nodes)
    found: list[fx.Node] = []
    arguments = node.target._schema.arguments
    values: list[Any] = [*node.args, *[None] * (len(arguments) - len(node.args))]
    for argument, value in zip(arguments, values, strict=False):
        given = node.kwargs.get(argument.name, value)
        if argument.alias_info is not None and argument.alias_info.is_write:
            parts = given if isinstance(given, (list, tuple)) else [given]
            found += [p for p in parts if isinstance(p, fx.Node)]
    return tuple(found)


def _effect_order(
    captured: Captured, needed: Mapping[int, ScheduledUnit], effects: Sequence[int]
) -> Iterator[tuple[ScheduledUnit, ScheduledUnit]]:
    """Reads of a value stay on their side of a write to it, and effects in their order, but for
    waits for collectives, which only those who read the results come behind; and a write by
    index into an input comes only after what it reads, the write before it into the same input
    for one: no other operation writes there, and inputs that are written share no memory."""
    number = {node: i for i, node in enumerate(captured.fx_nodes)}
    nodes = captured.graph.nodes
    ordered = [
        i
        for i in effects
        if target_of(captured.graph, nodes[i]) is None and not may_be_late(captured.fx_nodes[i])
    ]
    for first, second in pairwise(ordered):
        yield needed[first], needed[second]
    for effect in effects:
        for target in _mutated(captured.fx_nodes[effect]) or ():
            for reader in _readers(captured, number[target], set(needed)):
                unit = needed[reader]
                if reader < effect:
                    yield unit, needed[effect]
                elif reader > effect:
                    yield needed[effect], unit


def _readers(captured: Captured, node: int, needed: set[int]) -> Iterator[int]:
    """Nodes that are computed and read this one, perhaps through nodes folded into a group."""
    seen, pending = {node}, [node]
    while pending:
        for user in captured.graph.users(pending.pop()):
            if user in seen:
                continue
            seen.add(user)
            if user in needed:
                yield user
            else:
                pending.append(user)
