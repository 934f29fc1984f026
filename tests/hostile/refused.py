"""What eager refuses for the types of its operands, though fake tensors and formulas take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from hostile.cases import Family

refused = Family("refused", fails=True, ours=False)

_MIXED: dict[str, tuple[str, Callable[..., Any]]] = {
    "linear": ("f64[4,8] f32[8,8]", F.linear),
    "linear_bias": ("f32[4,8] f32[8,8] f16[8]", F.linear),
    "product": ("f16[4,8] f32[8,8]", lambda x, w: (x @ w).relu()),
    "product_of_ints": ("i64[4,8] f32[8,8]", torch.mm),
    "vector": ("f16[4,8] f32[8]", torch.mv),
    "added_product": ("f64[8] f32[4,8] f32[8,8]", torch.addmm),
    "layer_norm": ("f64[4,8] f32[8]", lambda x, w: F.layer_norm(x, (8,), w)),
    "layer_norm_of_half": ("f32[4,8] f16[8]", lambda x, w: F.layer_norm(x, (8,), w)),
    "group_norm": ("f64[2,4,5] f32[4]", lambda x, w: F.group_norm(x, 2, w)),
    "batch_norm": ("f64[6,4] f32[4]", lambda x, w: F.batch_norm(x, None, None, w, training=True)),
    "instance_norm": ("f64[2,4,5] f32[4]", lambda x, w: F.instance_norm(x, weight=w)),
    "class_weights": ("f32[4,3] i64[4]!<3 f64[3]", F.cross_entropy),
    "binary_cross_entropy": ("f32[4]!unit f64[4]!unit", F.binary_cross_entropy),
    "binary_classes": ("f32[4]!unit i64[4]!<2", F.binary_cross_entropy),
    "binary_logits": ("f32[4] i64[4]!<2", F.binary_cross_entropy_with_logits),
    "class_weights_of_ints": ("f32[4,3] i64[4]!<3 i64[3]!nonzero", F.cross_entropy),
    "layer_norm_of_ints": ("f32[4,8] i64[8]", lambda x, w: F.layer_norm(x, (8,), w)),
    "soft_margin_of_ints": ("i64[4] i64[4]", F.soft_margin_loss),
    "heaviside": ("f32[4] f64[4]", torch.heaviside),
    "lerp_weight": ("f32[4] f32[4] f64[4]", torch.lerp),
    "cross": ("f16[4,3] f32[4,3]", torch.linalg.cross),
}
_OF_INTS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "frac": torch.frac,
    "round_decimals": lambda x: x.round(decimals=1),
    "negative_power": lambda x: (x + 20) ** -1,
    "hypot": lambda x: torch.hypot(x, x),
}
_OF_BOOLS: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "abs": torch.abs,
    "round": torch.round,
    "trunc": torch.trunc,
    "remainder": lambda x: x.remainder(x),
}

for name, (inputs, function) in _MIXED.items():
    refused(f"mixed_{name}", inputs, function)
refused("mixed_huber_gradient", "f32[4] f64[4]", F.huber_loss, grad=True)
refused("mixed_in_a_model", "f64[4,8] f32[8,8]", lambda x, w: F.gelu(F.linear(x, w)) + 1)
refused(
    "mixed_with_gradients",
    "f64[4,8] f32[8,8]",
    lambda x, w: F.gelu(F.linear(x, w)) + 1,
    grad=True,
    dynamo=True,
)
refused(
    "mixed_of_sizes",
    ("f64[4,8] f32[8,8]", "f64[5,8] f32[8,8]"),
    lambda x, w: F.gelu(F.linear(x, w)) + 1,
    dynamo=True,
    dynamic=True,
)
refused(
    "mixed_log_sigmoid_backward",
    "f16[4,8] f16[4,8] bf16[4,8]",
    torch.ops.aten.log_sigmoid_backward,
    cpu=True,
)
refused(
    "resized_to_nothing",
    "f32[1,2,1,5]",
    lambda x: F.interpolate(x, scale_factor=(0.5, 2.0), mode="bilinear"),
)
for name, function in _OF_INTS.items():
    refused(f"{name}_of_ints", "i64[4,8]", function)
for name, function in _OF_BOOLS.items():
    refused(f"{name}_of_bools", "bool[4,8]", function, cpu=name == "abs")


def taken(name: str, inputs: str, function: Callable[..., Any]) -> None:
    """What is near to what is refused, and is right."""
    refused(name, inputs, function, fails=False, ours=True)


taken(
    "half_normalised_by_float_weights",
    "bf16[6,4] f32[4] f32[4]",
    lambda x, m, v: F.batch_norm(x, m, v.abs() + 1),
)
taken("rounded_ints", "i64[4,8]", lambda x: (x.round() + x.floor(), x.abs() + 1, x.relu() - 1))
taken("powers_of_ints", "i64[4,8]", lambda x: (x**2 + 1, x**0, x**3.0, x**-1.0))

FAMILIES = (refused,)
