"""Select the sums that are mmas with columns of ones.

A sum of what an mma takes in, 16-bit tiles as they lie in memory, along the same axis and in the
same loop: with it on the tensor cores too, the tiles need not pass the registers.
"""

from __future__ import annotations

from collections import defaultdict

from ...graph.dtypes import itemsize
from ...graph.ops import SUM
from ...nests.nest import Nest
from ...values.values import Fold, Load
from ..blocks import Blocks
from ..instructions import WARPGROUP, Instruction, Loops, Mma, OnesMma, Reduce
from ..program import TileProgram


def select_ones_mma(program: TileProgram) -> TileProgram:
    """An `OnesMma` for the sums beside a single mma that are results of 16 bits: tensor cores add
    less exactly than float32 does. Both are of warpgroups, or neither is: they read the same tile
    (see `machine_code.pipeline_races`)."""
    sums = _sums(program)
    if not sums:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, Reduce) or each.value not in sums:
            return each
        fold = program.nest.fold(each.value)
        (k,) = program.blocks.dims(program.nest.reduced(fold))
        return OnesMma(each.value, fold.source, k, each.carried)

    return program.deciding(sums, change)


def _sums(program: TileProgram) -> frozenset[int]:
    nest, blocks = program.nest, program.blocks
    if len(program.mmas) != 1:
        return frozenset()
    (mma,) = program.mmas.values()
    places, operand = _places(program), nest.fold(mma.value).operand
    found = {
        value
        for value, each in program.reductions.items()
        if isinstance(each, Reduce)
        and _is_plain_sum(nest, value)
        and nest.fold(value).source in (mma.source, mma.times)
        and blocks.dims(nest.reduced(nest.fold(value))) == (mma.k,)
        and places[value] == places[mma.value]
        and _has_rows_alike(nest, blocks, value, mma)
    }
    shown = {out.value for out in nest.outputs}
    for load in (mma.source, mma.times):
        kind = nest.values[load].kind
        readers = {v.id for v in nest.values if load in v.reads}
        as_it_is = isinstance(kind, Load) and kind.dtype == operand != "float32"
        if not as_it_is or load in shown or readers - found - {mma.value}:
            found -= readers  # The tile passes the registers anyway, or would be rounded.
    return frozenset(found)


def _is_plain_sum(nest: Nest, value: int) -> bool:
    """Whether a value is a sum in float32 that nothing reads, stored in 16 bits."""
    kind = nest.values[value].kind
    if not isinstance(kind, Fold) or kind.monoid != SUM:
        return False
    if nest.values[value].dtype != "float32" or kind.times is not None or kind.about is not None:
        return False
    stored = [itemsize(out.type.dtype) for out in nest.outputs if out.value == value]
    is_read = any(value in other.reads for other in nest.values)
    return value not in nest.corrections and set(stored) == {2} and not is_read


def has_warpgroup_rows(blocks: Blocks, axis: int) -> bool:
    """Whether a warpgroup can multiply rows along an axis."""
    return blocks.sizes[axis] % (16 * WARPGROUP) == 0


def _has_rows_alike(nest: Nest, blocks: Blocks, value: int, mma: Mma) -> bool:
    """Whether the rows that a sum leaves suit a warpgroup as those of the product do."""
    left = blocks.dims(nest.live[value])
    own = has_warpgroup_rows(blocks, mma.rows)
    return all(has_warpgroup_rows(blocks, a) == own for a in left)


def _places(program: TileProgram) -> dict[int, list[tuple[int, ...]]]:
    """The loops around each place where a value is computed."""
    found: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for each, loops in program.evaluations():
        found[each.value].append(tuple(id(loop) for loop in loops))
    return found
