"""Registers of convolutions, straight-line work with very many loads: those are taken in one after
the other, so that not all are under way together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..graph.dtypes import itemsize
from ..graph.op import Op
from ..nests.linear_forms import Term
from ..nests.nest import Nest
from ..tiles.instructions import EpilogueSubtiles, TileLoad, TileLoop, TileRepeat, TileStore
from ..tiles.passes.repeat_rows import repeat_rows
from ..tiles.program import TileProgram, by_body
from ..values.values import Compute

_TAPS = 8
"""From so many taps on."""
# Of 60 depthwise convolutions of 3 x 3 to 7 x 7 that Triton 3.6 compiled for an H200, a dozen that
# 3.7 compiled for sm_90: loads under way beside what is alive, by whether neighbours are apart.
_BASE, _AHEAD, _AHEAD_UNROLLED = 13.0, 7, 16


def registers(
    program: TileProgram, words: Callable[[int], float], elements: Sequence[float]
) -> float | None:
    """Registers of a thread; None of other work. words: that a value takes as it is loaded;
    elements: of a value in every thread."""
    fullest = _fullest(program)
    if fullest is None:
        return None
    values = program.nest.values
    alive = sum(elements[v] * max(1.0, itemsize(values[v].dtype) / 4) * n for v, n in fullest)
    unrolled = any(output.part is not None for output in program.nest.outputs)
    ahead = _AHEAD_UNROLLED if unrolled else _AHEAD
    if repeated_loads(program):
        ahead = 0  # A turn loads little: 7 of 12 such kernels are within 9 registers of this.
    return _BASE + alive + ahead * max(map(words, program.nest.loads))


@by_body
def repeated_loads(program: TileProgram) -> frozenset[tuple[Term, ...]]:
    """The terms of the offsets of loads that a loop over the rows of a filter has."""
    if all(output.part is None for output in program.nest.outputs):
        return frozenset()
    repeats = (each for each in repeat_rows(program).body if isinstance(each, TileRepeat))
    own = (step for each in repeats for step in each.body if isinstance(step, TileLoad))
    return frozenset(load.access.offset.terms for load in own)


@by_body
def _fullest(program: TileProgram) -> tuple[tuple[int, int], ...] | None:
    """The values that are alive where most are, in the order of the program: of each kind of tile
    one, and how many."""
    nest, body = program.nest, program.body
    if any(isinstance(each, (TileLoop, EpilogueSubtiles)) for each in body):
        return None
    order = [nest.outputs[i.output].value if isinstance(i, TileStore) else i.value for i in body]  # type: ignore[union-attr]
    computed = (nest.values[v].kind for v in order)
    if sum(isinstance(kind, Compute) and kind.op is Op.FMA for kind in computed) < _TAPS:
        return None
    last: dict[int, int] = {}
    for place, (each, value) in enumerate(zip(body, order, strict=True)):
        reads = (value,) if isinstance(each, TileStore) else nest.values[value].reads
        last.update(dict.fromkeys(reads, place))
    alive: Counter[object] = Counter()
    kinds: dict[object, int] = {}
    ends: dict[int, list[object]] = {}
    most: Counter[object] = Counter()
    for place, (each, value) in enumerate(zip(body, order, strict=True)):
        for kind in ends.pop(place, ()):  # what is read for the last time makes room
            alive[kind] -= 1
        if not isinstance(each, TileStore) and value in last:
            kind = _kind(nest, value)
            kinds.setdefault(kind, value)
            alive[kind] += 1
            ends.setdefault(last[value], []).append(kind)
        if alive.total() > most.total():
            most = alive.copy()
    return tuple((kinds[kind], count) for kind, count in most.items() if count)


def _kind(nest: Nest, value: int) -> object:
    """What tells values apart that take more registers than others."""
    return nest.live[value], nest.values[value].dtype
