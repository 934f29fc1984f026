"""Groups that one call of a vendor's library computes too, as graphs that make that call.

What a group computes is read off its values, not off the operations that the user chose: scores
are any multiple of one contraction, a softmax is the quotient of two sums that share their
exponentials, a mask is causal where it keeps exactly the keys up to the query's own index.
Roundings on the way are not looked at: what passes is decided where numbers are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Refused
from ..graph.graph import Graph, Ref
from ..values.calls import Calls
from ..values.rewriting import Rewriting, row_of
from ..values.trace import trace
from ..values.values import Compute, Fold, Values
from .attention import attention
from .operands import Other, dtype_of, operand, plain_sum, uncopied


@dataclass(frozen=True, slots=True)
class Equal:
    """`graph` has the inputs of the group and gives its output by a vendor's call. The strides
    of the output are up to the kernel that the vendor picks."""

    name: str
    graph: Graph


def equals(group: Graph) -> tuple[Equal, ...]:
    """The vendor calls that compute what the group computes."""
    if len(group.outputs) != 1:
        return ()
    try:
        values = trace(group)
    except Refused:
        return ()
    found = []
    for name, made in (("attention", attention), ("linear_relu", linear_relu)):
        try:
            found.append(Equal(name, made(group, values)))
        except Other:
            continue
    return tuple(found)


def equal(group: Graph, name: str) -> Graph | None:
    """The graph of the vendor's call of that name."""
    return next((e.graph for e in equals(group) if e.name == name), None)


def linear_relu(group: Graph, values: Values) -> Graph:
    """relu(x @ w + bias) by one call."""
    work = Rewriting(values, frozenset())
    total = uncopied(work, _rectified(work, values.outputs[0].value)).kind
    if not isinstance(total, Compute) or total.law != "add":
        raise Other("no bias is added")
    named = dict(total.operands)
    if work.constant(named.get("alpha", 1)) != 1:
        raise Other("the bias is scaled")
    sides = [a.node for a in (named["self"], named["other"]) if isinstance(a, Ref)]
    folds = [s for s in sides if isinstance(uncopied(work, s).kind, Fold)]
    if len(sides) != 2 or len(folds) != 1:
        raise Other("not a product and a bias")
    product = plain_sum(uncopied(work, folds[0]))
    if product.times is None:
        raise Other("a sum that is no product")
    both = [operand(work, side, product.operand) for side in (product.source, product.times)]
    added = operand(work, next(s for s in sides if s not in folds), product.operand)
    x, w = sorted(both, key=lambda side: bool(side.varies & added.varies))
    if any(o.scale != 1 for o in (x, w, added)):
        raise Other("an operand is scaled")
    summed = product.reduced
    rows, columns = x.varies - set(summed), w.varies - set(summed)
    order = [f for dim in values.outputs[0].dims for f in dim]
    if rows & columns or added.varies != columns or set(order) != rows | columns:
        raise Other("not the product of two matrices and a row")
    if not set(summed) <= x.varies & w.varies:
        raise Other("an operand is repeated")
    m, n = (tuple(f for f in order if f in own) for own in (rows, columns))
    dtype = dtype_of((x, w, added), values.outputs[0].type.dtype)
    calls = Calls(group, values)
    layouts = ((added, (n,)), (x, (m, summed)), (w, (summed, n)))
    given = [calls.operand(o.load, dtype, axes) for o, axes in layouts]
    found = calls.call("_addmm_activation.default", *given)
    return calls.finish(calls.result(found, (m, n), values.outputs[0]))


def _rectified(work: Rewriting, value: int) -> int:
    """The value of which another is the positive part."""
    own = uncopied(work, value)
    if isinstance(own.kind, Compute) and own.kind.expr in _POSITIVE:
        named = dict(own.kind.operands)
        moving = [a.node for a in named.values() if isinstance(a, Ref) and work.constant(a) is None]
        limits = [work.constant(a) for a in named.values() if a is not None]
        if len(moving) == 1 and not any(limits) and named.get("max") is None:
            return moving[0]
    raise Other(f"{own.origin} is no positive part")


_POSITIVE = tuple(
    row_of(f"{name}.default").expr for name in ("relu", "clamp", "clamp_min", "maximum")
)
"""Of operations that give the positive part, where their lower limit is 0."""
