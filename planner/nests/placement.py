"""The place of every operation of a nest: outside all loops if possible, else inside those it
needs.

Work on a value stands in the outermost body in which all its looped axes are open. A fold over a
looped axis is carried by a loop over it, in the body where the fold itself lives; what needs the
result comes in a later sweep over the axis, unless a correction lets it join (`online.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import Refused
from ..stream.online import Correction, followed
from ..values.values import Fold, Output, Values


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate one value here."""

    value: int


@dataclass(frozen=True, slots=True)
class Carry:
    """Take this turn's tile into the fold `value`, which the surrounding loop carries."""

    value: int


@dataclass(frozen=True, slots=True)
class WriteOutput:
    """Write output `output` here."""

    output: int


@dataclass(frozen=True, slots=True)
class NestLoop:
    """Walk tile axis `axis` in blocks; each of `carries` is a fold over it, complete after the
    loop. by_lane: every lane of the tile keeps a state of its own, and they are combined after
    the loop; else each turn's tile is reduced at once."""

    axis: int
    carries: tuple[int, ...]
    body: NestBody
    by_lane: bool = True


Item = Evaluate | Carry | WriteOutput | NestLoop
NestBody = tuple[Item, ...]


def place(
    values: Values,
    live: Sequence[frozenset[int]],
    stored: Mapping[int, frozenset[int]],
    carried: Mapping[int, int],
    loops: frozenset[int],
    corrections: Mapping[int, Correction],
) -> NestBody:
    """The body of a nest. live: tile axes of each value; stored: those that each output has;
    carried: the looped axis of each fold that has one; loops: all looped axes. Raises Refused
    where loops would need each other."""
    placer = _Placer(values, live, stored, carried, loops, corrections)
    outputs = [output.index for output in values.outputs]
    return tuple(placer.evaluate((), outputs, frozenset(), set()))


@dataclass(frozen=True, slots=True)
class _Placer:
    values: Values
    live: Sequence[frozenset[int]]
    stored: Mapping[int, frozenset[int]]
    carried: Mapping[int, int]
    loops: frozenset[int]
    corrections: Mapping[int, Correction]

    def evaluate(
        self,
        targets: Collection[int],
        outputs: Sequence[int],
        open_: frozenset[int],
        done: set[int],
    ) -> list[Item]:
        """Items that evaluate the targets and write the outputs, with the loops `open_` around
        them. `done` gains the values that later items of the same body can read."""
        body: list[Item] = []
        wanted = {o: self._output(o).value for o in outputs}
        needed = self._closure([*targets, *wanted.values()], done)
        here = [f for f in sorted(needed - done) if self._is_carried(f, open_)]
        sweeps = self._sweeps(here, done)
        # An output may repeat a value along a looped axis that the value itself lacks.
        streamed = {
            o: (self._context(v) | self.stored[o] & self.loops) - open_ for o, v in wanted.items()
        }
        turn = {
            o: 1 + self._latest(self._depends([v], here, done), sweeps) for o, v in wanted.items()
        }
        for number in range(1, 1 + max([0, *sweeps.values(), *turn.values()])):
            for axis in sorted(self.loops - open_):
                folds = [f for f in here if sweeps[f] == number and self.carried[f] == axis]
                written = [
                    o for o in outputs if turn[o] == number and axis in sorted(streamed[o])[:1]
                ]
                if folds or written:
                    self._settle(
                        [*self._sources(folds), *(wanted[o] for o in written)],
                        here,
                        open_,
                        done,
                        body,
                    )
                    body.append(self._loop(axis, folds, written, open_, done))
                    done.update(folds)
        self._settle(targets, here, open_, done, body)
        for output in outputs:
            if not streamed[output]:
                # What fills one result is computed together: it shares what it is computed of.
                result = self._output(output).result
                beside = (o for o in outputs if not streamed[o])
                together = [wanted[o] for o in beside if self._output(o).result == result]
                self._settle(together, here, open_, done, body)
                body.append(WriteOutput(output))
        return body

    def _loop(
        self,
        axis: int,
        folds: Sequence[int],
        outputs: Sequence[int],
        open_: frozenset[int],
        done: set[int],
    ) -> NestLoop:
        inner, inside = set(done), open_ | {axis}
        body: list[Item] = []
        for fold in folds:
            body += self.evaluate(self.values.values[fold].reads, (), inside, inner)
            body.append(Carry(fold))
            inner.add(fold)
        body += self.evaluate((), outputs, inside, inner)
        by_lane = not any(self._is_contracted(item) for item in body)
        return NestLoop(axis, tuple(folds), tuple(body), by_lane)

    def _is_contracted(self, item: Item) -> bool:
        match item:
            case Evaluate(value=value) | Carry(value=value):
                kind = self.values.values[value].kind
                return isinstance(kind, Fold) and kind.times is not None
            case NestLoop(body=body):
                return any(map(self._is_contracted, body))
        return False

    def _settle(
        self,
        targets: Iterable[int],
        here: Sequence[int],
        open_: frozenset[int],
        done: set[int],
        body: list[Item],
    ) -> None:
        """Evaluate what the targets need and this body can: nothing that streams over a loop that
        is not open, nothing that waits for a fold of this body."""
        blocked = set(here) - done
        for value in sorted(self._closure(targets, done | blocked) - done - blocked):
            if not blocked.isdisjoint(self.values.values[value].reads):
                blocked.add(value)
            elif self._context(value) <= open_:
                if self.carried.get(value) in open_:
                    name = self.values.values[value].origin
                    raise Refused("loop", f"{name} is needed inside the loop that makes it")
                done.add(value)
                body.append(Evaluate(value))
            else:
                blocked.add(value)

    def _is_carried(self, value: int, open_: frozenset[int]) -> bool:
        axis = self.carried.get(value)
        return axis is not None and axis not in open_ and self._context(value) <= open_

    def _sweeps(self, here: Sequence[int], done: set[int]) -> dict[int, int]:
        """In which sweep over its axis each fold of a body is carried, counted from 1."""
        found: dict[int, int] = {}
        for fold in here:
            depends = self._depends(self.values.values[fold].reads, here, done)
            joined = depends & followed(self.values.values, self.corrections, fold)
            latest = self._latest(depends - joined, found)
            found[fold] = max(1 + latest, self._latest(joined, found))
        return found

    def _depends(self, targets: Iterable[int], here: Sequence[int], done: set[int]) -> set[int]:
        """The folds of this body that the targets read before anything else of it."""
        if done.issuperset(here):
            return set()
        return (self._closure(targets, done | set(here)) & set(here)) - done

    @staticmethod
    def _latest(folds: Iterable[int], sweeps: Mapping[int, int]) -> int:
        return max((sweeps[f] for f in folds), default=0)

    def _sources(self, folds: Iterable[int]) -> list[int]:
        return [source for fold in folds for source in self.values.values[fold].reads]

    def _closure(self, targets: Iterable[int], stop: Collection[int]) -> set[int]:
        needed: set[int] = set()
        stack = list(targets)
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                if value not in stop:
                    stack.extend(self.values.values[value].reads)
        return needed

    def _context(self, value: int) -> frozenset[int]:
        return self.live[value] & self.loops

    def _output(self, index: int) -> Output:
        return self.values.outputs[index]
