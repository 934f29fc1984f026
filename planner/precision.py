"""In which dtype an operation is computed, and its expression there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from .errors import Refused
from .graph import Arg, Graph, Node, Ref
from .ops import Pointwise, bound
from .sizes import plain
from .values import register_dtype


def expression(operation: Pointwise, arguments: Mapping[str, Arg], working: str | None) -> str:
    """The row's expression in a dtype, without the factor `alpha` where that is 1."""
    expr = operation.expr
    if operation.on_bool and working == "bool":
        expr = operation.on_bool
    if arguments.get("alpha") == 1:
        expr = expr.replace(" * {alpha}", "").replace(" & {alpha}", "")
    return expr


_KINDS = {
    "default": Kind.DEFAULT,
    "float": Kind.INT_TO_FLOAT,
    "bool": Kind.ALWAYS_BOOL,
}


def working_dtypes(group: Graph, node: Node, operation: Pointwise) -> tuple[str | None, str]:
    """The dtype the expression is evaluated in and the one it yields, by PyTorch's promotion."""
    if operation.promotion == "same":
        return None, register_dtype(dtype_of(node))
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


def dtype_of(node: Node) -> str:
    assert node.type is not None
    return node.type.dtype
