"""Nodes of an FX graph, as rewrites read them and make new ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.passes.shape_prop import _extract_tensor_metadata

aten = torch.ops.aten

CAST = torch.ops.prims.convert_element_type.default
"""A cast that the user did not write."""

CASTS = (aten._to_copy.default, CAST)

SWAPS = (aten.permute.default, aten.t.default, aten.transpose.int)
"""Operations that may turn a matrix over."""


def value_of(node: Any) -> Any:
    """The fake tensor of a node; None of what is none."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


_OF_A_PASS = ("partitioner_tag", "autograd_backward")
"""Metadata of a joint graph's nodes that say whether a node is of the forward or the backward pass.
torch cuts behind the last node that is marked as of the forward pass."""


def called(beside: fx.Node, target: Any, args: tuple[Any, ...], **named: Any) -> fx.Node:
    """A new call at the graph's point of insertion, with the metadata of `beside`, which stands in
    the same pass, and a fake value of its own."""
    made = beside.graph.call_function(target, args, named)
    made.meta = {k: v for k, v in beside.meta.items() if k not in ("val", "tensor_meta")}
    given = fx.map_arg(args, lambda n: n.meta["val"])
    mode = next(v.fake_mode for v in pytree.tree_leaves(given) if isinstance(v, FakeTensor))
    with mode:
        value = made.meta["val"] = target(*given, **named)
    if isinstance(value, torch.Tensor):
        # torch's partitioner takes what has none for a tuple.
        made.meta["tensor_meta"] = _extract_tensor_metadata(value)
    return made


def of_pass(made: fx.Node, other: fx.Node) -> fx.Node:
    """A new node, which stands where another does: in its pass."""
    for key in _OF_A_PASS:
        made.meta.pop(key, None)
        if key in other.meta:
            made.meta[key] = other.meta[key]
    return made


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node is an operation on single elements, as torch marks them; copies are."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


_BY_STRIDE = (aten.view.default, aten._unsafe_view.default, aten.as_strided.default)
"""Views that are there for some strides only."""


def is_view(target: Any) -> bool:
    """Whether the target of a node gives a view of its operand."""
    return isinstance(target, torch._ops.OpOverload) and target.is_view


def takes_any_strides(node: fx.Node) -> bool:
    """Whether all that reads a value, perhaps through views, reads it in any strides."""
    for user in node.users:
        if is_view(user.target) and user.target not in _BY_STRIDE:
            if not takes_any_strides(user):
                return False
        elif not is_pointwise(user):
            return False
    return True


def turned_matrix(matrix: Any) -> fx.Node | None:
    """That of which a matrix is the transpose."""
    if not isinstance(matrix, fx.Node) or matrix.target not in SWAPS:
        return None
    below = matrix.args[0]
    return below if isinstance(below, fx.Node) and value_of(matrix).dim() == 2 else None
