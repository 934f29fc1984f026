"""Operands of a vendor's call: tensors as they go into a product of a group's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..graph.dtypes import FLOATS, MATMUL_DTYPES, itemsize
from ..graph.graph import Ref
from ..graph.op import Op
from ..graph.ops import SUM
from ..nests.linear_forms import load_form
from ..stream.rewriting import Rewriting
from ..values.values import Compute, Fold, Load, Value


class Other(Exception):
    """The group computes something else than a call."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that goes into a product: its load, the strides of the factors on which it depends,
    the number it is multiplied by, and the narrower of its dtype and the product's."""

    load: Load
    strides: Mapping[int, int]
    scale: float
    dtype: str

    @property
    def varies(self) -> frozenset[int]:
        return frozenset(self.strides)


def operand(work: Rewriting, value: int, wanted: str, scale: float = 1.0) -> Operand:
    """The operand that a value is for a product of dtype `wanted`."""
    own = work.values[value]
    if not isinstance(own.kind, Load):
        source, factor = scaled(work, own)
        return operand(work, source, wanted, scale * factor)
    if own.kind.dtype not in MATMUL_DTYPES:
        raise Other(f"{own.origin} is {own.kind.dtype}")
    if own.kind.at or any(d.limit is not None or d.step < 1 for d in own.kind.dims):
        raise Other(f"{own.origin} is no plain tensor")
    dtype = min(own.kind.dtype, wanted, key=itemsize)
    return Operand(own.kind, load_form(own.kind, work.given), scale, dtype)


def scaled(work: Rewriting, own: Value) -> tuple[int, float]:
    """The value that another is a multiple of, and the number; a conversion counts as 1."""
    if isinstance(own.kind, Compute) and own.dtype in FLOATS:
        named = dict(own.kind.operands)
        left, right = named.get("self"), named.get("other")
        match own.kind.op:
            case Op.CONVERT | Op.NEG:
                ((_, only),) = own.kind.operands
                if isinstance(only, Ref):
                    return only.node, -1.0 if own.kind.op is Op.NEG else 1.0
            case Op.MUL:
                for one, other in ((left, right), (right, left)):
                    number = work.constant(other)
                    if isinstance(one, Ref) and number is not None:
                        return one.node, number
            case Op.DIV if isinstance(left, Ref):
                number = work.constant(right)
                if number:
                    return left.node, 1 / number
    raise Other(f"{own.origin} is no multiple of a tensor")


def uncopied(work: Rewriting, value: int) -> Value:
    """The value behind conversions between floats."""
    own = work.values[value]
    if isinstance(own.kind, Compute) and own.kind.op is Op.CONVERT:
        ((_, only),) = own.kind.operands
        if isinstance(only, Ref) and work.values[only.node].dtype in FLOATS:
            return uncopied(work, only.node)
    return own


def plain_sum(own: Value) -> Fold:
    """The kind of a value that is a plain sum."""
    if not isinstance(own.kind, Fold) or own.kind.monoid != SUM or own.kind.mean:
        raise Other(f"{own.origin} is no sum")
    return own.kind


def dtype_of(operands: Sequence[Operand], result: str) -> str:
    """The one dtype of a call's operands and of its result."""
    found = {o.dtype for o in operands}
    if len(found) != 1:
        raise Other("the operands have several dtypes")
    (only,) = found
    if itemsize(result) > itemsize(only):
        raise Other("the result is wider than the operands")
    return only
