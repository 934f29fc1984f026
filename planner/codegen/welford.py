"""Squared distances from a mean as Triton: of a tile whose mean is known, and of what a loop has
seen so far, from the mean so far (see `planner/stream/welford.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.dtypes import TRITON_DTYPE
from ..graph.op import Accuracy, Op
from ..graph.texts import text_of
from ..tiles.blocks import TileDims
from ..tiles.instructions import TileLoop
from ..values.values import Fold, Value
from .body import literal
from .scope import Scope


def around(scope: Scope, value: Value, fold: Fold, dims: TileDims, mean: str) -> str:
    """The squared distances of a tile from `mean`, 0 where an axis is padded."""
    apart = f"{scope.full(fold.source, dims, value.dtype)} - {mean}"
    scope.line(f"v{value.id}_apart = {_inside(scope, fold, dims, apart)}")
    return f"v{value.id}_apart * v{value.id}_apart"


def mean_of(scope: Scope, value: Value, fold: Fold, dims: TileDims) -> str:
    """The mean that a fold is about, among `dims`."""
    assert fold.about is not None
    total = scope.at(fold.about, dims)
    if scope.nest.fold(fold.about).mean:
        return total
    count = literal(scope.nest.count(fold), value.dtype, scope.numbers)
    division = text_of(Op.DIV, Accuracy.EXACT, value.dtype)
    quotient = division.format(self=total, other=count)
    scope.line(f"v{value.id}_mean = {quotient}")
    return f"v{value.id}_mean"


def begin(scope: Scope, value: Value, dims: TileDims) -> None:
    """Writes two values that every lane keeps besides its state: its first element, and the sum of
    the distances from there, which is small where the elements are large and near each other."""
    zeros = f"tl.full({scope.text.shape(dims)}, 0.0, {TRITON_DTYPE[value.dtype]})"
    scope.line(f"v{value.id}_first = {zeros}")
    scope.line(f"v{value.id}_from_first = {zeros}")


def take(scope: Scope, value: Value, fold: Fold, dims: TileDims, counter: str) -> None:
    """A turn, in which every lane sees one element. counter: how many it has seen before. With d
    its distance from the mean of n elements, itself included, t grows by d**2 * n / (n - 1); the
    first one is that mean."""
    name = f"v{value.id}"
    item = scope.full(fold.source, dims, value.dtype)
    scope.line(f"{name}_first = tl.where({counter} == 0, {item}, {name}_first)")
    scope.line(f"{name}_new = {_inside(scope, fold, dims, f'{item} - {name}_first')}")
    scope.line(f"{name}_from_first += {name}_new")
    scope.line(f"{name}_turns = tl.cast({counter} + 1, {TRITON_DTYPE[value.dtype]})")
    apart = f"{name}_new - {name}_from_first * (1.0 / {name}_turns)"
    scope.line(f"{name}_apart = {_inside(scope, fold, dims, apart)}")
    weight = f"({name}_turns / tl.maximum({name}_turns - 1.0, 1.0))"
    scope.line(f"{name}_sofar += {name}_apart * {name}_apart * {weight}", value.origin)


def joined(scope: Scope, value: Value, fold: Fold, dims: TileDims, loop: TileLoop) -> str:
    """The term that every lane adds at the end: n times the squared distance of its mean from the
    mean of all, where n is the number of elements that it has seen."""
    name = f"v{value.id}"
    turns = _turns(scope, value, loop, dims)
    mean = mean_of(scope, value, fold, dims)
    own = f"({name}_first - {mean}) + {name}_from_first / tl.maximum({turns}, 1.0)"
    seen = scope.blocks.sizes[loop.axis] <= scope.nest.axes[loop.axis].extent
    others = [] if seen else [f"({turns} > 0.0)"]
    scope.line(f"{name}_lane = {_inside(scope, fold, dims, own, loop.axis, others)}")
    return f"{turns} * {name}_lane * {name}_lane"


def _inside(
    scope: Scope, fold: Fold, dims: TileDims, text: str, but: int = -1, more: Sequence[str] = ()
) -> str:
    """The text, 0 where a reduced axis (other than `but`) is padded."""
    ragged = [a for a in scope.nest.reduced(fold) if a != but and scope.blocks.is_ragged(a)]
    masks = [*(scope.text.index(a, dims, "_in") for a in ragged), *more]
    return f"tl.where({' & '.join(masks)}, {text}, 0.0)" if masks else text


def _turns(scope: Scope, value: Value, loop: TileLoop, dims: TileDims) -> str:
    """In how many turns of a loop every lane had an element: one less where the last is short."""
    axis = loop.axis
    block, extent = scope.blocks.sizes[axis], scope.nest.axes[axis].extent
    if not scope.blocks.is_ragged(axis):
        return literal(scope.blocks.count(axis), value.dtype, scope.numbers)
    reach = scope.numbers.text(extent + block - 1)
    text = f"({reach} - tl.arange(0, {block})) // {block}"
    if missed := late(scope, axis, (axis,)):
        skip = f"{scope.nest.axes[axis].name}_skip"
        text = f"({reach} + {skip} - tl.arange(0, {block})) // {block}{missed}"
    scope.line(f"v{value.id}_seen = ({text}).to({TRITON_DTYPE[value.dtype]})")
    return scope.text.broadcast(f"v{value.id}_seen", (axis,), dims)


def late(scope: Scope, axis: int, dims: TileDims) -> str:
    """The text that is subtracted from the number of a turn along an axis: 1 in the lanes whose
    first element comes in the second turn, because the blocks of aligned rows begin before the
    row."""
    rows = scope.blocks.aligned
    if rows is None or rows.axis != axis:
        return ""
    lanes = f"tl.arange(0, {scope.blocks.sizes[axis]})"
    text = f"({lanes} < {scope.nest.axes[axis].name}_skip).to(tl.int32)"
    return f" - {scope.text.broadcast(text, (axis,), dims)}"
