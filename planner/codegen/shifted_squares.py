"""Squared distances from a mean as Triton, summed from the mean of a loop's first block: shifted
data, of Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).

With d the distance of an element from that mean, and m the mean of all d, the sum that is asked is
that of d * d - m * d. The first block is a part of the row: of t turns d * d is in all at most t
times the result, so rounding costs log2(t) bits at worst, and none where blocks are alike.
"""

from __future__ import annotations

import math

from ..graph.dtypes import TRITON_DTYPE
from ..tiles.blocks import TileDims
from ..tiles.instructions import TileLoop
from ..values.values import Fold, Value
from .body import literal
from .scope import Scope


def begin(scope: Scope, value: Value, fold: Fold, dims: TileDims) -> None:
    """Writes two values beside the state: the sum of the distances, and the pivot that they are
    measured from."""
    dtype = TRITON_DTYPE[value.dtype]
    scope.line(f"v{value.id}_apart = tl.full({scope.text.shape(dims)}, 0.0, {dtype})")
    shape = scope.text.shape(_kept(scope, fold, dims))
    scope.line(f"v{value.id}_pivot = tl.full({shape}, 0.0, {dtype})", "mean of the first block")


def take(
    scope: Scope, value: Value, fold: Fold, dims: TileDims, loop: TileLoop, counter: str
) -> None:
    """A turn. The first block lies at an end of the row."""
    name, kept = f"v{value.id}", _kept(scope, fold, dims)
    item = scope.full(fold.source, dims, value.dtype)
    if scope.blocks.inner != loop.axis:
        scope.line(f"if {counter} == 0:")
        with scope.indented():
            text = _total(scope, fold, dims, _inside(scope, fold, dims, item))
            scope.line(f"{name}_pivot = {text} / {_first(scope, value, fold, loop)}")
    pivot = scope.text.broadcast(f"{name}_pivot", kept, dims)
    scope.line(f"{name}_new = {_inside(scope, fold, dims, f'{item} - {pivot}')}")
    scope.line(f"{name}_apart += {name}_new")
    scope.line(f"{name}_sofar += {name}_new * {name}_new", value.origin)


def joined(scope: Scope, value: Value, fold: Fold, dims: TileDims) -> str:
    """The term that is subtracted from every lane's sum of squares."""
    name = f"v{value.id}"
    count = literal(scope.nest.count(fold), value.dtype, scope.numbers)
    scope.line(f"{name}_off = {_total(scope, fold, dims, f'{name}_apart')} / {count}")
    off = scope.text.broadcast(f"{name}_off", _kept(scope, fold, dims), dims)
    return f"{off} * {name}_apart"


def end(scope: Scope, value: Value) -> None:
    """Rounding may leave a little less than nothing; what is no number stays so."""
    name = f"v{value.id}"
    scope.line(f"{name} = tl.where({name} < 0.0, 0.0, {name})")


def _kept(scope: Scope, fold: Fold, dims: TileDims) -> TileDims:
    return tuple(d for d in dims if d not in scope.nest.reduced(fold))


def _total(scope: Scope, fold: Fold, dims: TileDims, text: str) -> str:
    for axis in sorted(set(scope.nest.reduced(fold)) & set(dims), reverse=True):
        text = f"tl.sum({text}, {dims.index(axis)})"
        dims = tuple(d for d in dims if d != axis)
    return text


def _first(scope: Scope, value: Value, fold: Fold, loop: TileLoop) -> str:
    """Elements of the first block."""
    others = (a for a in scope.nest.reduced(fold) if a != loop.axis)
    count, number = math.prod(scope.nest.axes[a].extent for a in others), scope.numbers.text
    axis, block = scope.nest.axes[loop.axis], scope.blocks.sizes[loop.axis]
    text = f"tl.minimum({number(axis.extent)}, {block} - {axis.name}_skip)"
    text += f" * {number(count)}" if count > 1 else ""
    return f"({text}).to({TRITON_DTYPE[value.dtype]})"


def _inside(scope: Scope, fold: Fold, dims: TileDims, text: str) -> str:
    """The text, 0 where a reduced axis is padded."""
    ragged = [a for a in scope.nest.reduced(fold) if scope.blocks.is_ragged(a)]
    masks = [scope.text.index(a, dims, "_in") for a in ragged]
    return f"tl.where({' & '.join(masks)}, {text}, 0.0)" if masks else text
