"""When collectives begin, and when they are waited for.

A traced graph waits for each collective where it begins, so that nothing runs beside it. Work that
stands between what a collective needs and the first reader of its result may: in the backward pass
of a spread layer the gradients of its weights, while that of its input is summed over the ranks.
Other units stay in the order of the graph, and with them what is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from ...capture.capture import Captured
from ...capture.collectives import awaited, is_wait, process_group
from ...graph.ops import is_free
from .units import ScheduledUnit

Place = tuple[float, int, int]
"""By which units are ordered: a place in the graph, whether a little before it (0), at it or a
little behind it (2), and the unit's own place."""

_BEFORE, _AT, _BEHIND = 0, 1, 2


def places(captured: Captured, units: Sequence[ScheduledUnit]) -> list[Place]:
    """Of each unit: that of the graph; of a collective, right behind the last unit that it
    needs, with the units that are there for it alone; of a wait that may be late, right before the
    first that needs it. A collective that needs inputs alone stays: weights gathered all at once
    would not be spread any more."""
    return _Places(captured, units).found()


@dataclass(slots=True)
class _Places:
    captured: Captured
    units: Sequence[ScheduledUnit]
    _producers: list[list[int]] = field(init=False)
    _readers: list[list[int]] = field(init=False)
    _kept: frozenset[int | None] = field(init=False)
    """What the graph returns."""
    _placed: dict[int, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_value = {o: i for i, unit in enumerate(self.units) for o in unit.outputs}
        self._producers = [
            sorted({by_value[n] for n in unit.inputs if n in by_value}) for unit in self.units
        ]
        self._kept = frozenset(self.captured.graph.outputs)
        self._readers = [[] for _ in self.units]
        for i, producers in enumerate(self._producers):
            for each in producers:
                self._readers[each].append(i)

    def found(self) -> list[Place]:
        apart = [self._node(i) for i in range(len(self.units))]
        nodes = {i: self.captured.fx_nodes[n] for i, n in enumerate(apart) if n is not None}
        waits = [i for i, node in nodes.items() if may_be_late(node)]
        for i, node in nodes.items():
            if process_group(node) is not None:
                self._begin(i)
        self._placed = {i: place for i, place in self._placed.items() if place[0] >= 0}
        late: Mapping[int, Place] = {i: self._late(i) for i in waits}
        self._placed.update(late)
        return [self._place(i) for i in range(len(self.units))]

    def _node(self, i: int) -> int | None:
        """The one node that ATen runs."""
        return self.units[i].outputs[0] if self.units[i].group is None else None

    def _own(self, i: int) -> int:
        return max(self.units[i].outputs)

    def _place(self, i: int) -> Place:
        return self._placed.get(i, (self._own(i), _AT, self._own(i)))

    def _is_view(self, i: int) -> bool:
        node = self._node(i)
        return node is not None and is_free(self.captured.graph.nodes[node])

    def _begin(self, i: int) -> int:
        """Places a unit right behind what it needs, and with it what is there for it alone; the
        place of the last that all of these need."""
        needed = [
            self._begin(each) if self._is_for(each, i) else self._own(each)
            for each in self._producers[i]
        ]
        last = max(needed, default=-1)
        self._placed[i] = last, _BEHIND, self._own(i)
        return last

    def _is_for(self, i: int, reader: int) -> bool:
        """Whether a unit is a view, or work for one reader alone."""
        if self._is_view(i):
            return True
        node = self._node(i)
        apart = None if node is None else self.captured.fx_nodes[node]
        ours = apart is None or not (is_wait(apart) or process_group(apart) is not None)
        kept = self._kept.isdisjoint(self.units[i].outputs)
        return ours and kept and self._readers[i] == [reader]

    def _late(self, i: int) -> Place:
        return min(self._reading(i), default=float("inf")), _BEFORE, self._own(i)

    def _reading(self, i: int) -> list[float]:
        """The places of those who read what a unit gives, be it through a view."""
        found: list[float] = []
        for each in self._readers[i]:
            found += self._reading(each) if self._is_view(each) else [self._place(each)[0]]
        return found


def may_be_late(node: fx.Node) -> bool:
    """Whether the node is a wait for a collective that may come as late as its first reader."""
    return is_wait(node) and bool(node.users) and awaited(node) is not None
