"""A probability by which both sides of a difference are multiplied: taken out, to multiply once.

A divergence of probabilities p is sum(xlogy(p, p) - p * y), with y the logarithm of others. Opened,
xlogy is where(p == 0, 0, p * log(p)): two products and a difference of each element, where one
product of a difference says the same, in fewer roundings.

The rule: where(c, 0, p * a) - p * b = p * (where(c, 0, a) - b), whatever c; and p * a - p * b =
p * (a - b). Where c is true both sides are -p * b. p is a softmax or a sigmoid: what may be
infinite could give NaN on one side of the rule alone. Casts to a wider type may lie between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from ..fx_nodes import CASTS, called, value_of
from ..on_a_copy import rewritten_copy

__all__ = ["factor_differences"]

aten = torch.ops.aten

_NUMBERS = (aten.full.default, aten.scalar_tensor.default)


class _Weighed(NamedTuple):
    """x * a, 0 where `zero` says so. chosen: the arguments of that choice before a."""

    product: fx.Node
    chosen: tuple[Any, ...] = ()


def factor_differences(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such factors taken out, or `gm` itself where there are none.
    `gm` is left as it is; names and metadata are kept."""
    if not any(node.target is aten.sub.Tensor and _common(node) for node in gm.graph.nodes):
        return gm
    return rewritten_copy(gm, _factor, "what both sides of a difference are multiplied by")


def _factor(graph: fx.Graph) -> bool:
    changed = False
    for node in list(graph.nodes):
        found = _common(node) if node.target is aten.sub.Tensor else None
        if found is not None:
            _replace(node, *found)
            changed = True
    if changed:
        graph.eliminate_dead_code()
    return changed


def _replace(
    node: fx.Node, weighed: _Weighed, factor: fx.Node, left: fx.Node, right: fx.Node
) -> None:
    with node.graph.inserting_before(node):
        if weighed.chosen:
            left = called(node, aten.where.self, (*weighed.chosen, left))
        apart = called(node, aten.sub.Tensor, (left, right))
        made = called(node, aten.mul.Tensor, (factor, apart))
        dtype = value_of(node).dtype
        if value_of(made).dtype != dtype:
            made = called(node, CASTS[1], (made, dtype))
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _common(node: fx.Node) -> tuple[_Weighed, fx.Node, fx.Node, fx.Node] | None:
    """The left side of a difference, the factor as it has it, and what the two sides multiply it
    by; None where they have no factor together, or are needed by themselves."""
    if len(node.args) != 2 or node.kwargs or not _is_float(node):
        return None
    weighed, right = _weighed(node.args[0]), _alone(node.args[1])
    if weighed is None or right is None or right.target is not aten.mul.Tensor:
        return None
    for place, factor in enumerate(weighed.product.args):
        for other, same in enumerate(right.args):
            left, apart = weighed.product.args[1 - place], right.args[1 - other]
            every = (factor, same, left, apart)
            if not all(isinstance(each, fx.Node) and _is_float(each) for each in every):
                continue
            probability = _probability(factor)
            if probability is None or probability is not _probability(same):
                continue
            if _shape(probability) == _shape(node):
                return weighed, factor, left, apart  # type: ignore[return-value]
    return None


def _weighed(value: Any) -> _Weighed | None:
    """A product, or a choice between 0 and one, that only this difference reads."""
    node = _alone(value)
    if node is None:
        return None
    if node.target is aten.mul.Tensor:
        return _Weighed(node)
    if node.target is not aten.where.self:
        return None
    condition, zero, other = node.args
    product = _alone(other)
    if product is None or product.target is not aten.mul.Tensor or not _is_zero(zero):
        return None
    return _Weighed(product, (condition, zero))


def _alone(value: Any) -> fx.Node | None:
    """What a value is behind casts, if nothing else reads it or one of them."""
    node = value
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if node.target not in CASTS:
            return node
        node = node.args[0]
    return None


def _probability(value: Any) -> fx.Node | None:
    """The probability that a value is, behind casts that round nothing; None where it is none."""
    while _is_of(value, *CASTS) and _is_wider(value):
        value = value.args[0]
    made = value
    while _is_of(made, *CASTS):
        made = made.args[0]
    found: fx.Node | None = value if _is_of(made, aten.sigmoid.default) or _is_share(made) else None
    return found


def _is_share(node: Any) -> bool:
    """Whether a node is exponentials over their sum."""
    if not _is_of(node, aten.div.Tensor):
        return False
    weight, total = node.args
    summed = _is_of(total, aten.sum.dim_IntList) and total.args[0] is weight
    return summed and _is_of(weight, aten.exp.default)


def _is_of(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in targets


def _is_wider(cast: fx.Node) -> bool:
    before, after = value_of(cast.args[0]).dtype, value_of(cast).dtype
    return bool(before.is_floating_point and torch.promote_types(before, after) == after)


def _is_zero(value: Any) -> bool:
    if not isinstance(value, fx.Node) or value.target not in _NUMBERS:
        return False
    number = value.args[1] if value.target is aten.full.default else value.args[0]
    return isinstance(number, (int, float)) and number == 0


def _is_float(node: Any) -> bool:
    value = value_of(node)
    return value is not None and value.dtype.is_floating_point


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(value_of(node).shape)
