"""From a reduction's node to its value: what is folded, over which factors."""

from __future__ import annotations

import math

from ..errors import Refused
from ..graph.dtypes import register_dtype
from ..graph.graph import Node, Ref
from ..graph.op import Op
from ..graph.ops import ALL, ANY, SUM, Reduction, bound
from ..values.axes import Factors
from ..values.values import Dims, Fold, Windows, conversion
from .combine import combined
from .views import Reader, TracedValue, TraceSteps
from .windows import dims_of


def reduced(reader: Reader, node: Node, row: Reduction, windows: Windows) -> TraceSteps:
    """A reduction, which is read whole."""
    if any(windows):
        raise Refused("window", f"{node.name} is a reduction read through a slice")
    named, dtype = bound(node), reader.type(node.id).dtype
    source = named["self"]
    assert isinstance(source, Ref)
    shape = reader.shape(source.node)
    value, dims = yield source.node, (None,) * len(shape)
    over = dims_of(named.get("dim"), len(shape))
    if 0 in shape:  # A view may have cut away the axis of no length before it was a factor.
        raise Refused("empty", f"{node.name} reduces an empty tensor")
    logical = row.monoid in (ANY, ALL)
    if logical and reader.values[value].dtype != "bool":
        # What is not 0 is true: an int32, in which bools are folded, would lose a fraction.
        value, _ = reader.add(conversion(reader.values[value], "bool"), dims, "bool", node)
    kept = tuple(d for i, d in enumerate(dims) if i not in over)
    if named.get("keepdim"):
        kept = tuple(() if i in over else d for i, d in enumerate(dims))
    factors = tuple(f for i in sorted(over) for f in dims[i])
    if row.monoid == SUM and not row.mean:
        return _sum(reader, node, value, factors, kept)
    fold = Fold(row.monoid, value, factors, row.mean)
    if not logical:
        return reader.add(fold, kept, dtype, node)
    found, _ = reader.add(fold, kept, "bool", node)
    if dtype == "bool":
        return found, kept
    kind = conversion(reader.values[found], dtype)  # of uint8 a uint8
    return reader.add(kind, kept, dtype, node)


def _sum(reader: Reader, node: Node, value: int, factors: Factors, kept: Dims) -> TracedValue:
    """A sum; along dimensions that only repeat the value it is a product with their size."""
    dtype, resolve = register_dtype(reader.type(node.id).dtype), reader.space.resolve
    factors = resolve(factors)
    own = {f for dim in reader.values[value].dims for f in resolve(dim)}
    again = tuple(f for f in factors if f not in own)
    rest = tuple(f for f in factors if f in own)
    if not again:
        return reader.add(Fold(SUM, value, factors), kept, dtype, node)
    count = math.prod(reader.space.extent(f) for f in again)
    found = (value, kept)
    if rest:
        found = reader.add(Fold(SUM, value, rest), kept, dtype, node)
    return combined(reader, Op.MUL, found, count, (), node)
