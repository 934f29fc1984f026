"""Choose the accuracy of the exponential that corrects a state under way."""

from __future__ import annotations

from dataclasses import replace

from ...graph.dtypes import itemsize
from ...graph.op import Accuracy, Op
from ...nests.nest import Nest
from ...values.values import Compute
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Mma, Reduce
from ..program import TileProgram, rewritten


def choose_correction_accuracy(program: TileProgram) -> TileProgram:
    """As quick as the exponential that is summed; where that is none, quick beside an mma and where
    no output is wider than 16 bits."""
    nest = program.nest
    if not nest.corrections:
        return program
    is_narrow = all(itemsize(out.type.dtype) <= 2 for out in nest.outputs)
    usual = Accuracy.QUICK if is_narrow or program.mmas else Accuracy.EXACT

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if not isinstance(each, (Mma, Reduce)) or each.correction is None:
            return each
        own = _of_summed(nest, each.value)
        return replace(each, accuracy=usual if own is Accuracy.EXACT else own)

    return rewritten(program, change)


def _of_summed(nest: Nest, value: int) -> Accuracy:
    """That of the exponential that a sum takes in, or the sum of its weights."""
    fold = nest.fold(value)
    if fold.weight is not None:
        fold = nest.fold(fold.weight)
    kind = nest.values[fold.source].kind
    if isinstance(kind, Compute) and kind.op is Op.EXP:
        return kind.accuracy
    return Accuracy.EXACT
