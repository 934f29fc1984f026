"""The traffic of a nest through memory and the caches: its accesses, their bytes, and how they
lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from ..graph.dtypes import itemsize
from ..graph.graph import TensorType
from ..memo import by_identity
from ..nests.linear_forms import Access, Role, Term
from ..nests.nest import Nest
from ..tiles.alignment import NARROW_BYTES, vector_width
from ..tiles.blocks import Blocks
from ..tiles.instructions import (
    Instruction,
    Loops,
    Reduce,
    TileLoop,
    TileStore,
    Welford,
    loads_of,
)
from ..tiles.passes.assign_programs import tiles_in_all
from ..tiles.passes.unroll_loops import UNDER_WAY
from ..tiles.program import TileProgram, by_body
from ..values.values import Load
from .access_classes import alignments, classes
from .device import DeviceProfile
from .tile_cache import once

# Of the L2 cache, what is found again, by the bytes that ncu counted on an H200: when only the data
# itself is counted, though what else is read and stored passes through as well, and when all that
# is in use in a turn of a loop is counted.
KEPT, _KEPT_IN_TURN = 0.35, 0.7

# A sector alone takes as long as two of a line: of 2.6 million numbers of 16 bits that lie 640
# bytes apart L2 delivered 4.4 TB/s, in sectors; of columns in stretches of 16 bytes 3.4 TB/s.
_SCATTERED = 2.0

_SECTOR = 32  # Bytes.

# Memory opens a page for each of many rows that are walked side by side. A stretch of a row is
# short below a page, and of long rows that are read twice below this share of the row, or 16 KB.
# Of softmax and layer norm of 883 rows of 151,936 elements on an H100 stretches of 2 KB take 1.16
# times as long as those of 16 KB, 4 KB 1.08, 8 KB 1.05; of rows of 8 KB the shortest are the
# fastest. Of 23 functions of rows of 1,000 to 262,144 elements, 4 to 23 configs of each, the mean
# regret of the model's choice falls from 8.9% to 5.3%.
_PAGE, _LONGEST_STRETCH, _OF_ROW = 2048.0, 16384.0, 4

# Seconds of rows that are accessed by fewer than 8 bytes at once over those of a plain copy, for
# each time that this halves; instructions and lines of the L1 cache are counted besides. On an H200
# rms norm of 777 columns of 2 bytes, 4 rows a program, takes 1.23 times what a copy takes, and sums
# of squares of 33 columns of 4 bytes 1.04 times (see `arithmetic._EXCHANGE`).
_NARROW = 0.15


# Memory gives two sectors at once: of stretches of one the other half comes in vain, or late.
_HALF_BURST = 1.12


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one call: between memory and L2, between L2 and the SMs. weighed: the latter as long
    as they take, in bytes of whole lines."""

    hbm: int
    l2: int
    weighed: int


@dataclass(frozen=True, slots=True)
class AccessSite:
    """An access where it stands. number: of its class; input: what it reads (None: a store); loops:
    around it, the outermost first; tile: bytes that one program moves for one execution; scattered:
    no two of its sectors lie in one line."""

    access: Access
    number: int
    input: int | None
    loops: Loops
    tile: int
    scattered: bool

    @property
    def stretch(self) -> int:
        """The part of the body it stands in: a loop, or the straight-line work."""
        return id(self.loops[0]) if self.loops else 0


@once
def readings(program: TileProgram) -> list[AccessSite]:
    """Every access of a program, in order."""
    found = []
    numbers, moved = classes(program.nest), dict[int, tuple[int, bool]]()
    for access, source, loops in _accesses(program):
        number = numbers[id(access)]
        if number not in moved:
            moved[number] = _moved(access, program.blocks)
        found.append(AccessSite(access, number, source, loops, *moved[number]))
    return found


@once
def widths(program: TileProgram) -> list[tuple[int, int | None]]:
    """Of each of the `readings`, the elements that one instruction of a thread moves at most, and
    the axis along which they lie side by side (see `vector_width`)."""
    known: dict[object, tuple[int, int | None]] = {}
    found, alike_of = [], alignments(program.nest)
    for each in readings(program):
        alike = alike_of[id(each.access)]
        if alike not in known:
            known[alike] = vector_width(each.access, program.blocks)
        found.append(known[alike])
    return found


@by_body
def _accesses(program: TileProgram) -> list[tuple[Access, int | None, Loops]]:
    """Every access in order, the input that it reads, and the loops around it."""
    found: list[tuple[Access, int | None, Loops]] = []
    for each, loops in program.walk():
        found += [(load.access, load.input, loops) for load in loads_of(each)]
        if isinstance(each, TileStore):
            found.append((each.access, None, loops))
    return found


def _moved(access: Access, blocks: Blocks) -> tuple[int, bool]:
    """Bytes that one program moves, and whether they are scattered (see `AccessSite`)."""
    elements = _elements(access, blocks.nest, blocks.sizes)
    run, step = _stretches(access, blocks.nest, blocks.sizes)
    size = itemsize(access.type.dtype)
    scattered = elements > run and run * size <= _SECTOR and step > 2 * _SECTOR
    return _sector_bytes(access, blocks.nest, blocks.sizes, elements), scattered


@once
def traffic_of(program: TileProgram, group: int, at_once: int, l2_bytes: int) -> Traffic:
    """Each access moves its tile in every program and turn. group: see `Config`; at_once: programs
    that run at the same time, a wave of them; l2_bytes: what L2 holds. Those that share data read
    it together, so that it leaves memory once in a wave; what an earlier wave, sweep or turn has
    read is found in L2 as far as what is in use between fits it."""
    nest, blocks = program.nest, program.blocks
    programs = tiles_in_all(program)
    wave = _Wave(blocks, group, at_once)
    every = readings(program)
    hbm, l2, weighed = 0.0, 0.0, 0.0
    # Of each input, or of every so many elements of it (see `_lanes`): bytes read so far, and the
    # stretches of the body that read it.
    seen: dict[tuple[int, int], int] = {}
    near: set[tuple[int, int, int]] = set()
    alike: dict[tuple[int, int], tuple[int, float, float]] = {}
    lane_of = _lanes(nest)
    for each in every:
        kind = each.number, id(each.loops)
        if kind not in alike:
            size = _whole_bytes(each.access, nest)
            share = _share(each.access, nest)
            together = wave.touches(each, each.loops) * share
            alike[kind] = size, turns(each.loops, blocks) * share, together
        size, times, together = alike[kind]
        moved = each.tile * times * programs
        # The same input at another offset in the same stretch is found in L1.
        lane = lane_of.get(id(each.access), 0)
        if each.input is None or (each.input, lane, each.stretch) not in near:
            l2 += moved
            weighed += moved * (_SCATTERED if each.scattered else 1.0)
        if each.input is None:
            hbm += size
            continue
        near.add((each.input, lane, each.stretch))
        before = seen.get((each.input, lane), 0)
        fresh = max(0, size - before)
        seen[each.input, lane] = max(before, size)
        touched = together * programs / at_once
        hbm += fresh
        if touched - fresh > 0.5 * size:
            hbm += _missed(min(together, size), KEPT * l2_bytes) * (touched - fresh)
        outer = next((loop for loop in each.loops if loop.axis not in each.access.axes), None)
        if outer is not None:
            in_use = wave.in_use(outer, every)
            again = moved / max(1.0, programs * _distinct(each, blocks)) - 1.0
            hbm += _missed(in_use, _KEPT_IN_TURN * l2_bytes) * touched * again
    return Traffic(int(hbm), int(l2), int(weighed))


@by_identity(64)
def _lanes(nest: Nest) -> dict[int, int]:
    """Where an axis is unrolled, accesses at other offsets read other elements: by the id of an
    access, which sectors of those that its steps along each dimension pass over. Of vectors in a
    copy there is no such."""
    found: dict[int, int] = {}
    if any(output.part is not None for output in nest.outputs):
        for value, access in nest.loads.items():
            kind = nest.values[value].kind
            assert isinstance(kind, Load)
            if kind.input in nest.laid:
                continue
            passed = (d.start % abs(d.step) if d.factors else d.start for d in kind.dims if d.step)
            strides = (abs(d.stride) for d in kind.dims if d.step)
            place = sum(map(mul, passed, strides))
            found[id(access)] = place * itemsize(access.type.dtype) // _SECTOR
    return found


def _share(access: Access, nest: Nest) -> float:
    """The part of an access that its guards let through, where each is of one axis: of matrices
    side by side each is read by the programs of its own columns alone."""
    found = 1.0
    for form, limit in access.guards:
        if len(form.terms) == 1 and form.terms[0].div == 1 and not form.terms[0].mod:
            (term,) = form.terms
            extent = nest.axes[term.axis].extent
            ends = sorted((form.base, form.base + term.scale * (extent - 1)))
            steps = (min(ends[1], limit - 1) - max(ends[0], 0)) // abs(term.scale) + 1
            found *= min(1.0, max(0, steps) / extent)
    return found


def _missed(in_use: float, kept: float) -> float:
    """Of what is read again, the part that L2 no longer has."""
    return max(0.0, 1.0 - kept / max(1.0, in_use))


def _distinct(each: AccessSite, blocks: Blocks) -> float:
    """Bytes that one program touches of an input, each counted once."""
    return each.tile * turns([p for p in each.loops if p.axis in each.access.axes], blocks)


@dataclass(slots=True)
class _Wave:
    blocks: Blocks
    group: int
    at_once: int
    counts: list[tuple[int, float]] = field(init=False)
    """Of each of the grid's axes, how many of its blocks a wave has."""
    known: dict[int, float] = field(default_factory=dict)
    """By the id of a loop, what is in use in a turn of it."""

    def __post_init__(self) -> None:
        self.counts, left = [], float(self.at_once)
        for axis, count in self._order():
            here = min(float(count), max(1.0, left))
            self.counts.append((axis, here))
            left /= here

    def in_use(self, outer: TileLoop, every: Sequence[AccessSite]) -> float:
        """Bytes that all programs of a wave together touch in one turn of a loop."""
        if id(outer) not in self.known:
            inside = ((e, e.loops.index(outer)) for e in every if outer in e.loops)
            self.known[id(outer)] = sum(self.touches(e, e.loops[n + 1 :]) for e, n in inside)
        return self.known[id(outer)]

    def touches(self, each: AccessSite, loops: Sequence[TileLoop]) -> float:
        """Bytes that all programs of a wave together touch in the turns of these loops."""
        own = [loop for loop in loops if loop.axis in each.access.axes]
        return each.tile * turns(own, self.blocks) * self._apart(each.access)

    def _apart(self, access: Access) -> float:
        """How many programs of a wave touch different data: neighbours along a grid axis that the
        access lacks share theirs."""
        different, axes = 1.0, access.axes
        for axis, here in self.counts:
            if axis in axes:
                different *= here
        return different

    def _order(self) -> list[tuple[int, int]]:
        """The grid's axes, that which changes fastest first; a group of blocks goes before all."""
        count_of = self.blocks.count
        axes = [a for a in self.blocks.nest.with_role(Role.GRID) if count_of(a) > 1]
        pieces = [(a, count_of(a)) for a in reversed(axes)]
        if self.group > 1 and len(axes) > 1:
            (inner, many), (outer, count), *rest = pieces
            stripes = -(-count // self.group)
            first = (outer, min(self.group, count))
            pieces = [first, (inner, many), (outer, stripes), *rest]
        return pieces


def turns(loops: Sequence[TileLoop], blocks: Blocks) -> float:
    return math.prod(blocks.turns(loop.axis) for loop in loops)


@by_body
def sweeps(program: TileProgram) -> int:
    """How often a program walks its looped axes, one time after the other."""
    return sum(isinstance(each, TileLoop) for each in program.body)


def _whole_bytes(access: Access, nest: Nest) -> int:
    """Bytes that all of an access touches: of one by index a row for every index, and no more than
    there are in the tensor, nor than its guards let through."""
    if access.guards:
        walked = math.prod(nest.axes[axis].extent for axis in access.axes)
        passed = math.ceil(walked * _share(access, nest)) * itemsize(access.type.dtype)
        return min(access.type.nbytes, passed)
    if not access.at:
        return access.type.nbytes
    whole = tuple(axis.extent for axis in nest.axes)
    elements = _elements(access, nest, whole)
    return min(access.type.nbytes, _sector_bytes(access, nest, whole, elements))


def _sector_bytes(access: Access, nest: Nest, blocks: Sequence[int], elements: int) -> int:
    """Bytes of a block of these extents and so many different elements, in whole sectors."""
    size, (run, step) = itemsize(access.type.dtype), _stretches(access, nest, blocks)
    # Rows that lie nearer than a sector share it.
    each = min(_SECTOR * math.ceil(run * size / _SECTOR), max(step, run * size))
    return int(elements / run * each) if elements else size


def _stretches(access: Access, nest: Nest, blocks: Sequence[int]) -> tuple[int, float]:
    """Elements of a block that lie side by side, and bytes from one such stretch to the next."""
    if access.near:
        return _elements(access, nest, blocks), math.inf
    run, step = 1, math.inf
    for term in access.offset.terms:
        if term.scale == 1 and (term.mod or term.axis not in access.along):
            run = _count(term, nest, blocks)
        elif term.div == 1 and blocks[term.axis] > 1:
            step = min(step, abs(term.scale) * itemsize(access.type.dtype))
    return run, step


def _elements(access: Access, nest: Nest, blocks: Sequence[int]) -> int:
    """How many different ones a block of these extents has."""
    found = dict.fromkeys(access.offset.axes | access.along, 1)
    for term in access.offset.terms:
        found[term.axis] *= _count(term, nest, blocks)
    for axis, own in found.items():
        most = min(blocks[axis], nest.axes[axis].extent)
        found[axis] = most if axis in access.along else min(most, own)
    return math.prod(found.values())


def _count(term: Term, nest: Nest, blocks: Sequence[int]) -> int:
    """Values of a term within a block."""
    extent = nest.axes[term.axis].extent
    return min(-(-blocks[term.axis] // term.div), term.mod or -(-extent // term.div))


def in_flight(
    program: TileProgram, waves: float, resident: int, num_warps: int, device: DeviceProfile
) -> float:
    """Bytes that are under way together: the tiles that programs load at once, and of a short loop
    those of some turns, for it is unrolled by the compiler, or by `unroll_loops`."""
    tile, waited = _under_way(program, num_warps)
    return tile * tile / max(1.0, waited) * resident * device.sm_count * min(1.0, waves)


@once
def _under_way(program: TileProgram, num_warps: int) -> tuple[float, float]:
    """Bytes that a program loads at once, and those of them that it waits for one by one."""
    every = zip(readings(program), widths(program), strict=True)
    loads = [(each, width) for each, (width, _) in every if each.input is not None]
    short = _unrolled(program)
    instructions = dict.fromkeys(short, 0)
    for each, width in loads:
        if each.stretch in short:
            elements = each.tile / itemsize(each.access.type.dtype)
            instructions[each.stretch] += math.ceil(elements / (32 * num_warps * width))
    tile = waited = 0.0
    for each, _ in loads:
        at_once = UNDER_WAY / instructions[each.stretch] if each.stretch in short else 1.0
        tile += each.tile
        waited += each.tile / max(1.0, at_once)
    return tile, waited


@by_body
def _unrolled(program: TileProgram) -> set[int]:
    """The loops in which no turn waits for what the last one left, but to add to it."""
    if program.nest.contractions:
        return set()
    loops = [each for each in program.body if isinstance(each, TileLoop)]
    return {id(loop) for loop in loops if not any(map(_waits_for_last_turn, loop.body))}


def _waits_for_last_turn(each: Instruction) -> bool:
    """Whether what is done to a state is a chain of operations, more than to add to it."""
    if isinstance(each, Reduce):
        return each.correction is not None
    return isinstance(each, Welford)


@once
def awkwardness(program: TileProgram, num_warps: int) -> float:
    """How much slower than a plain copy the accesses run: by the bytes a thread moves at once,
    best at one 16-byte vector for each tensor, and by the stretches a tile falls into. Factors
    fitted to measurements on an H200."""
    accesses, blocks = readings(program), program.blocks
    if not accesses:
        return 1.0
    most = max(accesses, key=lambda each: each.tile)
    widest = most.access
    elements = blocks.elements(widest.axes)
    each = max(elements / (32 * num_warps), 1.0) * itemsize(widest.type.dtype)
    if each >= 16:
        tensors = sum(each.tile for each in accesses) / most.tile
        vectors = 1.0 + 0.012 * tensors * math.log2(each / 16)
    else:
        vectors = 1.0 + 0.12 * math.log2(16 / each) ** 1.5
    run = _run(widest, blocks)
    stretches = 1.0 + 0.015 * math.log2(max(1.0, elements / run))
    if most.scattered:
        stretches *= _HALF_BURST
    walked = [_walked_along(each, blocks.nest) for each in accesses if each.access is widest]
    if any(walked):
        row = max(walked) * itemsize(widest.type.dtype)
        again = row / _OF_ROW if sweeps(program) > 1 else 0.0
        # Of rows that are shorter than a page the next ones lie in the same.
        page = min(_LONGEST_STRETCH, max(_PAGE, again), row)
        short = page / (run * itemsize(widest.type.dtype))
        stretches *= 1.0 + 0.046 * math.log2(max(1.0, short))
    return vectors * stretches * _narrowness(program)


def _walked_along(each: AccessSite, nest: Nest) -> int:
    """The elements of a row of a tensor along which a loop goes; 0 where it goes from one row to
    the next."""
    axes = {loop.axis for loop in each.loops}
    along = (t.axis for t in each.access.offset.terms if t.axis in axes and t.scale == 1)
    return max((nest.axes[axis].extent for axis in along), default=0)


@once
def _narrowness(program: TileProgram) -> float:
    """How much slower than a plain copy rows are that begin anywhere, by the bytes of all tensors:
    what all programs read, such as a weight, comes from L1. Of a tensor that is read at several
    offsets the widest access counts: what the others read has come with it."""
    found = dict[tuple[int | None, int], tuple[TensorType, float]]()
    for each, (most, axis) in zip(readings(program), widths(program), strict=True):
        tensor = each.input, 0 if each.input is not None else each.number
        kind, halved = each.access.type, 0.0
        if axis is not None:
            halved = max(0.0, math.log2(NARROW_BYTES / (itemsize(kind.dtype) * most)))
        _, known = found.get(tensor, (kind, halved))
        found[tensor] = kind, min(halved, known)
    sizes = [(kind.nbytes, n) for kind, n in found.values()]
    total = sum(size for size, _ in sizes)
    return 1.0 + sum(size * _NARROW * n for size, n in sizes) / max(1.0, total)


def _run(access: Access, blocks: Blocks) -> int:
    """Elements of a tile that lie side by side in memory."""
    run = 1
    for term in sorted(access.offset.terms, key=lambda t: abs(t.scale)):
        if term.scale != run or not (term.mod or term.axis not in access.along):
            break
        whole = term.mod or blocks.nest.axes[term.axis].extent
        run *= min(blocks.sizes[term.axis], whole)
        if blocks.sizes[term.axis] < whole:
            break
    return run
