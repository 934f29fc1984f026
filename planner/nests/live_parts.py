"""Parts of a loop over the grid that a mask leaves empty, as the kernel that combines them has it.

Keys beyond a position that lies in a tensor count nothing, and the parts of a reduction that have
none but such give what no element gives. Who combines the parts can tell which those are: it reads
the position, and no others' results. Their programs then store nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..graph.graph import Ref
from ..graph.op import Op
from ..graph.ops import MAX, SUM
from ..values.values import (
    Compute,
    Dims,
    Fold,
    Index,
    Load,
    Value,
    ValueKind,
    Values,
    compute,
    mapped,
)
from .linear_forms import Role
from .nest import Nest

_NOTHING = {SUM: 0.0, MAX: -float("inf")}


def live_parts(nest: Nest, values: Values, temporaries: Mapping[int, int]) -> Values | None:
    """The values of the kernel that combines what `nest` has stored, each part chosen by whether
    it begins beyond the position; None where no mask says so. temporaries: by the inputs of this
    kernel, the outputs of `nest`."""
    found = [limit for limits in nest.limits.values() for limit in limits if limit.values]
    nothing = {number: _nothing(nest, output) for number, output in temporaries.items()}
    if len(found) != 1 or None in nothing.values():
        return None
    (limit,) = found
    if limit.scale < 0 or len(limit.rest.terms) != 1 or len(limit.values) != 1:
        return None
    (term,), ((position, scale),) = limit.rest.terms, limit.values
    axis, given = nest.axes[term.axis], nest.values[position]
    if axis.role is not Role.GRID or len(axis.factors) != 1 or (term.div, term.mod) != (1, 0):
        return None
    is_load = isinstance(given.kind, Load) and not given.kind.at
    if scale != -1 or not is_load or not {*given.axes} <= values.extents.keys():
        return None
    if axis.factors[0] not in values.extents:
        return None
    return _chosen(values, nothing, given, Index(axis.factors, limit.rest.base, term.scale))


def with_chosen(nest: Nest, temporaries: Collection[int]) -> Nest:
    """The nest of such a kernel, which reads no more of the parts than it chooses."""
    found = {}
    for value in nest.values:
        if isinstance(value.kind, Compute) and value.kind.op is Op.WHERE:
            named = dict(value.kind.operands)
            condition, own = named["condition"], named["self"]
            if isinstance(condition, Ref) and isinstance(own, Ref):
                kind = nest.values[own.node].kind
                if isinstance(kind, Load) and kind.input in temporaries:
                    found[own.node] = condition.node
    return replace(nest, chosen=found)


def _nothing(nest: Nest, output: int) -> float | None:
    """What no element gives of an output."""
    kind = nest.values[nest.outputs[output].value].kind
    return _NOTHING.get(kind.monoid) if isinstance(kind, Fold) and not kind.mean else None


def _chosen(
    values: Values, nothing: Mapping[int, float | None], position: Value, index: Index
) -> Values:
    """With each part's results, or what none gives."""
    made: list[Value] = []

    def add(kind: ValueKind, dims: Dims, dtype: str, origin: str) -> Ref:
        made.append(Value(len(made), kind, dims, dtype, origin))
        return Ref(len(made) - 1)

    origin, part = position.origin, (index.factors,)
    last = add(position.kind, position.dims, position.dtype, origin)
    first = add(index, part, "int64", origin)
    is_live = compute(Op.LE, "int64", self=first, other=last)
    live = add(is_live, (*part, *position.dims), "bool", origin)
    known: dict[int, int] = {}
    for old in values.values:  # All that is loaded stands before what is reduced.
        if isinstance(old.kind, Load) and old.kind.input in nothing:
            own = add(old.kind, old.dims, old.dtype, old.origin)
            other = nothing[old.kind.input]
            chosen = compute(Op.WHERE, old.dtype, condition=live, self=own, other=other)
            known[old.id] = add(chosen, old.dims, old.dtype, old.origin).node
    for old in values.values:
        if old.id not in known:
            kind = mapped(old.kind, known.__getitem__)
            known[old.id] = add(kind, old.dims, old.dtype, old.origin).node
    outputs = tuple(replace(o, value=known[o.value]) for o in values.outputs)
    return Values(tuple(made), outputs, values.extents)
