"""Several products of one row, as one product with all of their weights.

A row times a matrix is a stream of the matrix: nothing is computed that would take as long as the
reading. The projections to queries, keys and values read the same row, and the smaller ones are too
short to fill a device, or to be worth a launch. As one product over the columns of all of them they
are one stream. The weights stay where they are: a kernel that multiplies by several matrices side
by side reads each of its columns where it lies.

The rule: x @ A, x @ B = slices of x @ [A, B], for x of one row. The weights are inputs of the graph
or are computed of inputs, all in the same way and row by row (a cast, for one). Scales of their
columns are put side by side, too.

Two products stay apart if they have one shape and their results are combined element by element, as
in a gated layer: one kernel computes both products and combines them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import CASTS, SWAPS, called, is_pointwise, turned_matrix, value_of
from ..on_a_copy import rewritten_matches

__all__ = ["stack_products"]

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, *SWAPS)
_RESHAPES = (aten.view.default, aten._unsafe_view.default)


def stack_products(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such products stacked, or `gm` itself where there are none. `gm`
    is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm):
        return gm
    return rewritten_matches(gm, _stacks, _stack, "products stay apart")


def _stacks(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The products that go together, in the order of the graph."""
    by_row: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in graph.nodes:
        kind = _kind(node) if _is_stream(node) else None
        if kind is not None:
            by_row.setdefault((_elements(node.args[0]), kind), []).append(node)
    for products in by_row.values():
        stack, near = list[fx.Node](), set[fx.Node]()
        for each in products:
            own = _combined(each)
            if not own & near:
                stack.append(each)
                near |= own
        if len(stack) > 1:
            yield stack


def _is_stream(node: fx.Node) -> bool:
    """Whether a node is the product of one row and a matrix, and no output."""
    if node.target is not aten.mm.default:
        return False
    row, result = value_of(node.args[0]), value_of(node)
    if row is None or result is None or row.shape[0] != 1 or row.device != result.device:
        return False
    # An output is a tensor of its own.
    return not any(user.op == "output" for user in node.users)


def _kind(product: fx.Node) -> object:
    """What is equal for products whose weights the graph is given, or computes, in one way; None
    where it does otherwise."""
    given, cast, turned = _parts(product.args[1])
    if given.op == "placeholder":
        kind = None if cast is None else (cast.target, cast.args[1:], str(cast.kwargs))
        return given.meta["val"].dtype, turned, kind
    rows = turned_matrix(product.args[1])
    way = None if rows is None else _way(rows, value_of(rows).shape[0])
    return None if way is None else (None, True, way)


def _way(node: fx.Node, rows: int) -> object:
    """How a tensor of so many rows is computed, each row from the same row of what the graph is
    given; None where it is not."""
    value = value_of(node)
    if value is None or not value.dim() or value.shape[0] != rows:
        return None
    shape = tuple(value.shape[1:])
    if node.op == "placeholder":
        return value.dtype, shape
    if not _is_by_rows(node):
        return None
    ways = tuple(_way(each, rows) for each in node.all_input_nodes)
    named = [a for a in node.args if not isinstance(a, (fx.Node, list, tuple))]
    return None if None in ways else (node.target, str(named), str(node.kwargs), shape, ways)


def _is_by_rows(node: fx.Node) -> bool:
    """Whether each row of a result comes from the same rows of what is read, given that all have as
    many."""
    rank = value_of(node).dim()
    if node.target is aten.unsqueeze.default or node.target is aten.cat.default:
        place = node.args[1] if len(node.args) > 1 else 0
        return isinstance(place, int) and place % rank != 0
    if node.target in _RESHAPES or node.target in CASTS:
        return True
    return is_pointwise(node) and all(value_of(each).dim() == rank for each in node.all_input_nodes)


def _parts(matrix: Any) -> tuple[fx.Node, fx.Node | None, bool]:
    """What a matrix is a cast, or the transpose, or the transpose of a cast of; the cast; and
    whether it is a transpose."""
    assert isinstance(matrix, fx.Node)
    turned = matrix.target in SWAPS
    below = matrix.args[0] if turned else matrix
    assert isinstance(below, fx.Node)
    if below.target not in CASTS:
        return below, None, turned
    given = below.args[0]
    assert isinstance(given, fx.Node)
    return given, below, turned


def _elements(row: Any) -> fx.Node:
    """The tensor of whose elements, in their order, a row is a view."""
    while row.target in (aten.view.default, aten._unsafe_view.default):
        row = row.args[0]
    found: fx.Node = row
    return found


def _combined(product: fx.Node) -> set[fx.Node]:
    """What is computed from a product element by element."""
    found, left = set[fx.Node](), [product]
    while left:
        for user in left.pop().users:
            if user not in found and _is_elementwise(user):
                found.add(user)
                left.append(user)
    return found


def _is_elementwise(node: fx.Node) -> bool:
    return node.target in CASTS or node.target in _VIEWS or is_pointwise(node)


def _together(beside: fx.Node, nodes: Sequence[fx.Node], done: dict[fx.Node, fx.Node]) -> fx.Node:
    """The rows of tensors that are computed in one way, one below the other, at the graph's point
    of insertion. done: by the first of them, what is there already."""
    first = nodes[0]
    if first not in done and first.op == "placeholder":
        done[first] = called(beside, aten.cat.default, (list(nodes), 0))
    elif first not in done:
        own = zip(*(each.all_input_nodes for each in nodes), strict=True)
        below = {same[0]: _together(beside, same, done) for same in own}
        args: Any = fx.map_arg(first.args, below.__getitem__)
        if first.target in _RESHAPES:
            args = (args[0], [value_of(args[0]).shape[0], *value_of(first).shape[1:]])
        done[first] = called(beside, first.target, args, **first.kwargs)
    return done[first]


def _stack(products: Sequence[fx.Node]) -> None:
    first = products[0]
    graph = first.graph
    with graph.inserting_before(first):
        weights = _stacked(first, products)
        whole = called(first, aten.mm.default, (first.args[0], weights))
        scaled = [_scaled(each) for each in products]
        if all(scaled):
            scales = [_again(first, scales) for _, scales in filter(None, scaled)]
            whole = called(
                first, aten.mul.Tensor, (whole, called(first, aten.cat.default, (scales, 1)))
            )
            products = [product for product, _ in filter(None, scaled)]
    start = 0
    for each in products:
        end = start + value_of(each).shape[1]
        with graph.inserting_before(each):
            part = called(each, aten.slice.Tensor, (whole, 1, start, end))
        each.replace_all_uses_with(part)
        start = end


def _stacked(first: fx.Node, products: Sequence[fx.Node]) -> fx.Node:
    """The right operand of all products together, at the graph's point of insertion."""
    parts = [_parts(each.args[1]) for each in products]
    sources, (given, cast, turned) = [given for given, _, _ in parts], parts[0]
    if given.op == "placeholder":
        weights = called(first, aten.cat.default, (sources, 0 if turned else 1))
        if cast is not None:
            weights = called(first, cast.target, (weights, *cast.args[1:]), **cast.kwargs)
    else:
        turned = True
        matrices = [turned_matrix(each.args[1]) for each in products]
        weights = _together(first, [n for n in matrices if n is not None], {})
    return called(first, aten.permute.default, (weights, [1, 0])) if turned else weights


def _scaled(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What alone reads a product: itself times a view of one of the graph's inputs, a number for
    each column; and that view."""
    user = next(iter(product.users))
    if len(product.users) != 1 or user.target is not aten.mul.Tensor:
        return None
    scales = next((a for a in user.args if a is not product), None)
    below = scales
    while isinstance(below, fx.Node) and below.target in _VIEWS:
        below = below.args[0]
    if not isinstance(scales, fx.Node) or not isinstance(below, fx.Node):
        return None
    if below.op != "placeholder":
        return None
    same = value_of(scales).shape == value_of(product).shape
    return (user, scales) if same and value_of(scales).dtype == value_of(product).dtype else None


def _again(beside: fx.Node, view: fx.Node) -> fx.Node:
    """The same view of an input, at the graph's point of insertion."""
    if view.op == "placeholder":
        return view
    below = view.args[0]
    assert isinstance(below, fx.Node)
    return called(beside, view.target, (_again(beside, below), *view.args[1:]))
