"""Let exponentials that a loop only sums be 0 below 2**-126.

A softmax sums its exponentials in one loop and divides them in another. Where the largest of those
that are summed is 1, one below 2**-126 is nothing beside it; the instructions that keep it are half
of an exponential. Those that are divided keep it.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.graph import Ref
from ...graph.op import Accuracy, Op
from ...graph.ops import MAX, SUM
from ...graph.texts import has
from ...nests.nest import Nest
from ...values.values import Compute, Fold
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Reduce, SelectedLoad, TileCompute, TileLoad, TileLoop
from ..program import TileProgram, rewritten


def flush_summed_exponentials(program: TileProgram) -> TileProgram:
    """Of what lies below a maximum that the sum follows; its corrections flush, too."""
    loops = [each for each in program.body if isinstance(each, TileLoop)]
    found = {id(loop): flushed for loop in loops if (flushed := _flushed(program.nest, loop))}
    if not found:
        return program

    def change(each: Instruction, loops: Loops, _: Blocks) -> Instruction:
        flushed = found.get(id(loops[0])) if loops else None
        if flushed is None:
            return each
        if isinstance(each, TileCompute) and each.value in flushed:
            return replace(each, flushes=True)
        if isinstance(each, Reduce) and flushed.intersection(program.nest.values[each.value].reads):
            return replace(each, accuracy=Accuracy.FLUSHING)
        return each

    return rewritten(program, change)


def _flushed(nest: Nest, loop: TileLoop) -> frozenset[int]:
    """The exponentials of a loop that nothing but such sums reads in it."""
    known = (TileLoad, SelectedLoad, TileCompute, Reduce)
    if not all(isinstance(each, known) for each in loop.body):
        return frozenset()
    evaluated = [each for each in loop.body if isinstance(each, (TileCompute, Reduce))]
    found = frozenset(
        each.value
        for each in evaluated
        if isinstance(each, TileCompute) and _is_below_maximum(nest, each.value)
    )
    for each in evaluated:
        if not (isinstance(each, Reduce) and _follows(nest, each)):
            found -= set(nest.values[each.value].reads)
    return found


def _is_below_maximum(nest: Nest, value: int) -> bool:
    """Whether a value is the exponential of another less its own maximum."""
    kind = nest.values[value].kind
    if not isinstance(kind, Compute) or kind.op is not Op.EXP or kind.working != "float32":
        return False
    if kind.accuracy is Accuracy.EXACT or not has(Op.EXP, Accuracy.FLUSHING):
        return False
    (exponent,) = (nest.values[read].kind for read in nest.values[value].reads)
    match exponent:
        case Compute(op=Op.SUB, operands=((_, Ref(node=source)), (_, Ref(node=largest)))):
            fold = nest.values[largest].kind
            return isinstance(fold, Fold) and fold.source == source and fold.monoid == MAX
    return False


def _follows(nest: Nest, each: Reduce) -> bool:
    """Whether a sum is under way that follows an extremum."""
    return each.carried and each.correction is not None and nest.fold(each.value).monoid == SUM
