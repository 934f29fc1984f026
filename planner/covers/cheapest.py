"""The cheapest cover of a region that a bounded number of looks at the cost model finds.

It begins with a cover that is known, and never gives a worse one. A small region's groups are all
enumerated: the integer program is solved with the floors of those that the model has not priced,
those it chooses are priced, and so on, until it chooses none that is not: that cover is the best of
all. Where there are too many, the groups near the best cover are priced, the most promising first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..bitsets import bits
from .budget import CoverBudget
from .candidates import CandidateGroup, Ground, enumerated
from .exact import SOLVER_NODES, Cycle, IntegerProgram, Solution
from .nearby import Changed, Nearby
from .pricing import SPARED

Price = Callable[[CandidateGroup], float | None]
_BATCH = 12
_EQUAL = 1e-6
_RISE = 0.01  # Of the best cover's seconds: a bound that rises by less has not come nearer.
_QUICK = 3000  # Entries of a program that takes some hundredths of a second; 10000 take a third.


@dataclass(frozen=True, slots=True)
class CoverEffort:
    """enumerated: groups of a region looked at, to prove a cover. priced: those that the model
    prices beyond the start. tree: nodes of the integer programs' trees. stalled: entries, beyond
    what is quick, of the programs that one after the other bring a proof no nearer, for each
    operation. Where launches are all that groups cost, hundreds cost the same, and each such
    program takes a second."""

    enumerated: int = 600
    priced: int = 48
    tree: int = SOLVER_NODES
    stalled: int = 150


@dataclass(frozen=True, slots=True)
class CheapestCover:
    """Groups, their seconds and those of the start. least_s: what no cover of the region can beat,
    as far as that is known; proven: none whose groups are connected is better."""

    groups: tuple[CandidateGroup, ...]
    seconds: float
    start_s: float
    least_s: float
    proven: bool


@dataclass(slots=True)
class Search:
    """Looks for covers of a region, a bitset of compute nodes. price: the model's seconds of a
    candidate, None where it has no kernel. cycle: see `exact.IntegerProgram`. budget: that prices
    draw on, None where nothing limits them but `effort`."""

    ground: Ground
    region: int
    price: Price
    cycle: Cycle
    effort: CoverEffort = field(default_factory=CoverEffort)
    budget: CoverBudget | None = None
    known: dict[tuple[int, int], float | None] = field(default_factory=dict)
    all: dict[tuple[int, int], CandidateGroup] = field(default_factory=dict)
    _most: int = 0
    _near: Nearby | None = None
    _moves: dict[tuple[Changed, ...], _Move | None] = field(default_factory=dict)

    def run(self, start: Sequence[CandidateGroup]) -> CheapestCover:
        """The best cover found; `start` is one. Raises ValueError where it has no seconds."""
        seconds = [self._priced(each) for each in start]
        start_s = sum(s for s in seconds if s is not None)
        if None in seconds:
            raise ValueError("the first cover holds a group without seconds")
        best = Solution(tuple(start), start_s, 0.0)
        if self.region.bit_count() == 1:
            return CheapestCover(best.chosen, start_s, start_s, start_s, True)
        self._most = len(self.known) + self.effort.priced
        groups, complete = enumerated(self.ground, self.region, start_s, self.effort.enumerated)
        program = self._program()
        best = self._improved(best, program)
        least_s = 0.0
        if complete:
            for group in groups:
                for each in self.ground.variants(group):
                    self.all.setdefault((each.nodes, each.copies), each)
            best, least_s = self._proven(best, program)
        proven = least_s >= best.seconds * (1 - _EQUAL)
        if complete:
            least_s = min(least_s, self._least_of_parts_s(program, start_s))
        # To say more than nothing of what is not proven: all of it as one kernel.
        whole_s = self.ground.candidate(self.region).floor_s / SPARED
        least_s = max(least_s, min(whole_s, best.seconds))
        return CheapestCover(best.chosen, best.seconds, start_s, least_s, proven)

    def others(self, found: CheapestCover, count: int) -> list[CheapestCover]:
        """The next best covers of what has been priced."""
        program = self._program()
        program.forbid(found.groups)
        more: list[CheapestCover] = []
        while len(more) < count:
            next_best = self._of_known(program)
            if next_best is None:
                break
            program.forbid(next_best.chosen)
            more.append(
                CheapestCover(
                    next_best.chosen, next_best.seconds, found.start_s, found.least_s, False
                )
            )
        return more

    def _program(self) -> IntegerProgram:
        sources = self.ground.sources
        return IntegerProgram(self.region, self._needed(), sources, self.cycle, self.effort.tree)

    def _needed(self) -> int:
        ground, found = self.ground, self.ground.kept & self.region
        for node in bits(self.region):
            if ground.users[node] & ground.compute & ~self.region:
                found |= 1 << node
        return found

    @property
    def _spent(self) -> bool:
        spent = self.budget is not None and self.budget.is_spent
        return spent or len(self.known) >= self._most

    def _priced(self, candidate: CandidateGroup) -> float | None:
        name = (candidate.nodes, candidate.copies)
        if name not in self.known:
            self.all[name] = candidate
            self.known[name] = self.price(candidate)
        return self.known[name]

    def _of_known(self, program: IntegerProgram) -> Solution | None:
        priced = [(self.all[name], s) for name, s in self.known.items() if s is not None]
        return program.solve([c for c, _ in priced], [s for _, s in priced])

    # --- a region of which every group is known ---

    def _proven(self, best: Solution, program: IntegerProgram) -> tuple[Solution, float]:
        """The best cover of all, and what none can beat; the two meet unless the model would have
        to be asked too often."""
        least_s, stalled = 0.0, 0
        while True:
            usable = [c for name, c in self.all.items() if self.known.get(name, 0.0) is not None]
            prices = [self._least_s(c) for c in usable]
            before = program.entries
            found = program.solve(usable, prices)
            if found is None:
                return best, least_s
            has_risen = found.least_s - least_s >= _RISE * best.seconds
            stalled = 0 if has_risen else stalled + max(program.entries - before - _QUICK, 0)
            least_s = max(least_s, found.least_s)
            if least_s >= best.seconds * (1 - _EQUAL):
                return best, best.seconds
            fresh = [c for c in found.chosen if (c.nodes, c.copies) not in self.known]
            if not fresh:
                return found, found.seconds
            if self._spent or stalled > self.effort.stalled * self.region.bit_count():
                return self._better(best, self._of_known(program)), least_s
            for candidate in fresh:
                self._priced(candidate)

    def _least_of_parts_s(self, program: IntegerProgram, start_s: float) -> float:
        """What no cover can beat, also of groups of which two parts share no edge: moves lead to
        such, and they are not enumerated."""
        usable, prices, has_parts = [], [], False
        for name, candidate in self.all.items():
            own_s = self._least_s(candidate) if self.known.get(name, 0.0) is not None else None
            part_s = self.ground.least_part_s(candidate, self.region)
            has_parts |= part_s is not None
            some = [s for s in (own_s, part_s) if s is not None]
            if some:
                usable.append(candidate)
                prices.append(min(some))
        found = program.solve(usable, prices) if has_parts else None
        if found is None:
            return start_s
        # A part was left out where it and a second kernel alone take as long as the start.
        return min(found.least_s, start_s - self.ground.device.launch_s)

    def _least_s(self, candidate: CandidateGroup) -> float:
        found = self.known.get((candidate.nodes, candidate.copies))
        return candidate.floor_s if found is None else found

    def _better(self, best: Solution, other: Solution | None) -> Solution:
        return other if other and other.seconds < best.seconds * (1 - _EQUAL) else best

    # --- what is near a cover ---

    def _improved(self, best: Solution, program: IntegerProgram) -> Solution:
        """The best cover that steps from one to a better one lead to."""
        while not self._spent:
            before = len(self.known)
            for move in self._promising(best):
                if self._spent or len(self.known) - before >= _BATCH:
                    break
                move.look(self._priced)
            if len(self.known) == before:
                return best
            best = self._better(best, self._of_known(program))
        return best

    def _promising(self, best: Solution) -> list[_Move]:
        """Changes whose floors are below what they replace, the best first, if not yet priced."""
        found = []
        if self._near is None:
            self._near = Nearby(self.ground)
        for changed in self._near.groups(best.chosen):
            move = self._move(best.chosen, changed)
            if move is not None and self._gain_s(move) > 0:
                found.append(move)
        found = [m for m in found if any((c.nodes, c.copies) not in self.known for c in m.parts)]
        found.sort(key=lambda m: (-self._gain_s(m), m.parts[0].nodes))
        return found

    def _gain_s(self, move: _Move) -> float:
        least = [self._least_s(c) for c in move.parts]
        if any(self.known.get((c.nodes, c.copies), 0.0) is None for c in move.parts):
            return 0.0
        return move.replaced_s - sum(least)

    def _move(self, cover: Sequence[CandidateGroup], changed: Changed) -> _Move | None:
        """The new group and what is left of those it takes from; None where a rest is no group, or
        the new one reaches into another region."""
        if changed[0] & ~self.region:
            return None
        touched = [group for group in cover if group.nodes & changed[0]]
        asked = (changed, *((group.nodes, group.copies) for group in touched))
        if asked not in self._moves:
            self._moves[asked] = self._made(touched, *changed)
        return self._moves[asked]

    def _made(self, touched: Sequence[CandidateGroup], nodes: int, copies: int) -> _Move | None:
        taken, replaced_s = nodes & ~copies, 0.0
        parts = [self._candidate(nodes, self.ground.stored(nodes) & copies)]
        for group in touched:
            replaced_s += self.known[group.nodes, group.copies] or 0.0
            rest = group.nodes & ~taken
            if not rest:
                continue
            if self.ground.closed(rest) != rest:
                return None
            # A value that only the new group read is not stored any more.
            unread = copies & rest & ~self.ground.kept
            for node in bits(unread):
                if self.ground.users[node] & ~(rest | nodes):
                    unread &= ~(1 << node)
            parts.append(self._candidate(rest, group.copies & rest | unread))
        return _Move(tuple(parts), replaced_s)

    def _candidate(self, nodes: int, copies: int) -> CandidateGroup:
        found = self.all.get((nodes, copies))
        if found is None:
            found = self.all[nodes, copies] = self.ground.candidate(nodes, copies)
        return found


@dataclass(frozen=True, slots=True)
class _Move:
    """Groups that take the place of others, which take `replaced_s` seconds."""

    parts: tuple[CandidateGroup, ...]
    replaced_s: float

    def look(self, price: Price) -> None:
        """Price the parts as long as they may still be faster."""
        left_s = self.replaced_s
        for number, part in enumerate(self.parts):
            found = price(part)
            if found is None:
                return
            left_s -= found
            if left_s <= sum(later.floor_s for later in self.parts[number + 1 :]):
                return
