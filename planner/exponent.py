"""exp(a - b), where b varies less than a, as one multiply-add and a power of two: the special
function unit knows only powers of two, so that every exponential begins with a product anyway."""

from __future__ import annotations

from dataclasses import replace

from .graph import Ref
from .values import Compute, Value, Values

_QUICK = "tl.exp({self})"
_FUSED = "tl.exp2({self} * {scale} + {other} * {negative})"
_LOG2E = 1.4426950408889634


def fused_exponents(values: Values) -> Values:
    """The same values; quick exponentials of differences by one multiply-add an element."""
    depends = values.dependence()

    def fused(value: Value) -> Value:
        kind = value.kind
        if not isinstance(kind, Compute) or kind.expr != _QUICK or kind.working != "float32":
            return value
        argument = dict(kind.operands)["self"]
        inner = values.values[argument.node].kind if isinstance(argument, Ref) else None
        if not isinstance(inner, Compute) or inner.law != "sub" or inner.working != "float32":
            return value
        named = dict(inner.operands)
        left, right = named["self"], named["other"]
        if named.get("alpha", 1) != 1 or not isinstance(left, Ref) or not isinstance(right, Ref):
            return value
        if not depends[right.node] < depends[left.node]:
            return value
        operands = (
            ("self", left),
            ("other", right),
            ("scale", _LOG2E),
            ("negative", -_LOG2E),
        )
        return replace(value, kind=replace(kind, expr=_FUSED, operands=operands))

    return replace(values, values=tuple(map(fused, values.values)))
