"""The logarithm of a softmax, without a logarithm of each element.

    p = exp(x - max(x)) / s, s = sum(exp(x - max(x))):   log(p) = x - max(x) - log(s).

Entropies and divergences take it of probabilities that they have computed. Neither term is above 0,
so that no digit is lost. Where p is 0 it is -inf, as in eager mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph.graph import Arg, Ref
from ..graph.op import Op
from ..values.values import Compute, Value, compute

Step = tuple[int, Compute]
"""A new value, and the one whose shape it has."""


def logarithm_of_softmax(values: Sequence[Value], argument: Arg) -> tuple[Step, ...]:
    """What is computed in place of the logarithm of a softmax in float32, one value after the
    other, which have the next numbers; nothing where it is not seen in full."""
    softmax = _unrounded(values, argument)
    found = None if softmax is None else _exponent_and_sum(values, softmax)
    if softmax is None or found is None:
        return ()
    exponent, total = found
    log, apart, is_zero = (Ref(len(values) + step) for step in range(3))
    return (
        (total, compute(Op.LOG, "float32", self=Ref(total))),
        (softmax, compute(Op.SUB, "float32", self=Ref(exponent), other=log)),
        (softmax, compute(Op.EQ, "float32", self=Ref(softmax), other=0)),
        (softmax, compute(Op.WHERE, "float32", condition=is_zero, self=-math.inf, other=apart)),
    )


def _unrounded(values: Sequence[Value], argument: Arg) -> int | None:
    """What is read, before casts that round nothing."""
    while isinstance(argument, Ref):
        kind = values[argument.node].kind
        if not isinstance(kind, Compute) or kind.op is not Op.CONVERT:
            return argument.node
        argument = dict(kind.operands)["self"]
    return None


def _exponent_and_sum(values: Sequence[Value], softmax: int) -> tuple[int, int] | None:
    """What was exponentiated for a softmax, and the sum of all."""
    match values[softmax].kind:
        case Compute(op=Op.DIV, operands=((_, Ref(node=weight)), (_, Ref(node=total)))):
            pass
        case Compute(op=Op.MUL, operands=((_, Ref(node=weight)), (_, Ref(node=inverse)))):
            inverted = values[inverse].kind
            if not isinstance(inverted, Compute) or inverted.op is not Op.RECIPROCAL:
                return None
            ((_, divisor),) = inverted.operands
            if not isinstance(divisor, Ref):
                return None
            total = divisor.node
        case _:
            return None
    match values[weight].kind:
        case Compute(op=Op.EXP, operands=((_, Ref(node=exponent)),)):
            return exponent, total
    return None
