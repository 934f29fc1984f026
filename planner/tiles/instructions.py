"""The instructions of a tile program: what a kernel does with its tiles.

An instruction has the number of a value. `values.Load` and `values.Compute` say what is computed;
`TileLoad` and `TileCompute` say when and how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..graph.op import Accuracy
from ..nests.linear_forms import Access
from ..nests.mask_bounds import Limit
from ..stream.online import Correction
from .blocks import LEAST_MMA, Blocks
from .descriptors import Described

ONES = LEAST_MMA
"""Columns of ones with which rows are multiplied to sum them."""

WARPGROUP = 4
"""Warps that multiply together: Hopper's tensor cores take tiles of 64 rows from four."""

Rows = Literal["", "aligned", "apart", "copied", "laid"]
"""Of accesses along the axis of `Blocks.aligned`: "aligned" ones move whole vectors; rows that
begin elsewhere are read "apart", neighbouring elements by neighbouring threads; or they are read as
whole vectors from a copy of the row that begins as far from a vector's start as the rows of the
program (see `copied_stride`). "laid" vectors are read from a copy that a kernel before has made
(see `nests.laid_vectors`)."""

Ends = Literal["", "last", "both"]
"""Of a store of an aligned row, its ends within a vector that a `RowEnds` stores: none, the last
one, or the first one too."""

Hint = Literal["", "first", "last"]
"""What the cache evicts first, or last; "" says nothing."""


class TilePlace(Enum):
    """The memory in which a loaded tile is kept for those that read it."""

    REGISTERS = "registers"
    SHARED = "shared"
    """Only mma operands read it, straight from shared memory."""
    BOTH = "shared and registers"
    """Mma operands read it, and others in registers too."""


class MmaUnit(Enum):
    """The hardware that multiplies the tiles of an mma."""

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
class Moved:
    """The way of an access of a `TileRepeat` from one turn to the next."""

    offset: int
    """Elements in memory."""
    guards: tuple[int, ...]
    """The index of each guard of the access."""


@dataclass(frozen=True, slots=True)
class TileLoad:
    """Read the tile of a loaded value."""

    value: int
    input: int
    """The number of the tensor that is read."""
    access: Access
    place: TilePlace = TilePlace.REGISTERS
    via: Described | None = None
    """The descriptor that copies it in bulk; None: by pointers."""
    twice: bool = False
    """Loaded once for mma operands and once more for other readers."""
    hint: Hint = ""
    rows: Rows = ""
    joined: tuple[int, int] | None = None
    """The last two axes of the tile, along which it is loaded as one row."""
    in_pairs: bool = False
    """Two elements in 32 bits are converted to float32 by one instruction each."""
    moved: Moved | None = None
    """In a `TileRepeat`: the access is that of the first turn."""
    ends: Ends = ""
    """Of an aligned row, those that nobody needs here: a `RowEnds` reads them."""
    lowest: bool = False
    """Whether it gives -inf in place of 0 where nothing is read."""
    chosen: int | None = None
    """The value that says which elements are read at all."""
    between: int | None = None
    """The value that is the elements between, which are loaded with it."""
    repeats: int = 1
    """Neighbours along the tile's last axis that have the same element, which is loaded once."""


@dataclass(frozen=True, slots=True)
class SelectedLoad:
    """Read the tile of a choice: each element from the tensor of the piece that has it."""

    value: int
    pieces: tuple[TileLoad, ...]
    joined: tuple[int, int] | None = None
    """As of a `TileLoad`."""
    by_tile: bool = False
    """Each tile lies in one piece, along one axis."""


@dataclass(frozen=True, slots=True)
class TileStore:
    """Write the tile of an output."""

    output: int
    access: Access
    via: Described | None = None
    hint: Hint = ""
    rows: Rows = ""
    ends: Ends = ""
    """Those that are left to a `RowEnds`."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring into the L2 cache what the first turns of a loop will load."""

    input: int
    access: Access
    axis: int
    """That of the loop, along which the elements lie side by side."""
    count: int
    """How many lines along it, for each element of the tile's other axis."""
    line: int
    """Elements of a line."""


@dataclass(frozen=True, slots=True)
class FirstBlock:
    """Read the tiles of a loop's first turn, but for what its limits leave out."""

    axis: int
    """That of the loop."""
    loads: tuple[TileLoad, ...]


@dataclass(frozen=True, slots=True)
class LoadsTogether:
    """Read tiles before the threads of a program meet, so that no compiler begins one later."""

    loads: tuple[TileLoad, ...]


@dataclass(frozen=True, slots=True)
class EndEmpty:
    """End a program to which masks leave nothing of a loop: it stores what the loop begins with."""

    axis: int
    """That of the loop."""
    limits: tuple[Limit, ...]
    """Where one of them leaves nothing, the program ends."""
    along: int
    """The axis of the grid that divides the loop. The first program along it goes on: what does not
    vary along it, that program alone stores."""
    stores: tuple[TileStore, ...]
    """Those of what the loop carries."""
    waits: bool
    """Whether the program has not waited yet for the kernel before."""


Early = (
    LaunchNext | TileLoad | SelectedLoad | Prefetch | FirstBlock | EndEmpty | Wait | LoadsTogether
)
Head = tuple[Early, ...]
"""What stands before all else: the wait, what is loaded or prefetched before it and at once behind
it, and the end of programs that have nothing to do."""


@dataclass(frozen=True, slots=True)
class BitField:
    """Bits of a byte as a number: ((source >> shift) & (2**width - 1)) - offset."""

    source: int
    """The value that is the byte."""
    shift: int
    width: int
    offset: int


@dataclass(frozen=True, slots=True)
class TileCompute:
    """Evaluate a value that is no load and no reduction."""

    value: int
    rounded: bool = False
    """A product that is rounded before it is subtracted, never joined to one instruction."""
    flushes: bool = False
    """An exponential that may be 0 below 2**-126."""
    bits: BitField | None = None
    """A conversion to float32 of these bits, in place of what the value reads."""
    narrow: str = ""
    """The type of 16 bits in which it is computed, two numbers at a time; "" is the value's own."""


@dataclass(frozen=True, slots=True)
class QuadSum:
    """The sum of one row times bits of bytes, along the last dimension of the tile of bytes: on
    tensor cores, each quad of lanes by itself (see `passes.sum_in_quads`)."""

    value: int
    source: int
    """The tile of bytes. A lane has vectors of 16 of them, of an even number of rows."""
    parts: tuple[tuple[int, int], ...]
    """From which bit of a byte on the numbers are, and the row that they are multiplied by."""
    width: int
    """Bits of a number."""
    offset: int
    """What each number is less than its bits."""
    vectors: int
    """Those that a lane has of a row."""

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source, *(row for _, row in self.parts))


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
    slices: int = 1
    """Parts of the summed axis of which warps multiply one each, added up after the loop."""
    swapped: bool = False
    """Whether the rows that are multiplied are the last of the result's axes, not the first."""
    few: bool = False
    """Whether it has few columns, and no other mma multiplies its result."""

    @property
    def is_turned(self) -> bool:
        """Whether `times` is written as the left operand: dimensions go in the order of axes, or
        against it."""
        return (self.m > self.n) != self.swapped

    @property
    def left(self) -> int:
        return self.times if self.is_turned else self.source

    @property
    def right(self) -> int:
        return self.source if self.is_turned else self.times

    @property
    def rows(self) -> int:
        return self.n if self.is_turned else self.m

    @property
    def columns(self) -> int:
        return self.m if self.is_turned else self.n

    @property
    def unit(self) -> MmaUnit:
        if self.ieee:
            return MmaUnit.FMA
        return MmaUnit.WARPGROUP if self.suits_warpgroup else MmaUnit.WARP


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
    beyond: Literal["", "filled", "neutral"] = ""
    """What of the tile lies beyond the end of a held axis: anything, so that it is masked; filled
    with the neutral element, for all who read the tile after this, too; or neutral already."""
    part: Literal["", "ends", "rest"] = ""
    """Whether it is of whole rows, of their ends alone, or of the rest, which takes in what a
    `RowEnds` gave for the ends."""


@dataclass(frozen=True, slots=True)
class Welford:
    """Sum squared distances from a mean; carried: from the mean of what the loop has seen."""

    value: int
    carried: bool
    shifted: bool = False
    """From the mean of the loop's first block, and brought to that of all after the loop."""


@dataclass(frozen=True, slots=True)
class TileScan:
    """Combine each element of a tile with all before it along an axis."""

    value: int
    axis: int
    carried: bool
    """Also with those of the turns before of the loop around."""
    reverse: bool
    """With all after it."""


@dataclass(frozen=True, slots=True)
class TileLoop:
    """Walk a tile axis in blocks."""

    axis: int
    carries: tuple[int, ...]
    """The reductions that are complete after the loop."""
    body: Body
    by_lane: bool
    """Every lane keeps a state of its own, combined after the loop."""
    stages: int = 1
    """Turns whose loads are under way at once."""
    unroll: int = 1
    """Turns of which the compiler makes one."""
    flatten: bool = False
    """Run as one loop with the loop inside it."""
    reverse: bool = False
    """From the last block to the first."""
    blocks: Blocks | None = None
    """Those of its body where they are wider than the program's."""
    combined: tuple[tuple[int, ...], ...] = ()
    """The states that are combined after the loop, those that are reduced at once together."""
    shared: int = 1
    """Neighbouring lanes along the axis that have one state."""
    inner: tuple[int, int] | None = None
    """The first block whose lanes all lie in the row, and the end of such blocks: they go without
    masks, by a text of their own. Of a row whose length varies there may be none."""
    begun: tuple[int, ...] = ()
    """The values of the first block that the head loads; that block is then straight-line work
    before the loop. Empty: the loop has all blocks."""


@dataclass(frozen=True, slots=True)
class EpilogueSubtiles:
    """An epilogue over one part of the tile's columns after another."""

    axis: int
    values: tuple[int, ...]
    """The values from before that are cut."""
    bodies: tuple[Body, ...]
    """One of each part: what does not vary along the axis is done in the first alone."""
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class EndLanes:
    """The lanes of a `RowEnds`."""

    axis: int
    each: int
    """Elements of one end: at least those of a vector."""
    ends: Ends

    @property
    def size(self) -> int:
        """Of all ends."""
        return 2 * self.each if self.ends == "both" else self.each


@dataclass(frozen=True, slots=True)
class EndLoads:
    """Read for a `RowEnds`, before the row is: it does not wait for them then."""

    lanes: EndLanes
    loads: tuple[TileLoad, ...]


@dataclass(frozen=True, slots=True)
class RowEnds:
    """The ends of an aligned row once more, by a few lanes: what is stored at them is loaded and
    computed again, so that tiles store whole vectors alone."""

    lanes: EndLanes
    body: tuple[TileLoad | TileCompute | Reduce | TileStore, ...]
    apart: bool = False
    """Whether the ends are no part of the row's tiles at all: each step of the row has one at the
    ends beside it."""


@dataclass(frozen=True, slots=True)
class TileRepeat:
    """Instructions that the program has several times over, as a loop over those turns: each reads
    at other places, and adds to what the turn before gave."""

    turns: int
    body: tuple[TileLoad | TileCompute, ...]
    """Those of the second turn, with the accesses of the first."""
    sums: tuple[RepeatedSum, ...]


@dataclass(frozen=True, slots=True)
class RepeatedSum:
    """A value that each turn adds to, by the numbers that it has before the second turn, after it
    and after the last. It begins as 0."""

    before: int
    after: int
    last: int


Evaluation = (
    TileLoad | SelectedLoad | TileCompute | QuadSum | Mma | OnesMma | Reduce | Welford | TileScan
)
"""An instruction that gives a value."""
NO_VALUE = (TileStore, TileLoop, TileRepeat, EndLoads, RowEnds, EpilogueSubtiles)
"""The instructions that are no evaluation."""
Instruction = Evaluation | TileStore | TileLoop | TileRepeat | EndLoads | RowEnds | EpilogueSubtiles
TileReduction = Mma | OnesMma | Reduce | Welford
REDUCTIONS = (Mma, OnesMma, Reduce, Welford)
Body = tuple[Instruction, ...]
Loops = tuple[TileLoop, ...]
Change = Callable[[Instruction, Loops, Blocks], Instruction]
"""From an instruction, the loops around it and the blocks there to what takes its place."""


def loads_of(each: Instruction | Early) -> tuple[TileLoad, ...]:
    """The loads that an instruction is: itself, one for each tensor that it may read, or none."""
    if isinstance(each, SelectedLoad):
        return each.pieces
    if isinstance(each, (FirstBlock, LoadsTogether)):
        return each.loads
    return (each,) if isinstance(each, TileLoad) else ()


@dataclass(frozen=True, slots=True)
class Grid:
    """The distribution of tiles over programs."""

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
