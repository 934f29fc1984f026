"""Special values: signs of zero, infinities, NaN, edges of the types; and gradients there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

# --- special values -----------------------------------------------------------------------------

points = Family("special", by="element")
UNARY: dict[str, Callable[[Tensor], Any]] = {
    name: getattr(torch, name)
    for name in [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "frac",
        "isfinite",
        "isinf",
        "isnan",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logit",
        "neg",
        "reciprocal",
        "relu",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "signbit",
        "sin",
        "sinc",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
        "digamma",
    ]
}
UNARY |= {
    name: getattr(F, name)
    for name in [
        "gelu",
        "silu",
        "softplus",
        "elu",
        "selu",
        "mish",
        "hardswish",
        "hardsigmoid",
        "logsigmoid",
        "relu6",
    ]
}
UNARY |= {"softsign": F.softsign, "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink}
for each, f in UNARY.items():
    points(f"{each}_f32", "f32[32]!special", lambda x, f=f: f(x), ours=each != "digamma")
for each in (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "erf",
    "sin",
    "pow",
    "expm1",
    "log1p",
    "sigmoid",
):
    f = UNARY.get(each, lambda x: x**2.5)
    points(f"{each}_f64", "f64[32]!special", lambda x, f=f: f(x))
    points(f"{each}_f16", "f16[32]!special", lambda x, f=f: f(x))
    points(f"{each}_bf16", "bf16[32]!special", lambda x, f=f: f(x))
for each in ("hardswish", "hardsigmoid"):
    f = getattr(F, each)
    points(f"{each}_f64_gradient", "f64[32]!finite", lambda x, f=f: f(x) * 2, grad=True)
for number in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 10, float("inf"), float("nan")):
    points(f"pow_{number}", "f32[32]!special", lambda x, n=number: x**n)
for number in (0.0, 1.0, 2.0, -2.0, 0.5, float("inf")):
    points(f"rpow_{number}", "f32[32]!special", lambda x, n=number: torch.pow(n, x))
BINARY = "pow atan2 fmod remainder copysign hypot logaddexp maximum minimum fmax fmin xlogy div"
for each in BINARY.split():
    f = getattr(torch, each)
    grid = lambda x, y, f=f: f(x[:, None], y[None, :])  # noqa: E731
    points(f"{each}_grid", "f32[32]!special f32[32]!special", grid)
for each in ("pow", "fmod", "maximum", "copysign", "div"):
    f = getattr(torch, each)
    grid = lambda x, y, f=f: f(x[:, None], y[None, :])  # noqa: E731
    points(f"{each}_grid_f64", "f64[32]!special f64[32]!special", grid)
for each in ("lt", "le", "gt", "ge", "eq", "ne"):
    f = getattr(torch, each)
    grid = lambda x, y, f=f: f(x[:, None] * 1, y[None, :])  # noqa: E731
    points(f"{each}_grid", "f32[32]!special f32[32]!special", grid)
points(
    "floor_division_grid", "f32[32]!finite f32[32]!finite", lambda x, y: x[:, None] // y[None, :]
)
points("heaviside", "f32[32]!special f32[32]", torch.heaviside)
points("nextafter", "f32[32]!special f32[32]", torch.nextafter, ours=False)
points(
    "clamp_of_nan", "f32[32]!special", lambda x: (x.clamp(-1, 1), x.clamp_min(0), x.clamp_max(2))
)
points("clamp_by_tensors", "f32[32]!special f32[32]!special", lambda x, y: torch.clamp(x, y, y + 1))
points(
    "relu_of_nan", "f32[32]!special", lambda x: (F.relu(x) + 1, F.relu(-x), F.leaky_relu(x, 0.1))
)
points(
    "signs_of_zero",
    "f32[32]!finite",
    lambda x: [
        torch.signbit(y)
        for y in (
            -x,
            x * 0,
            x + 0,
            x - x,
            x * -1,
            F.relu(x),
            x.abs(),
            x.round(),
            x.trunc(),
            x.ceil(),
        )
    ],
)
points("sign_of_zero_sum", "f32[32]!zero", lambda x: torch.signbit((-x).sum() + 0.0))
points(
    "where_hides_nan",
    "f32[32]!special",
    lambda x: torch.where(x.isnan(), 0.0, x) + torch.where(x == 0, 1, 1 / x),
)
points("nan_ne_itself", "f32[32]!special", lambda x: (x != x, (x == x).sum(), x.isnan().any()))
points(
    "folds_with_nan",
    "f32[4,32]!special",
    lambda x: (x.amax(1), x.amin(0), x.max(1)[0], x.sum(1), x.argmax(1), x.argmin(1)),
)
points(
    "folds_without_nan",
    "f32[4,32]!finite",
    lambda x: (x.amax(1), x.amin(0), x.argmax(1), x.max()),
    by="tensor",
)
points("nansum_nanmean", "f32[4,5]!special", lambda x: (x.nansum(1), x.nanmean(1)))
points("any_all_of_nan", "f32[4,32]!special", lambda x: (x.any(1), x.all(1), x.bool().sum()))
points("softmax_of_infinity", "f32[4,32]!special", lambda x: torch.softmax(x, 1))
points("softmax_all_minus_infinity", "f32[4,8]", lambda x: torch.softmax(x * 0 - float("inf"), 1))
points(
    "log_softmax_one_infinity",
    "f32[4,8]",
    lambda x: torch.log_softmax(x.masked_fill(x > 1, -float("inf")), 1),
    by="tensor",
)
points(
    "logsumexp_infinities",
    "f32[4,8]",
    lambda x: (torch.logsumexp(x * 0 - float("inf"), 1), torch.logsumexp(x * 0 + float("inf"), 1)),
)
points("logsumexp_large", "f32[4,32]!1e4", lambda x: torch.logsumexp(x, 1))
points("norm_overflow", "f32[4,8]!1e25", lambda x: (x.norm(dim=1), (x * x).sum(1)))
points("variance_of_infinity", "f32[4,8]", lambda x: (x / 0).var(1))
points("layer_norm_with_nan", "f32[4,32]!special", lambda x: F.layer_norm(x, (32,)))
points("division_by_zero", "f32[32]!ties", lambda x: (x / 0, 0 / x, x // 0, 1 / (x * 0)))
points("gradient_sqrt_at_zero", "f32[32]!ties", lambda x: x.abs().sqrt(), grad=True)
points(
    "gradient_abs_relu_at_zero", "f32[32]!ties", lambda x: (x.abs(), F.relu(x), x.sign()), grad=True
)
points(
    "gradient_clamp_at_edges",
    "f32[32]!ties",
    lambda x: (x.clamp(-1, 1), F.hardtanh(x), F.relu6(x)),
    grad=True,
)
points(
    "gradient_max_of_ties", "f32[4,9]!ties", lambda x: (x.amax(1), x.max(1)[0], x.max()), grad=True
)
points(
    "gradient_maximum_of_ties",
    "f32[64]!ties f32[64]!ties",
    lambda x, y: (torch.maximum(x, y), torch.fmin(x, y)),
    grad=True,
)
points("gradient_norm_at_zero", "f32[4,9]!zero", lambda x: x.norm(dim=1), grad=True)
points(
    "gradient_pow_at_zero", "f32[32]!ties", lambda x: (x**2, x**3, x.abs() ** 0.5, x**0), grad=True
)
points("gradient_pow_of_tensors", "f32[32]!ties f32[32]!ties", lambda x, y: x.abs() ** y, grad=True)
points("gradient_prod_with_zeros", "f32[5,4]!ties", lambda x: x.prod(1), grad=True)
points(
    "gradient_where_of_nan", "f32[32]!ties", lambda x: torch.where(x > 0, x.log(), x * 2), grad=True
)
points("gradient_xlogy", "f32[32]!pos f32[32]!pos", torch.xlogy, grad=True)
points(
    "gradient_of_functions",
    "f32[32]!special",
    lambda x: [f(x) for f in (torch.tanh, torch.sigmoid, F.softplus, F.gelu, F.silu, torch.erf)],
    grad=True,
)
points(
    "gradient_of_softmax_masked",
    "f32[4,8]",
    lambda x: torch.softmax(x.masked_fill(x > 0.5, -float("inf")), 1),
    grad=True,
    by="tensor",
)
points("gradient_logit", "f32[32]!special", lambda x: (x.logit(0.01), x.logit()), grad=True)
points("gradient_atan2_origin", "f32[32]!ties f32[32]!ties", torch.atan2, grad=True)
points("gradient_division", "f32[32]!ties f32[32]!ties", lambda x, y: x / y, grad=True)
points("log1p_near_minus_one", "f64[32]", lambda x: torch.log1p(-x.sigmoid()))
points(
    "expm1_of_tiny",
    "f32[32]!1e-7",
    lambda x: (torch.expm1(x), torch.log1p(x), torch.tanh(x), x.sin()),
)
points(
    "tiny_sigmoid",
    "f32[32]!30",
    lambda x: (x.sigmoid(), F.logsigmoid(x), F.softplus(x)),
    by="tensor",
)
points("large_trigonometry", "f32[32]!1e5", lambda x: (x.sin(), x.cos()), by="tensor")
points("round_half_to_even", "f32[64]", lambda x: ((x * 4).round() / 2).round())
points("round_decimals", "f32[64]", lambda x: x.round(decimals=2))
points(
    "half_intermediate_overflow", "f16[64]!300", lambda x: (x * x * 1e-3, x.exp(), (x * 300) / 300)
)
points("bfloat_large", "bf16[64]!1e30", lambda x: (x * x, x * 1e10 / 1e10, x + 1))

FAMILIES = (points,)
