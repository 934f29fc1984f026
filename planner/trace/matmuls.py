"""From a matmul's node to its values: a fold over products, then the scale and the bias."""

from __future__ import annotations

from ..errors import Refused
from ..graph.graph import Node, Ref
from ..graph.op import Op
from ..graph.ops import SUM, Contraction, bound
from ..values.values import Fold, Windows
from .combine import combined
from .precision import is_cast, product_dtypes
from .views import Reader, TraceSteps


def matmul(reader: Reader, node: Node, contraction: Contraction, windows: Windows) -> TraceSteps:
    """Left [..., m, k] times right [..., k, n], summed over k; then scaled, and the bias."""
    named, shape = bound(node), reader.shape(node.id)
    left, right = named[contraction.left], named[contraction.right]
    assert isinstance(left, Ref)
    assert isinstance(right, Ref)
    batch = windows[:-2]
    a, a_dims = yield left.node, (*batch, windows[-2], None)
    b, b_dims = yield right.node, (*batch, None, windows[-1])
    for mine, other in zip(a_dims[:-2], b_dims[:-2], strict=True):
        if mine and other:
            reader.space.unify(mine, other)
    if a_dims[-1] and b_dims[-2]:
        reader.space.unify(a_dims[-1], b_dims[-2])
    reduced = a_dims[-1] or b_dims[-2]
    if reader.shape(left.node)[-1] == 0:
        raise Refused("empty", f"{node.name} contracts an axis of length 0")
    lead = tuple(x or y for x, y in zip(a_dims[:-2], b_dims[:-2], strict=True))
    dims = (*lead, a_dims[-2], b_dims[-1])
    operand, precision = product_dtypes(reader.group, node, left.node, right.node)
    cast = any(is_cast(reader.group, side.node) for side in (left, right))
    kind = Fold(
        SUM,
        a,
        reduced,
        times=b,
        operand=operand,
        precision=precision,
        unrounded=reader.group.numerics == "fast" and not cast,
    )
    result = reader.add(kind, dims, reader.type(node.id).dtype, node)
    if not contraction.bias:
        return result
    bias = named[contraction.bias]
    assert isinstance(bias, Ref)
    alpha, beta = named.get("alpha", 1), named.get("beta", 1)
    if alpha != 1:
        result = combined(reader, Op.MUL, result, alpha, (), node)
    if beta == 0:
        return result
    added = yield from reader.operand(bias.node, shape, windows)
    if beta != 1:
        added = combined(reader, Op.MUL, added, beta, (), node)
    return combined(reader, Op.ADD, result, Ref(added[0]), added[1], node)
