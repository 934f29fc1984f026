"""Round a product before something is subtracted from it.

These are products in float32 of which a difference is taken, one side of it made of a fold, or a
sum, both sides of it made of folds, as in the gradients of norms and softmax. They vanish where a
row has one element, or equal ones: joined to one instruction, product and difference would leave
the product's rounding error. So does the difference of a product and itself (x * c - x * c), which
is 0, and of a mean of squares and the square of the mean, which another kernel may have computed: a
variance, 0 of one element.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.graph import Ref
from ...graph.op import Op
from ...memo import by_identity
from ...nests.nest import Nest
from ...values import values
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileCompute
from ..program import TileProgram, rewritten


def round_cancelled_products(program: TileProgram) -> TileProgram:
    """Not beside an mma, whose own sums are less exact."""
    cancelled = frozenset() if program.mmas else _cancelled(program.nest)
    if not cancelled:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, TileCompute) and each.value in cancelled:
            return replace(each, rounded=True)
        return each

    return rewritten(program, change)


@by_identity(64)
def _cancelled(nest: Nest) -> frozenset[int]:
    folded: set[int] = set()
    found: set[int] = set()
    for value in nest.values:
        kind = value.kind
        if isinstance(kind, values.Fold) or not folded.isdisjoint(value.reads):
            folded.add(value.id)
        made = folded.intersection(value.reads)
        op = kind.op if isinstance(kind, values.Compute) else None
        if (op is Op.SUB and made) or (op is Op.ADD and len(made) == len(value.reads) == 2):
            sides = [_behind(nest, v) for v in value.reads]
            found.update(v.id for v in sides if _is_product(v) and _reads_only(v))
        elif op is Op.SUB and len(value.reads) in (1, 2):
            sides = [_behind(nest, v) for v in value.reads]
            if all(map(_is_product, sides)) and len({v.kind for v in sides}) == 1:
                found.update(v.id for v in sides)
            elif len(sides) == 2:
                found.update(v.id for v in sides if _is_product(v) and _is_square(v))
    return frozenset(found)


def _behind(nest: Nest, number: int) -> values.Value:
    """The value behind conversions and folds of single elements."""
    value = nest.values[number]
    kind = value.kind
    if isinstance(kind, values.Compute) and kind.op is Op.CONVERT:
        return _behind(nest, value.reads[0])
    if isinstance(kind, values.Fold) and kind.times is None and not nest.reduced(kind):
        return _behind(nest, kind.source)
    return value


def _is_product(value: values.Value) -> bool:
    kind = value.kind
    return isinstance(kind, values.Compute) and (kind.op, kind.working) == (Op.MUL, "float32")


def _is_square(value: values.Value) -> bool:
    assert isinstance(value.kind, values.Compute)
    left, right = (operand for _, operand in value.kind.operands)
    return isinstance(left, Ref) and left == right


def _reads_only(value: values.Value) -> bool:
    """Whether no operand is a number."""
    assert isinstance(value.kind, values.Compute)
    return all(isinstance(operand, Ref) for _, operand in value.kind.operands)
