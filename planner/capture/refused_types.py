"""Element types that eager refuses, though torch's fake tensors and its formulas accept them.

An operation that eager refuses must end in eager's error, not in a number: opened by its formula,
the softmax of integers would give integers. Such an operation is left whole, and ATen says no.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .fx_nodes import value_of

aten = torch.ops.aten

_FLOATS = frozenset(
    [
        "_log_softmax",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_prelu_kernel",
        "_softmax",
        "addcdiv",
        "binary_cross_entropy",
        "celu",
        "elu",
        "frac",
        "gelu",
        "glu",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "huber_loss",
        "leaky_relu",
        "lerp",
        "linalg_vector_norm",
        "log_sigmoid_forward",
        "logaddexp",
        "logaddexp2",
        "mish",
        "mse_loss",
        "native_batch_norm",
        "native_group_norm",
        "native_layer_norm",
        "nll_loss2d_forward",
        "nll_loss_forward",
        "selu",
        "silu",
        "smooth_l1_loss",
        "softplus",
        "softshrink",
        "var",
        "var_mean",
    ]
)
"""Operations that ATen has of floats and complex numbers alone. `round` is one with decimals."""

_NO_BOOLS = frozenset(
    ["addcmul", "argmax", "argmin", "ceil", "floor", "hardtanh", "round", "threshold", "trunc"]
)

_ONE_TYPE = frozenset(
    [
        *("addmv", "addr", "binary_cross_entropy", "binary_cross_entropy_backward", "dot"),
        *("heaviside", "huber_loss", "huber_loss_backward", "lerp", "linalg_cross", "mv", "vdot"),
    ]
)
"""Operations whose operands have to be of one type."""

_BY_CLASS = frozenset(["nll_loss_forward", "nll_loss2d_forward"])
"""Operations whose operands have to be of one type, but for the second one, of the classes."""

_NORMS = frozenset(n for n in _FLOATS if n.endswith("_norm") or "batch_norm" in n) - {
    "linalg_vector_norm"
}
"""What stands beside 16-bit floats may be float32."""

_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default)


def left_whole(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves the operation as it is where eager refuses the types."""
    full = op.name().split("::")[-1]
    name = full.split(".")[0]
    if name == "log_sigmoid_backward":
        return _without_buffer(function)
    floats = name in _FLOATS or full == "round.decimals"
    is_of_one = name in _ONE_TYPE | _BY_CLASS | _NORMS
    if not (floats or is_of_one or name in _NO_BOOLS):
        return function

    @functools.wraps(function)
    def opened(*args: Any, **kwargs: Any) -> Any:
        found = [x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if floats and not (found[0].is_floating_point or found[0].is_complex):
            return NotImplemented
        if name in _NO_BOOLS and found[0] == torch.bool:
            return NotImplemented
        judged = set(found[:1] + found[2:] if name in _BY_CLASS else found)
        if name in _NORMS and found[0].itemsize == 2:
            judged.discard(torch.float32)
        if is_of_one and len(judged) > 1:
            return NotImplemented
        return function(*args, **kwargs)

    return opened


def _without_buffer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of the gradient of a logarithm of a sigmoid. On a GPU nobody reads the third operand, nor
    asks for its type; on a CPU eager wants it to be of the type of the others."""

    @functools.wraps(function)
    def opened(grad_output: torch.Tensor, self: torch.Tensor, buffer: torch.Tensor) -> Any:
        on_cpu = self.device.type == "cpu"
        if on_cpu and len({grad_output.dtype, self.dtype, buffer.dtype}) > 1:
            return NotImplemented
        return function(grad_output, self, buffer if on_cpu else self)

    return opened


def has_refused_product(gm: fx.GraphModule) -> bool:
    """Whether a product is of several types."""
    products = (n for n in gm.graph.nodes if n.op == "call_function" and n.target in _PRODUCTS)
    types = ({v.dtype for x in n.args if (v := value_of(x)) is not None} for n in products)
    return any(len(found) > 1 for found in types)
