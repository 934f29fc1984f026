"""Fill a held tile once with what a maximum takes beyond the row, where a sum of exponentials needs
no mask then."""

from __future__ import annotations

from dataclasses import replace

from ...graph.graph import Arg, Ref
from ...graph.op import Op
from ...graph.ops import MAX, SUM
from ...graph.sizes import varies
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...values.values import Compute, Fold
from ..blocks import Blocks
from ..instructions import Instruction, Loops, Reduce
from ..program import TileProgram


def fill_beyond_rows(program: TileProgram) -> TileProgram:
    """Of rows that are held and whose length varies, the compiler knows no lane to lie in the row:
    each mask is two comparisons and a selection for every element. A softmax has two, for its
    maximum and for its sum. Where the elements beyond the row are -inf from the maximum on, those
    of the exponentials are 0, and the sum has no mask. (Of a row of -inf alone the exponentials are
    NaN there, as they are in the row.)"""
    nest = program.nest
    held = {v for v, each in program.reductions.items() if _is_plain(nest, program.blocks, each)}
    filled = {v: nest.fold(v).source for v in held if nest.fold(v).monoid == MAX}
    sums = {v for v in held if nest.fold(v).monoid == SUM}
    shifted = {v: _shifted_by(nest, nest.fold(v).source) for v in sums}
    bare = {v: by for v, by in shifted.items() if by in filled}
    if not bare:
        return program

    def change(each: Instruction, loops: Loops, _: Blocks) -> Instruction:
        if isinstance(each, Reduce) and each.value in bare:
            return replace(each, beyond="neutral")
        if isinstance(each, Reduce) and each.value in bare.values():
            return replace(each, beyond="filled")
        return each

    return program.deciding("fill beyond rows", change)


def _is_plain(nest: Nest, blocks: Blocks, each: object) -> bool:
    """Whether a tile in float32 is reduced, alone and at once, along a held axis that varies."""
    if not isinstance(each, Reduce) or each.carried or each.joined:
        return False
    fold = nest.fold(each.value)
    axes, source = nest.reduced(fold), nest.values[fold.source]
    return (
        len(axes) == 1
        and nest.axes[axes[0]].role is Role.HELD
        and varies(nest.axes[axes[0]].extent)
        and axes[0] in blocks.dims(nest.live[fold.source])
        and fold.times is None
        and not fold.mean
        and source.dtype == nest.values[each.value].dtype == "float32"
    )


def _shifted_by(nest: Nest, value: int) -> int | None:
    """The maximum m of x where the value is exp(x - m); else None."""
    power = nest.values[value].kind
    if not isinstance(power, Compute) or power.op not in (Op.EXP, Op.EXP2):
        return None
    apart = _operand(nest, power, "self")
    if not isinstance(apart, Compute) or apart.op is not Op.SUB or apart.working != "float32":
        return None
    operands: dict[str, Arg] = dict(apart.operands)
    one, other = operands.get("self"), operands.get("other")
    if not isinstance(one, Ref) or not isinstance(other, Ref) or operands.get("alpha", 1) != 1:
        return None
    most = nest.values[other.node].kind
    is_own = isinstance(most, Fold) and most.monoid == MAX and most.source == one.node
    return other.node if is_own else None


def _operand(nest: Nest, compute: Compute, name: str) -> object:
    operand = dict(compute.operands).get(name)
    return nest.values[operand.node].kind if isinstance(operand, Ref) else None
