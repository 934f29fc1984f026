"""Matrix products of tiles (`tl.dot`) as Triton, and sums that are products with ones."""

from __future__ import annotations

from ..graph.dtypes import TRITON_DTYPE
from ..tiles.instructions import ONES, Mma, OnesMma
from ..values.values import Fold, Load
from .scope import Scope


def product(scope: Scope, mma: Mma, state: str) -> str:
    """A matrix product of tiles, added to `state` where there is one."""
    fold = scope.nest.fold(mma.value)
    left, right = (_operand(scope, fold, v, mma.k) for v in (mma.source, mma.times))
    if mma.is_turned:
        left, right = right, left
    if mma.slices > 1:
        a = _slices(scope, mma, left, mma.rows, "[1, 0, 2]", "[0, 2, 1]")
        b = _slices(scope, mma, right, mma.columns, "[1, 2, 0]", "")
    else:
        a = left if mma.rows < mma.k else f"tl.trans({left})"
        b = right if mma.k < mma.columns else f"tl.trans({right})"
    options = f", {state}" if state else ""
    if fold.operand == "float32":
        options += f', input_precision="{fold.precision}"'
    return f"tl.dot({a}, {b}{options})"


def _slices(scope: Scope, mma: Mma, text: str, axis: int, before: str, behind: str) -> str:
    """An operand as a product for each slice. axis: its other one. before, behind: the order of
    its dimensions where that axis stands before the summed one, and where it stands behind."""
    size, k = scope.blocks.sizes[axis], scope.blocks.sizes[mma.k] // mma.slices
    is_before = axis < mma.k
    shape = f"[{size}, {mma.slices}, {k}]" if is_before else f"[{mma.slices}, {k}, {size}]"
    order, cut = before if is_before else behind, f"tl.reshape({text}, {shape})"
    return f"tl.permute({cut}, {order})" if order else cut


def whole(mma: Mma, text: str) -> str:
    """The result of a product from those of its slices, its dimensions in the order of axes."""
    text = f"tl.sum({text}, 0)" if mma.slices > 1 else text
    return f"tl.trans({text})" if mma.swapped else text


def _operand(scope: Scope, fold: Fold, value: int, k: int) -> str:
    """An operand in the dtype of the product, zero where the summed axis is padded."""
    kind = scope.nest.values[value].kind
    if isinstance(kind, Load) and kind.dtype == fold.operand:
        return _multiplied(scope, scope.raw[value], fold.operand)
    text, dims = scope.names[value], scope.dims[value]
    if scope.blocks.is_ragged(k):
        text = f"tl.where({scope.text.index(k, dims, '_in')}, {text}, 0.0)"
    text = scope.operand(text, scope.dtypes[value], fold.operand)
    return _multiplied(scope, text, fold.operand)


def _multiplied(scope: Scope, text: str, dtype: str) -> str:
    """An operand as an mma takes it."""
    taken = scope.multiplied(dtype)
    return text if taken == dtype else f"{text}.to({TRITON_DTYPE[taken]})"


def ones(scope: Scope, each: OnesMma) -> None:
    """Writes the tile of ones by which a sum is a product."""
    dtype = scope.multiplied(scope.nest.loads[each.source].type.dtype)
    shape = f"[{scope.blocks.sizes[each.k]}, {ONES}]"
    scope.line(f"v{each.value}_ones = tl.full({shape}, 1.0, {TRITON_DTYPE[dtype]})")


def by_ones(scope: Scope, each: OnesMma, state: str) -> str:
    """The sum of a loaded tile along one dimension in each of a few columns, added to `state`
    where there is one: exact products, summed as those of the mma beside it."""
    dtype = scope.nest.loads[each.source].type.dtype
    source = _multiplied(scope, scope.raw[each.source], dtype)
    rows_first = scope.blocks.dims(scope.nest.live[each.source])[1] == each.k
    rows = source if rows_first else f"tl.trans({source})"
    return f"tl.dot({rows}, v{each.value}_ones{', ' * bool(state)}{state})"


def first(text: str) -> str:
    """The first of equal columns."""
    return f"tl.sum(tl.where(tl.arange(0, {ONES})[None, :] == 0, {text}, 0.0), 1)"
