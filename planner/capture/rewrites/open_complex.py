"""Arithmetic of complex numbers as arithmetic of their real and imaginary parts.

No kernel of ours has complex numbers. Where they only serve to compute real ones, as where
positions turn queries and keys by a complex product, each becomes two real tensors: one for its
real and one for its imaginary parts. So all of it may be one kernel with what is around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import called, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["open_complex"]

aten = torch.ops.aten

_DTYPES = (torch.complex64, torch.complex128)

_EACH = frozenset(
    {
        aten.clone.default,
        aten.expand.default,
        aten.neg.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.sum.dim_IntList,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
    }
)
"""What does the same to real and to imaginary parts. Its first operand is the complex one."""


class _Parts(NamedTuple):
    """The real and the imaginary parts of a complex node. computed: by arithmetic."""

    real: fx.Node
    imaginary: fx.Node
    computed: bool


def open_complex(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph without such complex numbers, or `gm` itself where there are none.
    `gm` is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if not any(n.target is aten.view_as_real.default for n in gm.graph.nodes) or is_dynamic(gm):
        return gm
    return rewritten_copy(gm, _opened, "complex numbers stay as they are")


def _opened(graph: fx.Graph) -> bool:
    parts: dict[fx.Node, _Parts] = {}
    changed = False
    for node in list(graph.nodes):
        if node.target is aten.view_as_real.default:
            changed |= _replaced(node, parts.get(node.args[0]))
        elif _is_complex(node):
            with graph.inserting_before(_after(node)):
                found = _parts(node, parts)
            if found is not None:
                parts[node] = found
    if changed:
        graph.eliminate_dead_code()
    return changed


def _after(node: fx.Node) -> fx.Node:
    """The node behind it; of an input the first that reads it: what is made of a gradient must not
    stand among the nodes of the forward pass, which are told from the others by their places."""
    if node.op == "placeholder" and node.users:
        first: fx.Node = next(n for n in node.graph.nodes if n in node.users)
        return first
    following = node.next
    while following.op == "placeholder":
        following = following.next
    return following


def _is_complex(node: Any) -> bool:
    value = value_of(node)
    return value is not None and value.dtype in _DTYPES


def _replaced(node: fx.Node, parts: _Parts | None) -> bool:
    """Put the parts of a complex number side by side, where arithmetic made them."""
    if parts is None or not parts.computed:
        return False
    with node.graph.inserting_before(node):
        pairs = [called(node, aten.unsqueeze.default, (each, -1)) for each in parts[:2]]
        made = called(node, aten.cat.default, (pairs, -1))
    if value_of(made).stride() != value_of(node).stride():
        return False
    node.replace_all_uses_with(made)
    return True


def _parts(node: fx.Node, known: dict[fx.Node, _Parts]) -> _Parts | None:
    """The parts of a complex node, as new nodes at the graph's point of insertion. None where a
    part cannot be told from those of its operands."""

    def call(target: Any, *args: Any, **named: Any) -> fx.Node:
        return called(node, target, args, **named)

    target, args = node.target, node.args
    if target in _EACH:
        below = known.get(args[0])  # type: ignore[arg-type]
        if below is None:
            return None
        real, imaginary = (call(target, part, *args[1:], **node.kwargs) for part in below[:2])
        return _Parts(real, imaginary, below.computed)
    if target in (aten._conj.default, aten.conj_physical.default):
        below = known.get(args[0])  # type: ignore[arg-type]
        if below is None:
            return None
        return below._replace(imaginary=call(aten.neg.default, below.imaginary))
    if target is aten.polar.default:
        size, angle = args
        turns = [call(each.default, angle) for each in (aten.cos, aten.sin)]
        real, imaginary = (call(aten.mul.Tensor, size, turn) for turn in turns)
        return _Parts(real, imaginary, True)
    if target in (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor) and not node.kwargs:
        left, right = (known.get(each) for each in args)  # type: ignore[arg-type]
        return left and right and _arithmetic(call, target, left, right)
    pairs = (
        args[0] if target is aten.view_as_complex.default else call(aten.view_as_real.default, node)
    )
    real, imaginary = (call(aten.select.int, pairs, -1, place) for place in (0, 1))
    return _Parts(real, imaginary, False)


def _arithmetic(call: Callable[..., fx.Node], target: Any, left: _Parts, right: _Parts) -> _Parts:
    """The parts of a product, a sum or a difference."""
    if target is not aten.mul.Tensor:
        real = call(target, left.real, right.real)
        return _Parts(real, call(target, left.imaginary, right.imaginary), True)

    def products(first: fx.Node, second: fx.Node) -> list[fx.Node]:
        both = ((left.real, first), (left.imaginary, second))
        return [call(aten.mul.Tensor, *each) for each in both]

    real = call(aten.sub.Tensor, *products(right.real, right.imaginary))
    return _Parts(real, call(aten.add.Tensor, *products(right.imaginary, right.real)), True)
