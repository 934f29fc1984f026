"""Select the contractions that are mmas; the others stay sums of products."""

from __future__ import annotations

from ...graph.dtypes import MATMUL_DTYPES, NARROW
from ...nests.nest import Nest
from ...values.values import Fold
from ..blocks import LEAST_COLUMNS, LEAST_MMA, Blocks
from ..instructions import Instruction, Loops, Mma, Reduce
from ..program import TileProgram

_Axes = tuple[int, int, int]
"""m, n and k of an mma."""


def select_mma(program: TileProgram) -> TileProgram:
    """An `Mma` for every contraction with one dimension of results on each side, and one that is
    summed, none shorter than the hardware multiplies."""
    nest, blocks = program.nest, program.blocks
    chosen = {c: axes for c in nest.contractions if (axes := _axes(nest, blocks, c))}
    if not chosen:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, Reduce) or each.value not in chosen:
            return each
        fold = nest.fold(each.value)
        assert fold.times is not None
        ieee = fold.operand == "float32" and fold.precision == "ieee"
        return Mma(
            each.value,
            fold.source,
            fold.times,
            *chosen[each.value],
            carried=each.carried,
            ieee=ieee,
            correction=each.correction,
        )

    return program.deciding(tuple(chosen.items()), change)


def _axes(nest: Nest, blocks: Blocks, contraction: int) -> _Axes | None:
    fold = nest.fold(contraction)
    if fold.times is None or fold.operand not in MATMUL_DTYPES:
        return None
    left, right = (set(blocks.dims(nest.live[v])) for v in (fold.source, fold.times))
    k = set(blocks.dims(nest.reduced(fold)))
    m, n = left - right, right - left
    if left & right != k or [len(m), len(n), len(k)] != [1, 1, 1]:
        return None
    axes = m.pop(), n.pop(), k.pop()
    return axes if all(blocks.sizes[a] >= _least(nest, a, fold) for a in axes) else None


def _least(nest: Nest, axis: int, fold: Fold) -> int:
    """The least block of an axis of an mma: a few rows may be its columns (see `swap_mmas`)."""
    few = fold.operand in NARROW and axis not in nest.reduced(fold)
    return LEAST_COLUMNS if few and nest.axes[axis].extent <= LEAST_COLUMNS else LEAST_MMA
