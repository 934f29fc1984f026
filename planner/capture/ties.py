"""The gradient of a maximum whose operand is computed again.

The gradient goes, in equal shares, to the elements that equal the maximum. Computed again by
another kernel an element's last bits may be others, and where then none equals the maximum, the
shares are 0/0. So the forward pass also saves the index of the first such element, small as the
maximum is, and that element takes part whatever its bits. Others that tie with it take part where
they are equal again: whether rounded values tie is chance for eager too. A maximum that is NaN has
no such element, as for eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from ..graph.ops import OPS, Cast, Pointwise, Reduction, View
from .decompositions.decompose import decompositions
from .decompositions.losses import arg_extremum, dims_of

aten = torch.ops.aten

_SIGNS: dict[Any, int] = {aten.amax.default: 1, aten.amin.default: -1}


Test = tuple[fx.Node, fx.Node]
"""A test for equality, and the fold with which it compares."""


def anchors(graph: fx.Graph) -> dict[fx.Node, list[Test]]:
    """The values that are tested for equality with a fold of themselves, each with its tests."""
    found: dict[fx.Node, list[Test]] = {}
    for test in graph.nodes:
        if test.target in (aten.eq.Tensor, aten.ne.Tensor) and len(test.all_input_nodes) == 2:
            for value, other in (test.all_input_nodes, reversed(test.all_input_nodes)):
                fold = behind_views(other)
                anchor = _anchor(value, fold) if _is_fold(fold) else None
                if anchor is not None:
                    found.setdefault(anchor, []).append((test, fold))
    return found


def _anchor(value: fx.Node, fold: fx.Node) -> fx.Node | None:
    """The value itself, if the fold is of it. Else what both are made of, each by operations on it
    alone: autograd takes the absolute value again, and a sum may be in two steps."""
    folded = [fold.all_input_nodes[0]]
    while (source := _only(folded[-1], (*_LOCAL, Reduction))) is not None:
        folded.append(source)
    if value is folded[0]:
        return value
    last = value if value in folded else None
    while (source := _only(value, _LOCAL)) is not None:
        value = source
        last = value if value in folded else last
    return last


def _only(node: fx.Node, kinds: tuple[type, ...]) -> fx.Node | None:
    """The only tensor that a node is made of, if its operation is of one of these kinds."""
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return None
    known = node.target in _SAME or isinstance(OPS.get(str(node.target)), kinds)
    return node.all_input_nodes[0] if known else None


def settle(graph: fx.Graph, node: fx.Node, tests: Sequence[Test]) -> bool:
    """Lets the first extremal element pass each test of a value; False where that cannot be. The
    index belongs to the forward pass."""
    plain = bool(tests) and all(
        fold.target in _SIGNS and fold.args[0] is node and node in test.all_input_nodes
        for test, fold in tests
    )
    if not plain or any(test.target is not aten.eq.Tensor for test, _ in tests):
        return False
    indices = [_index(graph, fold) for _, fold in tests]
    for (test, fold), index in zip(tests, indices, strict=True):
        if index is None:
            return False
        best = next(o for o in test.all_input_nodes if o is not node)
        users = list(test.users)
        found = _inserted(graph, test.next, partial(_either, _dims(fold)), [test, best, index])
        assert found is not None
        for user in users:
            user.replace_input_with(test, found)
    return True


def _index(graph: fx.Graph, fold: fx.Node) -> fx.Node | None:
    """The index of an extremum, with its dimensions kept; None where there is no such operation."""

    def index(x: torch.Tensor) -> Any:
        return arg_extremum(x, _dims(fold), True, _SIGNS[fold.target])

    operand = fold.args[0]
    assert isinstance(operand, fx.Node)
    return _inserted(graph, fold.next, index, [operand], fold)


def _either(
    dims: Sequence[int], equal: torch.Tensor, best: torch.Tensor, index: torch.Tensor
) -> torch.Tensor:
    sizes = [n if d in dims else 1 for d, n in enumerate(equal.shape)]
    places = aten.arange.start_step(0, math.prod(sizes), 1, dtype=index.dtype, device=equal.device)
    first = aten.eq.Tensor(aten.view.default(places, sizes), index)
    first = aten.logical_and.default(first, aten.eq.Tensor(best, best))
    either: torch.Tensor = aten.logical_or.default(equal, first)
    return either


def _dims(fold: fx.Node) -> list[int]:
    operand, *rest = fold.args
    assert isinstance(operand, fx.Node)
    given = rest[0] if rest else None
    return dims_of(operand.meta["val"], given)  # type: ignore[arg-type]


def _inserted(
    graph: fx.Graph,
    before: fx.Node,
    function: Callable[..., Any],
    inputs: Sequence[fx.Node],
    like: fx.Node | None = None,
) -> fx.Node | None:
    """The node of what a function of some nodes gives, its operations put before another node;
    None where it gives NotImplemented. like: the node whose pass and place in the source theirs
    are; else that of the first input."""
    values = [n.meta["val"] for n in inputs]
    with values[0].fake_mode:
        if function(*values) is NotImplemented:
            return None
        traced = make_fx(function, decomposition_table=decompositions())(*values)
    given = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), inputs, strict=True))
    meta = {k: v for k, v in (like or inputs[0]).meta.items() if k not in _OWN}
    with graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "call_function":
                given[node] = graph.node_copy(node, given.__getitem__)
                given[node].meta = meta | {"val": node.meta["val"]}
    result: fx.Node = given[traced.graph.output_node().args[0]]
    return result


_OWN = ("val", "tensor_meta", "recompute")


def _is_fold(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(OPS.get(str(node.target)), Reduction)


def behind_views(node: fx.Node) -> fx.Node:
    """The value that a node shows in another shape or dtype."""
    while _shows(node):
        node = node.all_input_nodes[0]
    return node


def behind_shapes(node: fx.Node) -> fx.Node:
    """The value that a node shows in another shape."""
    while node.op == "call_function" and isinstance(OPS.get(str(node.target)), View):
        node = node.all_input_nodes[0]
    return node


def _shows(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return node.target in _SAME or isinstance(OPS.get(str(node.target)), (View, Cast))


_SAME = (aten.alias.default, aten.detach.default, aten.clone.default)
"""Operations that give their operand again, as autograd keeps it."""

_LOCAL = (View, Cast, Pointwise)
