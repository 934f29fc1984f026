"""The rules that every tile program keeps after every pass. Tests ask `verify` between all passes;
nothing else does, for a tile program that breaks a rule is a fault of a pass, not of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..graph.sizes import varies
from ..values.values import Fold
from .alignment import is_aligned
from .blocks import LEAST_COLUMNS, LEAST_MMA
from .instructions import (
    REDUCTIONS,
    Body,
    EndEmpty,
    EndLoads,
    EpilogueSubtiles,
    Evaluation,
    FirstBlock,
    LoadsTogether,
    Mma,
    OnesMma,
    QuadSum,
    Reduce,
    RowEnds,
    SelectedLoad,
    TileCompute,
    TileLoad,
    TileLoop,
    TilePlace,
    TileRepeat,
    TileStore,
    Wait,
)
from .program import TileProgram


def verify(program: TileProgram) -> None:
    """Raises ValueError that names the first instruction that cannot be."""
    problem = next(_problems(program), None)
    if problem is not None:
        raise ValueError(f"{problem}, in\n{program}")


def _problems(program: TileProgram) -> Iterator[str]:
    checker = _Checker(program)
    early = tuple(each for each in program.head if isinstance(each, (TileLoad, SelectedLoad)))
    done = set[int]()
    yield from checker.body(early, done, set())
    yield from _begun(program)
    yield from _together(program)
    yield from _ended(program)
    yield from checker.body(program.body, done, set())
    yield from _left_ends(program)
    wanted = {out.index for out in program.nest.outputs}
    stored = set(checker.stored)
    if stored != wanted:
        yield f"outputs {sorted(wanted ^ stored)} are stored never, or are none"
    most = max(
        (len(each.bodies) for each in program.body if isinstance(each, EpilogueSubtiles)), default=1
    )
    for output, times in checker.stored.items():
        if times not in (1, most):
            yield f"output {output} is stored {times} times"


def _left_ends(program: TileProgram) -> Iterator[str]:
    """The ends that stores leave out are stored by what is done again, and no others."""
    steps = [each for each, _ in program.walk() if isinstance(each, TileStore) and each.ends]
    left = sorted((each.output, each.ends) for each in steps)
    again = [each for each in program.body if isinstance(each, RowEnds)]
    own = sorted(
        (s.output, e.lanes.ends) for e in again for s in e.body if isinstance(s, TileStore)
    )
    if left != own:
        yield f"stores leave the ends {left}, of which {own} are stored again"
    for each in program.body:
        if isinstance(each, EndLoads):
            needed = {i for e in again if e.lanes == each.lanes for i in e.body}
            if not needed.issuperset(each.loads):
                yield f"{each} is read before ends that do not need it"


def _begun(program: TileProgram) -> Iterator[str]:
    """A first block is loaded for a loop that has it as straight-line work, and the other way."""
    loops = [each for each in program.body if isinstance(each, TileLoop) and each.begun]
    blocks = [each for each in program.head if isinstance(each, FirstBlock)]
    wanted = [(each.axis, each.begun) for each in loops]
    if [(each.axis, tuple(i.value for i in each.loads)) for each in blocks] != wanted:
        yield f"the head loads {blocks} for loops that begin with {wanted}"


def _together(program: TileProgram) -> Iterator[str]:
    """What is loaded together behind the wait is loaded in the body, once for all its turns."""
    loads = {each: loops for each, loops in program.walk() if isinstance(each, TileLoad)}
    for each in (
        load for own in program.head if isinstance(own, LoadsTogether) for load in own.loads
    ):
        if each not in loads:
            yield f"the head loads {each}, which the body does not"
        elif any(program.blocks.count(loop.axis) > 1 for loop in loads[each]):
            yield f"the head loads {each} once, which a loop loads in every turn"


def _ended(program: TileProgram) -> Iterator[str]:
    """A program that ends stores all that its loop carries, and reads what is loaded before; what
    else is stored, the first along the axis stores alone."""
    loops = {each.axis: each for each in program.body if isinstance(each, TileLoop)}
    every = {each for each, _ in program.walk() if isinstance(each, TileStore)}
    for place, end in enumerate(program.head):
        if not isinstance(end, EndEmpty):
            continue
        loaded = {each.value for each in program.head[:place] if isinstance(each, TileLoad)}
        for value in {value for limit in end.limits for value, _ in limit.values} - loaded:
            yield f"a program ends by v{value} before it is there"
        stored = {program.nest.outputs[each.output].value for each in end.stores}
        wanted = set() if program.nest.are_chosen else {*loops[end.axis].carries}
        if end.axis not in loops or stored != wanted:
            yield f"a program ends that stores {sorted(stored)}, not what its loop carries"
        carried = loops[end.axis].carries
        others = {e for e in every if program.nest.outputs[e.output].value not in carried}
        if any(end.along in each.access.axes for each in others):
            yield "a program ends that alone stores a part of an output"
        behind = any(isinstance(each, Wait) for each in program.head[place:])
        if end.waits != (behind and bool(end.stores)):
            yield "a program ends without a wait, or waits twice"


class _Checker:
    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.nest = program.nest
        self.stored: Counter[int] = Counter()
        self.beside: set[int] = set()
        """Values that are there at the ends of rows."""

    def body(self, body: Body, done: set[int], moving: set[int]) -> Iterator[str]:
        """done: values that can be read here, to which those of the body are added. moving: states
        of loops around that their correction lets be read under way."""
        for each in body:
            match each:
                case TileLoop():
                    yield from self._loop(each, done, moving)
                case EpilogueSubtiles(bodies=bodies, values=values):
                    if not done.issuperset(values):
                        yield "an epilogue in parts cuts what is not there yet"
                    for part in bodies:
                        yield from self.body(part, done, moving)
                case TileRepeat(body=turn, sums=sums):
                    done.update(s.before for s in sums)
                    yield from self.body(turn, set(done), moving)
                    given = {i.value for i in turn}
                    if not given.issuperset(s.after for s in sums):
                        yield "a sum of a repeat is given by no turn of it"
                    done.update(s.last for s in sums)
                case EndLoads():
                    pass
                case RowEnds():
                    yield from self._ends(each, done)
                case TileStore(output=output):
                    self.stored[output] += 1
                    yield from self._rows(each)
                    if self.nest.outputs[output].value not in done:
                        yield f"output {output} is stored before it is there"
                case _:
                    yield from self._evaluation(each, done, moving)

    def _ends(self, ends: RowEnds, done: set[int]) -> Iterator[str]:
        """What is done again stores no output for the first time, and finds nothing that varies
        along the rows: that has the lanes of other tiles."""
        rows, axis = self.program.blocks.aligned, ends.lanes.axis
        if rows is None or rows.axis != axis:
            yield "ends are done again of rows that are not aligned"
        if any(access.at for access in self.nest.stores.values()):
            yield "ends are read again where a kernel writes into what it reads"
        before = self.stored.copy()
        there = {value for value in done if axis not in self.nest.live[value]}
        there |= {v for v in self.beside if ends.apart and axis in self.nest.live[v]}
        yield from self.body(ends.body, there, set())
        steps = (each for each in ends.body if not isinstance(each, TileStore))
        for each in steps:
            self.beside |= {each.value, *(each.joined if isinstance(each, Reduce) else ())}
        self.stored = before

    def _loop(self, loop: TileLoop, done: set[int], moving: set[int]) -> Iterator[str]:
        name = self.nest.axes[loop.axis].name
        taken = [i.value for i in loop.body if isinstance(i, REDUCTIONS) and i.carried]
        if sorted(taken) != sorted(loop.carries):
            yield f"the loop over {name} carries {loop.carries}, but takes {taken} in"
        if loop.stages > 1 and any(isinstance(each, TileLoop) for each in loop.body):
            yield f"the loop over {name} is pipelined with a loop inside it"
        combined = [value for values in loop.combined for value in values]
        most = (loop.blocks or self.program.blocks).count(loop.axis)
        begin, end = loop.inner or (0, most)
        has_any = 0 <= begin < end <= most or varies(self.nest.axes[loop.axis].extent)
        if loop.inner is not None and not has_any:
            yield f"the loop over {name} has no blocks {loop.inner}"
        if loop.combined and sorted(combined) != sorted(loop.carries):
            yield f"the loop over {name} combines {combined}, not what it carries"
        yield from self.body(loop.body, set(done), moving | set(loop.carries))
        done.update(loop.carries)

    def _evaluation(self, each: Evaluation, done: set[int], moving: set[int]) -> Iterator[str]:
        if isinstance(each, SelectedLoad):
            done.update(piece.value for piece in each.pieces)
        own = (each.value, *each.joined) if isinstance(each, Reduce) else (each.value,)
        if isinstance(each, Reduce) and each.part == "rest" and not self.beside.issuperset(own):
            yield f"v{each.value} takes in the ends of rows, which were not reduced"
        for value in own:
            kind = self.nest.values[value].kind
            beside = {kind.about, kind.weight} & moving if isinstance(kind, Fold) else set()
            reads = set(self.nest.values[value].reads)
            if isinstance(each, TileCompute) and each.bits is not None:
                reads = {each.bits.source}
            if isinstance(each, QuadSum):
                reads = {*each.reads}
            if isinstance(each, TileLoad) and each.chosen is not None:
                reads.add(each.chosen)
            for read in reads - done - beside:
                yield f"v{value} reads v{read} before it is there"
        if isinstance(each, Mma):
            sizes = [self.program.blocks.sizes[a] for a in (each.m, each.n, each.k)]
            few = min(self.nest.axes[a].extent for a in (each.m, each.n)) <= LEAST_COLUMNS
            least = LEAST_COLUMNS if few else LEAST_MMA
            if min(sizes) < least or sizes[2] < LEAST_MMA * each.slices:
                yield f"the mma v{each.value} has sides of {sizes} in {each.slices} slices"
        if isinstance(each, OnesMma) and not self._is_operand(each.source):
            yield f"v{each.source} is summed by ones, but others read it in registers"
        if isinstance(each, TileLoad):
            yield from self._rows(each)
        if (
            isinstance(each, TileLoad)
            and each.via is not None
            and each.place is not TilePlace.SHARED
        ):
            yield f"v{each.value} is copied in bulk to {each.place.value}"
        if isinstance(each, TileLoad) and each.between is not None:
            done.add(each.between)
        if not isinstance(each, REDUCTIONS) or not each.carried:
            done.update(own)
            return
        if each.value not in moving:
            yield f"v{each.value} is taken in outside the loop that carries it"
        if isinstance(each, Reduce) and each.followed:
            done.add(each.value)

    def _rows(self, each: TileLoad | TileStore) -> Iterator[str]:
        blocks = self.program.blocks
        rows = blocks.aligned
        if each.rows == "aligned" and (rows is None or not is_aligned(each.access, rows, blocks)):
            yield "whole vectors are accessed of rows that begin elsewhere"
        if each.rows == "copied" and (rows is None or isinstance(each, TileStore)):
            yield "a copy of a row is accessed where no rows are aligned, or written"
        if each.rows and each.via is not None:
            yield "rows are accessed by lanes and copied in bulk"

    def _is_operand(self, value: int) -> bool:
        loads = (i for i, _ in self.program.walk() if isinstance(i, TileLoad) and i.value == value)
        return all(load.place is not TilePlace.BOTH for load in loads)
