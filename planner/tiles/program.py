"""The tile program: what one kernel does with its tiles, instruction by instruction.

A program is data between a nest with a config and the text of a kernel. `tile.PASSES` make it, the
printers of `codegen` only write it down, and the cost model counts it: a decision about a kernel is
taken in one pass, and everybody else reads it here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import wraps
from typing import Literal, TypeVar

from ..graph.op import Accuracy
from ..memo import by_identity
from ..nests.linear_forms import Access
from ..nests.nest import Nest
from ..stream.online import Correction
from ..values.values import Fold
from .blocks import Blocks
from .descriptors import Described

Result = TypeVar("Result")

LEAST_MMA = 16
"""The least size of each side of an mma."""

ONES = LEAST_MMA
"""Columns of ones with which rows are multiplied to sum them."""

WARPGROUP = 4
"""Warps that multiply together: Hopper's tensor cores take tiles of 64 rows from four."""

Hint = Literal["", "first", "last"]
"""What the cache evicts first, or last; "" says nothing."""


class Place(Enum):
    """Where a loaded tile is kept for those that read it."""

    REGISTERS = "registers"
    SHARED = "shared"
    """Only mma operands read it, straight from shared memory."""
    BOTH = "shared and registers"
    """Mma operands read it, and others in registers too."""


class Unit(Enum):
    """What multiplies the tiles of an mma."""

    WARPGROUP = "warpgroup"
    """Tensor cores, four warps at once, straight from shared memory."""
    WARP = "warp"
    """Tensor cores, each warp by itself, from registers."""
    FMA = "fma"
    """No tensor core: float32 in full precision."""


@dataclass(frozen=True, slots=True)
class LaunchNext:
    """Let the next kernel of the stream be launched (programmatic dependent launch)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until all that the kernel before has written can be seen."""


@dataclass(frozen=True, slots=True)
class Load:
    """Read the tile of a loaded value."""

    value: int
    input: int
    """The number of the tensor that is read."""
    access: Access
    place: Place = Place.REGISTERS
    via: Described | None = None
    """The descriptor that copies it in bulk; None: by pointers."""
    twice: bool = False
    """Loaded once for mma operands and once more for other readers."""
    hint: Hint = ""


@dataclass(frozen=True, slots=True)
class Compute:
    """Evaluate a value that is no load and no reduction."""

    value: int
    rounded: bool = False
    """A product that is rounded before it is subtracted, never joined to one instruction."""


@dataclass(frozen=True, slots=True)
class Mma:
    """A matrix product of tiles [m, k] x [k, n], given by axes. carried: added to the accumulator
    of the loop around it."""

    value: int
    source: int
    times: int
    m: int
    """The axis of results that comes from `source`."""
    n: int
    """That which comes from `times`."""
    k: int
    carried: bool
    ieee: bool
    """Of float32 in full precision."""
    suits_warpgroup: bool = False
    """Whether the rows and the warps are as a warpgroup multiplies them."""
    correction: Correction | None = None
    """How the accumulator follows an extremum that moves in the same loop."""
    accuracy: Accuracy = Accuracy.EXACT
    """Of the exponential that corrects it."""

    @property
    def is_turned(self) -> bool:
        """Whether `times` is written as the left operand: dimensions go in the order of axes."""
        return self.m > self.n

    @property
    def left(self) -> int:
        return self.times if self.is_turned else self.source

    @property
    def right(self) -> int:
        return self.source if self.is_turned else self.times

    @property
    def rows(self) -> int:
        return min(self.m, self.n)

    @property
    def columns(self) -> int:
        return max(self.m, self.n)

    @property
    def unit(self) -> Unit:
        if self.ieee:
            return Unit.FMA
        return Unit.WARPGROUP if self.suits_warpgroup else Unit.WARP


@dataclass(frozen=True, slots=True)
class OnesMma:
    """A sum along axis k as a matrix product with columns of ones."""

    value: int
    source: int
    k: int
    carried: bool


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce tiles, or take them into the state that the loop around carries."""

    value: int
    carried: bool
    joined: tuple[int, ...] = ()
    """The other sums that are reduced with it at once."""
    correction: Correction | None = None
    """How the state follows an extremum that moves in the same loop."""
    accuracy: Accuracy = Accuracy.EXACT
    """Of the exponential that corrects it."""
    followed: bool = False
    """Whether the correction of another state of the loop reads this one."""
    compensated: bool = False
    """Whether the sum carries what its additions lose (Kahan)."""


@dataclass(frozen=True, slots=True)
class Welford:
    """Sum squared distances from a mean; carried: from the mean of what the loop has seen."""

    value: int
    carried: bool


@dataclass(frozen=True, slots=True)
class Store:
    """Write the tile of an output."""

    output: int
    access: Access
    via: Described | None = None
    hint: Hint = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """Walk a tile axis in blocks."""

    axis: int
    carries: tuple[int, ...]
    """The reductions that are complete after the loop."""
    body: Body
    by_lane: bool
    """Every lane keeps a state of its own, combined after the loop."""
    stages: int = 1
    """Turns whose loads are under way at once."""
    flatten: bool = False
    """Run as one loop with the loop inside it."""
    reverse: bool = False
    """From the last block to the first."""
    blocks: Blocks | None = None
    """Those of its body where they are wider than the program's."""
    combined: tuple[tuple[int, ...], ...] = ()
    """The states that are combined after the loop, those that are reduced at once together."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An epilogue over one part of the tile's columns after another."""

    axis: int
    values: tuple[int, ...]
    """The values from before that are cut."""
    bodies: tuple[Body, ...]
    """One of each part: what does not vary along the axis is done in the first alone."""
    blocks: Blocks


Instruction = Load | Compute | Mma | OnesMma | Reduce | Welford | Store | Loop | Parts
Evaluation = Load | Compute | Mma | OnesMma | Reduce | Welford
"""An instruction that gives a value."""
Reduction = Mma | OnesMma | Reduce | Welford
Body = tuple[Instruction, ...]
Loops = tuple[Loop, ...]
Change = Callable[[Instruction, Loops, Blocks], Instruction]
"""From an instruction, the loops around it and the blocks there to what takes its place."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How tiles are given to programs."""

    tiles: int
    """Blocks of work."""
    programs: int
    """Programs that are started for them."""
    persistent: bool
    """A program walks over several tiles."""
    step: int
    """From one tile of a program to its next."""
    stages: int
    """Tiles of a persistent program whose loads are under way at once."""
    stripe: int
    """Blocks of the last axis but one that go together before the last axis moves on."""
    reverse: bool = False
    """The last tile first."""


@dataclass(frozen=True, slots=True)
class TileProgram:
    """One kernel. Values are numbered as in the nest, axes too."""

    nest: Nest
    blocks: Blocks
    body: Body
    head: tuple[LaunchNext | Wait, ...] = ()
    """Before anything is read or written."""
    grid: Grid | None = None
    mmas: Mapping[int, Mma] = field(init=False, repr=False, compare=False)
    """By value, in the order of values."""
    operands: frozenset[int] = field(init=False, repr=False, compare=False)
    """The values that mmas read."""

    def __post_init__(self) -> None:
        mmas, operands = _mmas(self.body)
        object.__setattr__(self, "mmas", mmas)
        object.__setattr__(self, "operands", operands)

    def having(self, body: Body) -> TileProgram:
        """The program with another body; itself where that is its own."""
        if body is self.body:
            return self
        return TileProgram(self.nest, self.blocks, body, self.head, self.grid)

    def walk(self) -> tuple[tuple[Instruction, Loops], ...]:
        """Every instruction but the loops themselves, with the loops around it; of an epilogue in
        parts, those of its first part."""
        return _walked(self.body)

    def evaluations(self) -> tuple[tuple[Evaluation, Loops], ...]:
        """The instructions that give values, with the loops around them."""
        return _evaluated(self.body)

    @property
    def reductions(self) -> Mapping[int, Reduction]:
        """By value, the instructions that reduce."""
        return _reductions(self.body)

    def deciding(self, choice: Hashable, change: Change) -> TileProgram:
        """As `rewritten`, where `choice` tells all that the change depends on besides the body:
        programs that choose the same then share a body, and what was counted of it."""
        known = _decided(self.body)
        if choice not in known:
            known[choice] = rewritten(self, change).body
        return self.having(known[choice])

    def elements(self, value: int) -> int:
        """Elements of a value's tile, padding included."""
        return self.blocks.elements(self.nest.live[value])

    def tile(self, value: int) -> int:
        """Elements of the largest tile that evaluating a value takes: of a contraction that is no
        mma, that of the products which it sums."""
        kind = self.nest.values[value].kind
        if isinstance(kind, Fold) and kind.times is not None and value not in self.mmas:
            live = self.nest.live
            return self.blocks.elements(live[value] | live[kind.source] | live[kind.times])
        return self.elements(value)

    def largest_tile(self) -> int:
        """Elements of the largest tile in registers: loaded operands of mmas lie in shared
        memory."""
        if not self.nest.contractions:
            return self.nest.largest_tile(self.blocks.sizes)
        staged = self.operands & self.nest.loads.keys()
        values = (value.id for value in self.nest.values)
        return max((self.tile(v) for v in values if v not in staged), default=1)

    def __str__(self) -> str:
        from .listing import listing

        return listing(self)


def walk(body: Body, around: Loops = ()) -> Iterator[tuple[Instruction, Loops]]:
    """The instructions of a body; see `TileProgram.walk`."""
    for each in body:
        match each:
            case Loop(body=inner):
                yield from walk(inner, (*around, each))
            case Parts(bodies=bodies):
                yield from walk(bodies[0], around)
            case _:
                yield each, around


def rewritten(program: TileProgram, change: Change) -> TileProgram:
    """The program with every instruction changed, those inside before those around. The program
    itself where nothing changes, so that what was counted of it is still known."""
    return program.having(_rewritten(program.body, change, (), program.blocks))


def _rewritten(body: Body, change: Change, around: Loops, blocks: Blocks) -> Body:
    found: list[Instruction] = []
    for each in body:
        new = each
        if isinstance(each, Loop):
            inner = _rewritten(each.body, change, (*around, each), each.blocks or blocks)
            new = each if inner is each.body else replace(each, body=inner)
        elif isinstance(each, Parts):
            bodies = tuple(_rewritten(part, change, around, each.blocks) for part in each.bodies)
            same = all(a is b for a, b in zip(bodies, each.bodies, strict=True))
            new = each if same else replace(each, bodies=bodies)
        found.append(change(new, around, blocks))
    same = all(a is b for a, b in zip(found, body, strict=True))
    return body if same else tuple(found)


@by_identity(256)
def _decided(body: Body) -> dict[Hashable, Body]:
    return {}


def by_body(function: Callable[[TileProgram], Result]) -> Callable[[TileProgram], Result]:
    """Ask a function once for all programs of the same instructions, whatever their blocks."""

    @by_identity(64)
    def known(body: Body) -> list[Result]:
        return []

    @wraps(function)
    def look_up(program: TileProgram) -> Result:
        kept = known(program.body)
        if not kept:
            kept.append(function(program))
        return kept[0]

    return look_up


@by_identity(256)
def _walked(body: Body) -> tuple[tuple[Instruction, Loops], ...]:
    return tuple(walk(body))


@by_identity(256)
def _evaluated(body: Body) -> tuple[tuple[Evaluation, Loops], ...]:
    every = _walked(body)
    return tuple((i, loops) for i, loops in every if not isinstance(i, (Store, Loop, Parts)))


@by_identity(256)
def _reductions(body: Body) -> dict[int, Reduction]:
    steps = (each for each, _ in _evaluated(body))
    return {s.value: s for s in steps if isinstance(s, (Mma, OnesMma, Reduce, Welford))}


@by_identity(256)
def _mmas(body: Body) -> tuple[dict[int, Mma], frozenset[int]]:
    """The mmas by value, and the values that they read."""
    found = {v: each for v, each in _reductions(body).items() if isinstance(each, Mma)}
    operands = frozenset(v for mma in found.values() for v in (mma.source, mma.times))
    return dict(sorted(found.items())), operands
