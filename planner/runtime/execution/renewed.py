"""Updates in place: results that replace an input and may be written straight into it.

AOTAutograd gives what a graph leaves in an input as a value, to be copied there when all else has
run. A kernel that reads each element of the input only where it then writes the same one needs no
memory between, and no copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.source import Program
from ...graph.graph import Graph
from ...graph.ops import is_free
from .units import ScheduledUnit


def renewed(
    graph: Graph,
    units: Sequence[ScheduledUnit],
    programs: Mapping[int, Program],
    copied: Mapping[int, int],
    results: Sequence[int | None],
) -> dict[int, int]:
    """By value, the input that it is written into. programs: by group; copied: by input, the value
    that is copied into it at the end; results: what the caller gets."""
    position = {node: at for at, unit in enumerate(units) for node in unit.outputs}
    found: dict[int, int] = {}
    for target, value in copied.items():
        at = position.get(value)
        unit = None if at is None else units[at]
        program = programs.get(unit.group) if unit is not None and unit.group is not None else None
        if unit is None or at is None or program is None or value in results or value in found:
            continue
        pair = unit.outputs.index(value), _place(unit, target)
        alike = graph.nodes[value].type == graph.nodes[target].type
        if alike and pair in program.renews and _is_read_till(graph, target, units, at):
            found[value] = target
    return found


def _place(unit: ScheduledUnit, node: int) -> int:
    """Of an input of a unit; -1 for what it does not read, which nothing renews."""
    return unit.inputs.index(node) if node in unit.inputs else -1


def _is_read_till(graph: Graph, target: int, units: Sequence[ScheduledUnit], last: int) -> bool:
    """Whether no unit behind the one at `last` reads an input, be it through a view."""
    views, left = {target}, [target]
    while left:
        for user in graph.users(left.pop()):
            if is_free(graph.nodes[user]) and user not in views:
                views.add(user)
                left.append(user)
    if not views.isdisjoint(o for o in graph.outputs if o is not None):
        return False
    return all(views.isdisjoint(unit.inputs) for unit in units[last + 1 :])
