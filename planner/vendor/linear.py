"""Linear layers by one call: a product of two matrices with what is added to it and an activation.

What follows the product is told by its numbers: a function of one product and of what is added is
evaluated at some hundred points, and compared with the functions that the calls have. So it does
not matter how the user wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..graph.dtypes import FLOATS, itemsize
from ..graph.graph import Arg, Graph, Node, Ref, Symbol
from ..graph.ops import (
    Cast,
    Constant,
    Contraction,
    Pointwise,
    View,
    bound,
    is_compute,
    is_input,
    overload,
    row,
)
from ..stream.rewriting import Rewriting
from ..trace.aten_calls import Calls
from ..values.axes import Factors
from ..values.values import Choice, Fold, Index, Load, Output, Values
from .operands import Operand, Other, dtype_of, operand, plain_sum
from .strided_rows import ALIGNED, turns_of

_POINTS = 512
_TOLERANCE = 1e-9
"""Of float64 numbers around 10; the tanh form of GELU is 1e-4 from the other."""

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
}
"""By activation of `_addmm_activation` the function that it is on a GPU. Its GELU is the tanh form
there, which does not stand for the other: of the sums between -5.5 and -1.3 that bfloat16 has, 174
give an error of more than twice eager's, of up to a third of the result at -3."""


@dataclass(frozen=True, slots=True)
class _Linear:
    """x [rows, summed] times w [summed, columns], with what is added: over columns alone (bias),
    or over the whole result."""

    x: Operand
    w: Operand
    bias: Operand | None
    whole: Operand | None
    axes: tuple[Factors, Factors, Factors]
    """Rows, summed, columns."""
    dtype: str


def linear_relu(group: Graph, values: Values) -> Graph:
    """relu(x @ w + bias)."""
    return _activated(group, values, "relu")


def linear_gelu(group: Graph, values: Values) -> Graph:
    """gelu(x @ w + bias), the tanh form."""
    return _activated(group, values, "gelu")


def linear_sum(group: Graph, values: Values) -> Graph:
    """alpha * (x @ w) + beta * y, with y as the product's third operand."""
    if sum(map(is_compute, group.nodes)) == 1:
        raise Other("the group is one call already")
    read = _read(group, values)
    if read.whole is None or read.bias is not None:
        raise Other("not the sum of a product and a matrix")
    alpha, beta = _coefficients(group, [read.whole])
    rows, summed, columns = read.axes
    calls = Calls(group, values)
    y = calls.operand(read.whole.load, read.dtype, (rows, columns))
    x = calls.operand(read.x.load, read.dtype, (rows, summed))
    w = calls.operand(read.w.load, read.dtype, (summed, columns))
    found = calls.call("addmm.default", y, x, w, beta=beta, alpha=alpha)
    return calls.finish(calls.result(found, (rows, columns), values.outputs[0]))


def linear_padded(group: Graph, values: Values, *, always: bool = False) -> Graph:
    """x @ w, perhaps with a bias, where rows of an operand or of the result would not start
    aligned: with as many zeros around as it takes, left out of what is returned. always: also
    where it takes none."""
    read = _read(group, values)
    rows, summed, columns = read.axes
    if read.whole is not None:
        raise Other("not the sum of a product and a row")
    if _coefficients(group, [read.bias] if read.bias else []) != [1.0] * (1 + bool(read.bias)):
        raise Other("a factor that the call does not have")
    calls = Calls(group, values)
    x = calls.operand(read.x.load, read.dtype, (rows, summed))
    w = calls.operand(read.w.load, read.dtype, (columns, summed))
    whole = ALIGNED // itemsize(read.dtype)
    height, width = values.size(rows), values.size(columns)
    x_rows, x_summed = _ragged(calls, x, whole)
    w_columns, w_summed = _ragged(calls, w, whole)
    ragged = x_rows, x_summed or w_summed, w_columns or bool(width % whole)
    if not any(ragged) and not always:
        raise Other("the rows start aligned")
    sizes = height, values.size(summed), width
    m, k, n = (-size % whole if odd else 0 for size, odd in zip(sizes, ragged, strict=True))
    x = _padded(calls, x, (m, k), x_rows or x_summed)
    w = calls.permute(_padded(calls, w, (n, k), w_columns or w_summed), (1, 0))
    if read.bias is None:
        found = calls.call("mm.default", x, w)
    else:
        bias = calls.operand(read.bias.load, read.dtype, (columns,))
        bias = calls.call("constant_pad_nd.default", bias, (0, n)) if n else bias
        found = calls.call("addmm.default", bias, x, w)
    found = calls.call("slice.Tensor", found, 0, 0, height) if m else found
    found = calls.call("slice.Tensor", found, 1, 0, width) if n else found
    return calls.finish(calls.result(found, (rows, columns), values.outputs[0]))


def linear_strided_rows(group: Graph, values: Values, *, always: bool = False) -> Graph:
    """x @ w where the rows of the result alone would not start aligned, by one call for every n-th
    of them. always: where they do, or are too few, by the padded call."""
    read = _read(group, values)
    rows, summed, columns = read.axes
    if read.whole is not None or read.bias is not None or _coefficients(group, []) != [1.0]:
        raise Other("more than a product")
    if turns_of(values.size(rows), values.size(columns), read.dtype) is None:
        if always:
            return linear_padded(group, values, always=True)
        raise Other("the rows start aligned, or are few")
    calls = Calls(group, values)
    whole = ALIGNED // itemsize(read.dtype)
    x = calls.operand(read.x.load, read.dtype, (rows, summed))
    w = calls.operand(read.w.load, read.dtype, (columns, summed))
    if any(down % whole or across != 1 for down, across in map(calls.stride, (x, w))):
        raise Other("an operand is not dense in rows that start aligned")
    like = torch.empty(values.size(rows), values.size(columns), device="meta")
    like = like.to(getattr(torch, read.dtype))
    found = calls.own("mm_strided_rows.default", x, w, like=like)
    return calls.finish(calls.result(found, (rows, columns), values.outputs[0]))


def _ragged(calls: Calls, matrix: Ref, whole: int) -> tuple[bool, bool]:
    """Which dimension of a matrix lies dense in memory in rows that do not start on multiples of
    `whole` elements, if one does. One that is dense nowhere the library copies itself."""
    (height, width), (down, across) = calls.shape(matrix), calls.stride(matrix)
    if across == 1:
        return False, height > 1 and bool(down % whole)
    return down == 1 and width > 1 and bool(across % whole), False


def _padded(calls: Calls, matrix: Ref, more: tuple[int, int], moved: bool) -> Ref:
    """A matrix with more rows and columns of zeros, dense in the order of memory that it has.
    moved: it needs a place of its own even without them."""
    if not any(more) and not moved:
        return matrix
    turned = calls.stride(matrix)[1] != 1
    rows, columns = reversed(more) if turned else more
    order = (1, 0) if turned else (0, 1)
    dense = calls.permute(matrix, order)
    dense = calls.call("constant_pad_nd.default", dense, (0, columns, 0, rows))
    return calls.permute(dense, order)


def _activated(group: Graph, values: Values, name: str) -> Graph:
    read = _read(group, values)
    if read.bias is None or read.whole is not None:
        raise Other("not a product and a bias")
    product, added, result = _probed(group, [read.bias])
    total = product + added[0]
    if not _is_near(result, _ACTIVATIONS[name](total)):
        raise Other(f"no {name} of the sum")
    rows, summed, columns = read.axes
    calls = Calls(group, values)
    bias = calls.operand(read.bias.load, read.dtype, (columns,))
    x = calls.operand(read.x.load, read.dtype, (rows, summed))
    w = calls.operand(read.w.load, read.dtype, (summed, columns))
    found = calls.call("_addmm_activation.default", bias, x, w, use_gelu=name == "gelu")
    return calls.finish(calls.result(found, (rows, columns), values.outputs[0]))


# --- the product and what is added ---


def _read(group: Graph, values: Values) -> _Linear:
    """The one product of a group and the tensors that are added to it."""
    output = values.outputs[0]
    folds = [v for v in values.values if isinstance(v.kind, Fold)]
    if len(folds) != 1 or any(isinstance(v.kind, (Choice, Index)) for v in values.values):
        raise Other("not one product alone")
    work = Rewriting(values, frozenset())
    product = plain_sum(folds[0])
    if product.times is None:
        raise Other("a sum that is no product")
    both = [operand(work, side, product.operand) for side in (product.source, product.times)]
    taken = {side.load for side in both}
    loads = {v.id: v.kind for v in values.values if isinstance(v.kind, Load)}
    added = [operand(work, v, product.operand) for v, load in loads.items() if load not in taken]
    inputs = [load.input for load in loads.values()]
    if len(set(inputs)) != len(inputs) or len(both) != len(taken) or len(added) > 2:
        raise Other("an input is read twice, or too many are added")
    if any(side.scale != 1 for side in both):
        raise Other("an operand is scaled")
    dtype = dtype_of((*both, *added), output.type.dtype)
    return _arranged(both, added, product.reduced, output, dtype)


def _arranged(
    both: list[Operand], added: list[Operand], summed: Factors, output: Output, dtype: str
) -> _Linear:
    """Which operand has the rows: the one that has none of the bias's axes, or the first of the
    result's."""
    order = [f for dim in output.dims for f in dim]
    whole = next((a for a in added if a.varies == set(order)), None)
    bias = next((a for a in added if a is not whole), None)
    ends = frozenset(order[:1])
    x, w = sorted(both, key=lambda o: bool(o.varies & bias.varies if bias else not o.varies & ends))
    rows, columns = x.varies - set(summed), w.varies - set(summed)
    if rows & columns or set(order) != rows | columns or not (rows and columns):
        raise Other("not the product of two matrices")
    if not set(summed) <= x.varies & w.varies:
        raise Other("an operand is repeated")
    if len(added) - (whole is not None) > 1 or (bias is not None and bias.varies != columns):
        raise Other("what is added is no row and no matrix")
    m, n = (tuple(f for f in order if f in own) for own in (rows, columns))
    return _Linear(x, w, bias, whole, (m, summed, n), dtype)


# --- what becomes of the sum ---


def _coefficients(group: Graph, added: list[Operand]) -> list[float]:
    """The factors of the product and of what is added to it, where nothing else is done."""
    product, others, result = _probed(group, added)
    terms = [product, *others]
    # The first points are zero, then one where one term is 1 and the others 0.
    factors = [float(result[1 + i] - result[0]) for i in range(len(terms))]
    total = sum((f * t for f, t in zip(factors, terms, strict=True)), torch.zeros_like(result))
    if not _is_near(result, total):
        raise Other("more than a sum")
    return factors


def _is_near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE)


def _probed(
    group: Graph, added: list[Operand]
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Numbers for a product and for what is added, and what the group makes of them."""
    generator = torch.Generator().manual_seed(0)
    count = 1 + len(added)
    shape = (_POINTS, count)
    points = torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu") * 4
    points[: 1 + count] = 0
    points[1 : 1 + count].fill_diagonal_(1)
    product, *others = points.unbind(1)
    leaves = {o.load.input: p for o, p in zip(added, others, strict=True)}
    found: dict[int, torch.Tensor | None] = {}
    for node in group.nodes:
        found[node.id] = leaves.get(node.id) if is_input(node) else _value(node, found, product)
    (output,) = group.outputs
    result = None if output is None else found[output]
    if result is None:
        raise Other("the result is not of the product")
    return product, others, result.double().expand(_POINTS)


def _value(
    node: Node, found: Mapping[int, torch.Tensor | None], product: torch.Tensor
) -> torch.Tensor | None:
    """A node's numbers; None for what goes into the product."""
    match row(node):
        case Contraction(bias=bias):
            named = bound(node)
            total = product * _number(named.get("alpha", 1))
            beta = _number(named.get("beta", 1))
            own = named.get(bias) if bias and beta else None
            if not isinstance(own, Ref):
                return total
            added = found[own.node]
            if added is None:
                raise Other("what is added goes into the product")
            return total + beta * added
        case View():
            return found[node.inputs[0]]
        case Cast() if node.type is not None and node.type.dtype in FLOATS:
            return found[node.inputs[0]]
        case Constant() as constant:
            number = bound(node)[constant.argument] if constant.argument else constant.value
            return torch.tensor(_number(number), dtype=torch.float64, device="cpu")
        case Pointwise():
            return _computed(node, found)
    raise Other(f"{node.op} is not followed")


def _computed(node: Node, found: Mapping[int, torch.Tensor | None]) -> torch.Tensor | None:
    if any(found[source] is None for source in node.inputs):
        if any(found[source] is not None for source in node.inputs):
            raise Other("an operand of the product is used once more")
        return None

    def given(argument: Arg) -> object:
        if isinstance(argument, Symbol):
            raise Other(f"{node.op} depends on a type")
        return found[argument.node] if isinstance(argument, Ref) else argument

    # In which order the elements lie in memory changes no number.
    named = {k: given(v) for k, v in node.kwargs if k != "memory_format"}
    result: torch.Tensor = overload(node.op)(*map(given, node.args), **named)
    return result


def _number(argument: Arg) -> float:
    if isinstance(argument, (bool, int, float)):
        return float(argument)
    raise Other("a factor that is no number")
