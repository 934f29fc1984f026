"""In which dtype and by which of its forms an operation is computed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from .errors import Refused
from .graph import Arg, Graph, Node, Ref, refs
from .ops import (
    SUM,
    Cast,
    Contraction,
    CostClass,
    Law,
    Lookup,
    Pointwise,
    Reduction,
    View,
    bound,
    row,
)
from .sizes import plain, reciprocal
from .values import register_dtype

NARROW = ("float16", "bfloat16")


def after_rounding(group: Graph) -> frozenset[int]:
    """Nodes computed from what a product of matrices was rounded to 16 bits."""
    found: set[int] = set()
    for node in group.nodes:
        product = isinstance(row(node), Contraction) and _dtype(node) in NARROW
        if product or not found.isdisjoint(node.inputs):
            found.add(node.id)
    return frozenset(found)


def indexing(group: Graph) -> frozenset[int]:
    """Nodes that the places of a lookup are computed from: there an error is another element."""
    found: set[int] = set()
    for node in reversed(group.nodes):
        kind = row(node)
        if node.id in found:
            found.update(node.inputs)
        elif isinstance(kind, Lookup):
            found.update(refs(bound(node)[kind.index]))
    return frozenset(found)


def scaled_products(group: Graph) -> frozenset[int]:
    """Nodes that are a product of matrices, rounded to 16 bits, times other factors: eager knows
    no element of them to more than 9 (bfloat16) or 12 bits. A sum of such may be known better."""
    found: set[int] = set()
    for node in group.nodes:
        kind = row(node)
        product = isinstance(kind, Contraction) and _dtype(node) in NARROW
        law = kind.law if isinstance(kind, Pointwise) else ""
        keeps = law in ("mul", "div") or isinstance(kind, (Cast, View))
        read = node.inputs if law == "mul" else node.inputs[:1]
        if product or (keeps and not found.isdisjoint(read)):
            found.add(node.id)
    return frozenset(found)


def summed_for_logarithm(group: Graph) -> frozenset[int]:
    """Exponentials that are only summed, and the sum only seen by its logarithm: there their
    relative errors become an absolute one, no larger than those of the largest terms."""

    def leads(node: Node, *, summed: bool) -> bool:
        users = [group.nodes[u] for u in group.users(node.id)]
        return bool(users) and node.id not in group.outputs and all(good(u, summed) for u in users)

    def good(user: Node, summed: bool) -> bool:
        kind = row(user)
        if isinstance(kind, View):
            return leads(user, summed=summed)
        if summed:
            return isinstance(kind, Pointwise) and user.op in ("aten.log.default",)
        return isinstance(kind, Reduction) and kind.monoid == SUM and leads(user, summed=True)

    return frozenset(
        node.id
        for node in group.nodes
        if isinstance(kind := row(node), Pointwise) and kind.law in ("exp", "exp2")
        if leads(node, summed=False)
    )


def expression(operation: Pointwise, arguments: Mapping[str, Arg], working: str | None) -> str:
    """The row's expression in a dtype, without the factor `alpha` where that is 1."""
    expr = operation.expr
    if operation.on_bool and working == "bool":
        expr = operation.on_bool
    if arguments.get("alpha") == 1:
        expr = expr.replace(" * {alpha}", "").replace(" & {alpha}", "")
    return expr


def is_rounded_to_bfloat16(group: Graph, node: Node) -> bool:
    """Whether nothing sees more of the value than its bfloat16 rounding."""
    if _dtype(node) == "bfloat16":
        return True
    users = group.users(node.id)
    return (
        bool(users)
        and node.id not in group.outputs
        and all(
            isinstance(row(group.nodes[u]), Cast) and _dtype(group.nodes[u]) == "bfloat16"
            for u in users
        )
    )


def quick(
    operation: Pointwise,
    expr: str,
    operands: list[tuple[str, Arg]],
    cost: CostClass,
    working: str | None,
) -> tuple[str, list[tuple[str, Arg]], CostClass, Law]:
    """The cheaper form of an operation in float32, of nearly its full accuracy."""
    if working != "float32":
        return expr, operands, cost, operation.law
    divisor = dict(operands).get("other")
    if operation.law == "div" and isinstance(divisor, (int, float)) and divisor:
        inverse = [(n, reciprocal(divisor) if n == "other" else a) for n, a in operands]
        return "{self} * {other}", inverse, "fma", "mul"
    if operation.quick:
        return operation.quick, operands, operation.quick_cost, operation.law
    return expr, operands, cost, operation.law


_KINDS = {
    "default": Kind.DEFAULT,
    "float": Kind.INT_TO_FLOAT,
    "bool": Kind.ALWAYS_BOOL,
}


def working_dtypes(group: Graph, node: Node, operation: Pointwise) -> tuple[str | None, str]:
    """The dtype the expression is evaluated in and the one it yields, by PyTorch's promotion."""
    if operation.promotion == "same":
        return None, register_dtype(_dtype(node))
    samples: list[torch.Tensor | int | float] = []
    for name, argument in bound(node).items():
        if name == "condition" or "{" + name + "}" not in operation.expr:
            continue
        if isinstance(argument, Ref):
            tensor = group.nodes[argument.node].type
            if tensor is None:
                raise Refused("opaque", f"{group.nodes[argument.node].name} is no single tensor")
            dtype = getattr(torch, tensor.dtype)
            samples.append(torch.empty((1,) * len(tensor.shape), dtype=dtype, device="meta"))
        elif name != "alpha" and isinstance(argument, (bool, int, float)):
            samples.append(plain(argument))
    working, _ = elementwise_dtypes(*samples, type_promotion_kind=_KINDS[operation.promotion])
    name = register_dtype(str(working).removeprefix("torch."))
    return name, "bool" if operation.promotion == "bool" else name


def _dtype(node: Node) -> str:
    assert node.type is not None
    return node.type.dtype
