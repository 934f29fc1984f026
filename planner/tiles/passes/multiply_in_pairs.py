"""Multiply numbers of 16 bits two at a time.

The product of two numbers of bfloat16, or of float16, is exact in float32. Where it is stored as
their type it is what one instruction makes of two such products, whose numbers are neither widened
nor rounded one by one. So it is in the RMS norms that people have: the row, rounded, times its
weight. Of programs of 32 warps over rows of 65,536 numbers it takes 137 us on an H200, not 146.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.graph import Ref
from ...graph.op import Op
from ...memo import by_identity
from ...nests.nest import Nest
from ...values.values import Compute, Load
from ..blocks import Blocks
from ..instructions import Instruction, Loops, TileCompute
from ..program import TileProgram, rewritten

_ROUNDING = {Op.AS_BFLOAT16: "bfloat16", Op.AS_FLOAT16: "float16"}


def multiply_in_pairs(program: TileProgram) -> TileProgram:
    """Of products that are stored and that nothing else reads; what is rounded for them alone is
    rounded two at a time, too. Not beside an mma, whose tiles may be cut in parts."""
    narrow = {} if program.mmas else _narrow(program.nest)
    if not narrow:
        return program

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, TileCompute) and each.value in narrow:
            return replace(each, narrow=narrow[each.value])
        return each

    return rewritten(program, change)


@by_identity(64)
def _narrow(nest: Nest) -> dict[int, str]:
    """The values that are computed in a type of 16 bits, and which."""
    stored: dict[int, set[str]] = {}
    for output in nest.outputs:
        stored.setdefault(output.value, set()).add(output.type.dtype)
    readers: dict[int, set[int]] = {}
    for value in nest.values:
        for read in value.reads:
            readers.setdefault(read, set()).add(value.id)
    found: dict[int, str] = {}
    for number, dtypes in stored.items():
        kind = nest.values[number].kind
        if not isinstance(kind, Compute) or (kind.op, kind.working) != (Op.MUL, "float32"):
            continue
        if number not in readers and len(dtypes) == 1:
            types = {_narrow_type(nest, operand) for _, operand in kind.operands}
            if types == dtypes:
                found[number] = dtypes.pop()
    rounded = {read for number in found for read in nest.values[number].reads}
    for number in rounded:
        kind = nest.values[number].kind
        if not isinstance(kind, Compute) or kind.op not in _ROUNDING:
            continue
        if readers[number] <= found.keys() and number not in stored:
            found[number] = _ROUNDING[kind.op]
    return found


def _narrow_type(nest: Nest, operand: object) -> str | None:
    """The type of 16 bits of which an operand is, though it lies in 32."""
    if not isinstance(operand, Ref):
        return None
    match nest.values[operand.node].kind:
        case Load() if operand.node in nest.loads:
            dtype = nest.loads[operand.node].type.dtype
            return dtype if dtype in _ROUNDING.values() else None
        case Compute(op=op):
            return _ROUNDING.get(op)
    return None
