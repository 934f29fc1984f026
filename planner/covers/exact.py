"""The cheapest cover as an integer program: which candidates, so that every value is there.

A variable for each candidate. Every node is computed, every value that is needed outside is stored,
and what a chosen candidate reads, a chosen one stores; a node may be computed several times.

The last of these takes a row for each value and each of its readers: thousands, and yet they say
little, for half of one candidate and half of another read only half of a value. A row for each edge
follows from them and says more: a chosen candidate holds both ends, or the value is stored. So the
program begins with those. Where a cover reads what it does not store, that value gets the rows of
its readers, and the program is solved again. A dilated WaveNet of 22 nodes and 770 candidates took
4.5 s in the other way, and 0.3 s in this one.

Groups that wait for each other are found afterwards, and forbidden together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..bitsets import bits
from .candidates import CandidateGroup

SOLVER_NODES = 2000
"""Nodes of the branch-and-bound trees of one region's integer programs, in all. Most programs take
one; the clock must not decide, or a busy machine would have another plan."""
_UNIT = 1e6  # The solver's tolerances are absolute: it counts microseconds.

_Row = tuple[dict[int, float], float]
"""Coefficients by variable, and their least sum."""

Cycle = Callable[[Sequence[CandidateGroup]], Sequence[CandidateGroup]]


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen candidates, their seconds, and seconds that no choice can beat."""

    chosen: tuple[CandidateGroup, ...]
    seconds: float
    least_s: float


class IntegerProgram:
    """Covers of `nodes` that store `needed`. sources: for each node what it reads, as a bitset.
    cycle: those of a choice that wait for each other; none where it can run. tree: nodes of the
    solver's trees, in all. entries: what the candidates of all programs hold, write and read.
    watched: values each reader of which has a row."""

    def __init__(
        self,
        nodes: int,
        needed: int,
        sources: Sequence[int],
        cycle: Cycle,
        tree: int = SOLVER_NODES,
    ) -> None:
        self.nodes, self.needed, self.sources, self.cycle = nodes, needed, sources, cycle
        self.left, self.entries, self.watched = tree, 0, 0
        self.forbidden: list[frozenset[tuple[int, int]]] = []

    def forbid(self, chosen: Sequence[CandidateGroup]) -> None:
        """Never again all of these together."""
        self.forbidden.append(frozenset((c.nodes, c.copies) for c in chosen))

    def solve(
        self, candidates: Sequence[CandidateGroup], seconds: Sequence[float]
    ) -> Solution | None:
        """The cheapest cover of these candidates at these seconds; None where there is none, or
        none was found before the tree was spent."""
        while True:
            found = self._solve(candidates, seconds)
            if found is None:
                return None
            waiting = self.cycle(found.chosen)
            if not waiting:
                return found
            self.forbid(waiting)

    def _solve(
        self, candidates: Sequence[CandidateGroup], seconds: Sequence[float]
    ) -> Solution | None:
        self.entries += sum(
            c.nodes.bit_count() + c.writes.bit_count() + 2 * (c.reads & self.nodes).bit_count()
            for c in candidates
        )
        while True:
            found = self._solved(candidates, seconds)
            if found is None:
                return None
            read = written = 0
            for each in found.chosen:
                read |= each.reads & self.nodes
                written |= each.writes
            if not read & ~written:
                return found
            self.watched |= read & ~written

    def _solved(
        self, candidates: Sequence[CandidateGroup], seconds: Sequence[float]
    ) -> Solution | None:
        """The cheapest choice of candidates by the rows that there are so far."""
        # Half a second to import: not for those who only load a plan.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        if self.left <= 0:
            return None
        rows, size = self._rows(candidates)
        entries = [(r, c, v) for r, (row, _) in enumerate(rows) for c, v in row.items()]
        at, columns, values = zip(*entries, strict=True)
        matrix = coo_array((values, (at, columns)), shape=(len(rows), size)).tocsr()
        extra = size - len(candidates)
        result: Any = milp(
            [s * _UNIT for s in seconds] + [0.0] * extra,
            integrality=[1] * len(candidates) + [0] * extra,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, lb=[least for _, least in rows]),
            options={"node_limit": self.left, "mip_rel_gap": 1e-6},
        )
        self.left -= result.mip_node_count or 0
        if result.x is None:
            return None
        picked = [i for i, x in enumerate(result.x[: len(candidates)]) if x > 0.5]
        total = sum(seconds[i] for i in picked)
        least_s = min(total, float(result.mip_dual_bound) / _UNIT)
        return Solution(tuple(candidates[i] for i in picked), total, least_s)

    def _rows(self, candidates: Sequence[CandidateGroup]) -> tuple[list[_Row], int]:
        """Constraints, and how many variables: the candidates, then for each value that is read
        whether it is stored."""
        storing: dict[int, dict[int, float]] = {}
        holding: dict[int, dict[int, float]] = {n: {} for n in bits(self.nodes)}
        reading: dict[int, list[int]] = {}
        for number, candidate in enumerate(candidates):
            for node in bits(candidate.writes):
                storing.setdefault(node, {})[number] = 1.0
            for node in bits(candidate.nodes):
                holding[node][number] = 1.0
            for node in bits(candidate.reads & self.nodes):
                reading.setdefault(node, []).append(number)
        rows: list[_Row] = [(row, 1.0) for row in holding.values()]
        rows += [(storing.get(node, {}), 1.0) for node in bits(self.needed)]
        size = len(candidates)
        for node, readers in reading.items():
            rows.append(({**storing.get(node, {}), size: -1.0}, 0.0))
            for user in bits(self.nodes):
                if self.sources[user] >> node & 1:
                    both = [i for i in holding[user] if i in holding[node]]
                    rows.append(({**dict.fromkeys(both, 1.0), size: 1.0}, 1.0))
            if self.watched >> node & 1:
                rows += [({size: 1.0, number: -1.0}, 0.0) for number in readers]
            size += 1
        place = {(c.nodes, c.copies): i for i, c in enumerate(candidates)}
        for together in self.forbidden:
            known = {place[each]: -1.0 for each in together if each in place}
            if len(known) == len(together):
                rows.append((known, 1.0 - len(known)))
        return rows, size
