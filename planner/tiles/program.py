"""The tile program: what one kernel does with its tiles, instruction by instruction.

A program is data between a nest with a config and the text of a kernel. `tile.PASSES` make it, the
printers of `codegen` only write it down, and the cost model counts it: a decision about a kernel is
taken in one pass, and everybody else reads it here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TypeVar

from ..memo import by_identity
from ..nests.nest import Nest
from ..values.values import Fold
from .blocks import Blocks
from .instructions import (
    NO_VALUE,
    REDUCTIONS,
    Body,
    Change,
    EndLoads,
    EpilogueSubtiles,
    Evaluation,
    Grid,
    Head,
    Instruction,
    Loops,
    Mma,
    RowEnds,
    TileCompute,
    TileLoad,
    TileLoop,
    TileReduction,
    TileRepeat,
)
from .listing import listing

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TileProgram:
    """One kernel. Values are numbered as in the nest, axes too. What the head loads the body does
    not load, but for first blocks and loads together, which it names where it would load them."""

    nest: Nest
    blocks: Blocks
    body: Body
    head: Head = ()
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
        parts, those of its first part; none of what is done again at the ends of rows."""
        return _walked(self.body)

    def evaluations(self) -> tuple[tuple[Evaluation, Loops], ...]:
        """The instructions that give values, with the loops around them."""
        return _evaluated(self.body)

    @property
    def reductions(self) -> Mapping[int, TileReduction]:
        """By value, the instructions that reduce."""
        return _reductions(self.body)

    def deciding(self, choice: Hashable, change: Change) -> TileProgram:
        """As `rewritten`, where `choice` tells all that the change depends on besides the body:
        programs that choose the same then share a body, and what was counted of it."""
        return self.remembering(choice, lambda: rewritten(self, change).body)

    def remembering(self, choice: Hashable, make: Callable[[], Body]) -> TileProgram:
        """The program with the body that was made for the same choice, or is made now."""
        known = _decided(self.body)
        if choice not in known:
            known[choice] = make()
        return self.having(known[choice])

    def elements(self, value: int) -> int:
        """Elements of a value's tile, padding included."""
        return self.blocks.elements(self.nest.live[value])

    def tile(self, value: int) -> int:
        """Elements of the largest tile that evaluating a value takes: of a contraction that is no
        mma, that of the products which it sums."""
        return self.blocks.elements(self.tile_axes(value))

    def tile_axes(self, value: int) -> frozenset[int]:
        """The axes of that tile."""
        kind, live = self.nest.values[value].kind, self.nest.live
        if isinstance(kind, Fold) and kind.times is not None and value not in self.mmas:
            return live[value] | live[kind.source] | live[kind.times]
        return live[value]

    def largest_tile(self) -> int:
        """Elements of the largest tile in registers: loaded operands of mmas lie in shared
        memory."""
        if not self.nest.contractions:
            return self.nest.largest_tile(self.blocks.sizes)
        return max(map(self.blocks.elements, _tiles(self)), default=1)

    def __str__(self) -> str:
        return listing(self.nest, self.blocks, self.body, self.head, self.grid)


def walk(body: Body, around: Loops = ()) -> Iterator[tuple[Instruction, Loops]]:
    """The instructions of a body; see `TileProgram.walk`."""
    for each in body:
        match each:
            case TileLoop(body=inner):
                yield from walk(inner, (*around, each))
            case EpilogueSubtiles(bodies=bodies):
                yield from walk(bodies[0], around)
            case TileRepeat(body=inner):
                yield from walk(inner, around)
            case EndLoads() | RowEnds():
                pass
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
        if isinstance(each, TileLoop):
            inner = _rewritten(each.body, change, (*around, each), each.blocks or blocks)
            new = each if inner is each.body else replace(each, body=inner)
        elif isinstance(each, TileRepeat):
            turn = _rewritten(each.body, change, around, blocks)
            kept = tuple(i for i in turn if isinstance(i, (TileLoad, TileCompute)))
            new = each if turn is each.body else replace(each, body=kept)
        elif isinstance(each, EpilogueSubtiles):
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


@by_body
def _tiles(program: TileProgram) -> frozenset[frozenset[int]]:
    """The axes of the tiles in registers."""
    staged = program.operands & program.nest.loads.keys()
    values = (value.id for value in program.nest.values)
    return frozenset(program.tile_axes(v) for v in values if v not in staged)


@by_identity(256)
def _walked(body: Body) -> tuple[tuple[Instruction, Loops], ...]:
    return tuple(walk(body))


@by_identity(256)
def _evaluated(body: Body) -> tuple[tuple[Evaluation, Loops], ...]:
    every = _walked(body)
    return tuple((i, loops) for i, loops in every if not isinstance(i, NO_VALUE))


@by_identity(256)
def _reductions(body: Body) -> dict[int, TileReduction]:
    steps = (each for each, _ in _evaluated(body))
    return {s.value: s for s in steps if isinstance(s, REDUCTIONS)}


@by_identity(256)
def _mmas(body: Body) -> tuple[dict[int, Mma], frozenset[int]]:
    """The mmas by value, and the values that they read."""
    found = {v: each for v, each in _reductions(body).items() if isinstance(each, Mma)}
    operands = frozenset(v for mma in found.values() for v in (mma.source, mma.times))
    return dict(sorted(found.items())), operands
