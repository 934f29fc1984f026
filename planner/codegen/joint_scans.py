"""Scans of several values together, by a graph of the user's, as Triton.

The user's function has no neutral element. Each element therefore carries a flag that says whether
it is one: where it is not (padding), the other operand stays as it is.
"""

from __future__ import annotations

import hashlib

from ..graph.dtypes import TRITON_DTYPE
from ..graph.parse import parse
from ..tiles.blocks import TileDims
from ..tiles.instructions import TileScan
from ..trace.trace import trace
from ..values.values import Compute, Literal, Load, Scan, Value
from .body import convert, expression, literal
from .scope import Scope


def begin(scope: Scope, each: TileScan, kind: Scan, rest: TileDims) -> None:
    """Before the loop: nothing was seen. rest: the dimensions of a tile but the scanned one."""
    shape, name = scope.text.shape(rest), f"v{each.value}_before"
    scope.line(f"{name}_is = tl.full({shape}, 0, tl.int32)", "nothing was seen")
    for place, source in enumerate(kind.sources):
        zeros = f"tl.full({shape}, 0, {TRITON_DTYPE[scope.dtypes[source]]})"
        scope.line(f"{name}{place} = {zeros}")


def step(scope: Scope, each: TileScan, value: Value, kind: Scan, rest: TileDims) -> None:
    """Scans a tile. each.carried: it is combined with the result of the turns before."""
    dims, name = scope.blocks.dims(scope.nest.live[each.value]), f"v{each.value}"
    is_block = each.axis in dims
    partly = each.carried or (is_block and scope.blocks.is_ragged(each.axis))
    items, is_any = [f"{name}_item{i}" for i in _places(kind)], [f"{name}_is"] * partly
    for item, source in zip(items, kind.sources, strict=True):
        scope.line(f"{item} = {scope.full(source, dims, scope.dtypes[source])}")
    if partly:
        scope.line(f"{name}_is = {_are_any(scope, each, dims)}")
    function, given = _function(scope, kind, partly), [*is_any, *items]
    if is_block:
        text = f"({', '.join(given)})" if len(given) > 1 else given[0]
        scanned = f"{text}, {dims.index(each.axis)}, {function}, {each.reverse}"
        scope.line(f"{', '.join(given)} = tl.associative_scan({scanned})", value.origin)
    if each.carried:
        states = [f"{name}_before{end}" for end in ("_is", *_places(kind))]
        before = [scope.text.broadcast(state, rest, dims) for state in states]
        scope.line(f"{', '.join(given)} = {function}({', '.join([*before, *given])})")
        for state, own in zip(states, given, strict=True):
            scope.line(f"{state} = {_last(scope, each, dims, own)}")
    scope.bind(each.value, items[kind.item], dims)


def _places(kind: Scan) -> list[str]:
    return [str(place) for place in range(len(kind.sources))]


def _are_any(scope: Scope, each: TileScan, dims: TileDims) -> str:
    """1 for the elements of a tile, 0 where the axis is padded."""
    shape = scope.text.shape(dims)
    if each.axis not in dims or not scope.blocks.is_ragged(each.axis):
        return f"tl.full({shape}, 1, tl.int32)"
    inside = f"{scope.text.index(each.axis, dims, '_in')}.to(tl.int32)"
    return f"tl.broadcast_to({inside}, {shape})"


def _last(scope: Scope, each: TileScan, dims: TileDims, name: str) -> str:
    """Of a scanned tile the element that has combined all of it."""
    if each.axis not in dims:
        return name
    size = scope.blocks.sizes[each.axis]
    lanes = scope.text.broadcast(f"tl.arange(0, {size})", (each.axis,), dims)
    kept = f"tl.where({lanes} == {0 if each.reverse else size - 1}, {name}, 0)"
    return f"tl.sum({kept}, {dims.index(each.axis)})"


def _function(scope: Scope, kind: Scan, partly: bool) -> str:
    """The name of the function that combines elements; partly: elements carry the flag."""
    digest = hashlib.sha256(kind.combine.encode()).hexdigest()[:8]
    name, places = f"combine_{digest}", _places(kind)
    if name not in scope.functions:
        scope.functions[name] = _combining(name, kind, scope)
    if not partly:
        return name
    a, b, c = (", ".join(f"{side}{place}" for place in places) for side in "abc")
    lines = [f"def {name}_any(a_is, {a}, b_is, {b}):", f"    {c} = {name}({a}, {b})"]
    for i in places:
        lines.append(f"    c{i} = tl.where(a_is == 0, b{i}, tl.where(b_is == 0, a{i}, c{i}))")
    lines.append(f"    return a_is | b_is, {c}")
    scope.functions[f"{name}_any"] = "\n".join(["@triton.jit", *lines])
    return f"{name}_any"


def _combining(name: str, kind: Scan, scope: Scope) -> str:
    """The user's graph as a function of two elements of each value."""
    graph = parse(kind.combine)
    found = trace(graph)
    inputs = [f"{side}{place}" for side in "ab" for place in _places(kind)]
    given = dict(zip(graph.inputs, inputs, strict=True))
    dtypes = {v.id: v.dtype for v in found.values}
    names: dict[int, str] = {}
    lines = [f"def {name}({', '.join(inputs)}):"]
    for each in found.values:
        match each.kind:
            case Load(input=source):
                names[each.id] = given[source]
                continue
            case Literal(number=number):
                text = literal(number, each.dtype, scope.numbers)
            case Compute() as computed:
                text = expression(computed, names, dtypes, scope.numbers)
            case _:
                raise TypeError(f"{each.kind} combines no elements")
        names[each.id] = f"v{each.id}"
        lines.append(f"    v{each.id} = {text}  # {each.origin}")
    ends = zip(found.outputs, kind.sources, strict=True)
    results = [convert(names[o.value], dtypes[o.value], scope.dtypes[s]) for o, s in ends]
    lines.append(f"    return {', '.join(results)}")
    return "\n".join(["@triton.jit", *lines])
