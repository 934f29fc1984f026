"""Scans of tiles as Triton, and what a loop carries of them."""

from __future__ import annotations

from ..graph.dtypes import INDICES, TRITON_DTYPE, is_float
from ..tiles.blocks import TileDims
from ..tiles.instructions import TileScan
from ..values import values
from . import joint_scans
from .body import convert, identity
from .scope import Scope


def begin(scope: Scope, each: TileScan) -> None:
    """Before the loop: nothing was seen."""
    value, kind = _kind(scope, each)
    if kind.combine:
        return joint_scans.begin(scope, each, kind, _rest(scope, each))
    shape = scope.text.shape(_rest(scope, each))
    working = _working(value.dtype)
    neutral = identity(dict(kind.monoid.identity), working)
    full = f"tl.full({shape}, {neutral}, {TRITON_DTYPE[working]})"
    scope.line(f"v{each.value}_before = {full}", f"{value.origin}, before this turn")


def step(scope: Scope, each: TileScan) -> None:
    """A tile scanned; carried: what came before is combined with all of it."""
    value, kind = _kind(scope, each)
    if kind.combine:
        return joint_scans.step(scope, each, value, kind, _rest(scope, each))
    working = _working(value.dtype)
    dims = scope.blocks.dims(scope.nest.live[each.value])
    if each.axis not in dims:  # A block of one.
        text = convert(scope.at(kind.source, dims), scope.dtypes[kind.source], working)
        total = text
    else:
        place, name = dims.index(each.axis), f"v{each.value}_item"
        scope.line(f"{name} = {_item(scope, each, kind, dims, working)}")
        text = kind.monoid.scan.format(x=name, axis=place, reverse=each.reverse)
        total = kind.monoid.reduce.format(x=name, axis=place)
    if each.carried:
        rest, before = _rest(scope, each), f"v{each.value}_before"
        text = kind.monoid.combine.format(a=scope.text.broadcast(before, rest, dims), b=text)
    scope.bind(each.value, convert(f"({text})", working, value.dtype), dims)
    if each.carried:
        combined = kind.monoid.combine.format(a=before, b=total)
        if working not in ("float32", "float64", "int64"):
            combined = f"({combined}).to({TRITON_DTYPE[working]})"
        scope.line(f"{before} = {combined}")


def _item(scope: Scope, each: TileScan, kind: values.Scan, dims: TileDims, working: str) -> str:
    """What is scanned, with every dimension; the identity where the axis is padded."""
    text = scope.full(kind.source, dims, working)
    if not scope.blocks.is_ragged(each.axis):
        return text
    neutral = identity(dict(kind.monoid.identity), working)
    return f"tl.where({scope.text.index(each.axis, dims, '_in')}, {text}, {neutral})"


def _kind(scope: Scope, each: TileScan) -> tuple[values.Value, values.Scan]:
    value = scope.nest.values[each.value]
    assert isinstance(value.kind, values.Scan)
    return value, value.kind


def _rest(scope: Scope, each: TileScan) -> TileDims:
    dims = scope.blocks.dims(scope.nest.live[each.value])
    return tuple(d for d in dims if d != each.axis)


def _working(dtype: str) -> str:
    """Short integers are scanned as int32, as Triton would; they wrap in the end."""
    return dtype if is_float(dtype) or dtype in INDICES else "int32"
