"""Infinities, NaN, both zeros and numbers below the normal ones; rows of them, reduced."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from numeric_family import FLOATS, INF, INTEGERS, NAN, Family, Function, ends, pairs

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -1.5, 2.5, -2.5, 1e-30)
TAIL = (-1e-30, 7.0, 100.0, -100.0, 1e30, -1e30, INF, -INF, NAN, 1e-40, -1e-40, 0.3, 88.5, -88.5)
ROOTS: dict[str, Function] = {
    "sqrt": torch.sqrt,
    "sqrt_power": lambda x: x.clamp_min(-1) ** 0.5 + 0.0,  # of -0.0 it is -0.0 on a GPU
    "unselected_nan": lambda x: torch.where(x > 0, torch.sqrt(x), -1.0),
}
EXACT_ONE: dict[str, Function] = {
    "neg": lambda x: -x,
    "abs": torch.abs,
    "relu": torch.relu,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "frac": torch.frac,
    "square": lambda x: x**2,
    "power_1": lambda x: x**1,
    "power_0": lambda x: x**0,
    "power_-1": lambda x: x**-1,
    "reciprocal": torch.reciprocal,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "nan_to_num": torch.nan_to_num,
    "nan_to_num_given": lambda x: torch.nan_to_num(x, 7.0, 8.0, -9.0),
    "bool": lambda x: x.bool(),
    "logical_not": torch.logical_not,
    "mul_0": lambda x: x * 0,
    "mul_-0": lambda x: x * -0.0,
    "add_-0": lambda x: x + -0.0,
    "add_0": lambda x: x + 0.0,
    "sub_0": lambda x: x - 0,
    "rsub_0": lambda x: 0 - x,
    "div_-2": lambda x: x / -2,
    "div_0": lambda x: x / 0,
    "div_-0": lambda x: x / -0.0,
    "rdiv": lambda x: 1 / x,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_0": lambda x: x.clamp_min(0.0) + 0.0,
    "clamp_inf": lambda x: x.clamp(max=INF),
    "clamp_nan": lambda x: x.clamp(min=NAN),
    "hardtanh": F.hardtanh,
    "relu6": lambda x: F.relu6(x) + 0.0,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "hardsigmoid": F.hardsigmoid,
    "heaviside": lambda x: torch.where(x > 0, 1.0, torch.where(x == 0, 0.5, 0.0)),
    "unselected": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "masked_fill": lambda x: x.masked_fill(x.isnan(), -INF),
    "fmod": lambda x: torch.fmod(x, 1.5),
    "fmod_negative": lambda x: torch.fmod(x, -2),
    "fmod_inf": lambda x: torch.fmod(x, INF),
    "remainder_inf": lambda x: torch.remainder(x, INF),
    "copysign": lambda x: torch.copysign(x, -0.0),
    "copysign_to": lambda x: torch.copysign(torch.full_like(x, 2.0), x),
    "zero_quotient": lambda x: torch.zeros_like(x) / x,
    "difference": lambda x: x - x,
    "eq": lambda x: x == x,
    "ne": lambda x: x != x,
    "le": lambda x: x <= 0,
    "amax": lambda x: x.amax() + torch.zeros_like(x),
    "amin": lambda x: torch.where(x.isnan(), 0.0, x).amin() + torch.zeros_like(x),
    "argmax": lambda x: x.argmax() + x.isnan(),
    "argmin": lambda x: x.argmin() + x.isnan(),
    "argmax_finite": lambda x: torch.where(x.isnan(), 1.0, x.clamp(-3, 3)).argmax() + x.isnan(),
    "any": lambda x: x.any() & x.isnan(),
    "all": lambda x: x.all() | x.isnan(),
}
EXACT_TWO: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": lambda x, y: torch.maximum(x, y) + 0.0,
    "minimum": lambda x, y: torch.minimum(x, y) + 0.0,
    "fmax": lambda x, y: torch.fmax(x, y) + 0.0,  # eager tells no zero from another on a CPU
    "fmin": lambda x, y: torch.fmin(x, y) + 0.0,
    "copysign": torch.copysign,
    "eq": torch.eq,
    "lt": torch.lt,
    "ge": torch.ge,
    "fmod": torch.fmod,
    "where": lambda x, y: torch.where(x > y, x, y),
    "logical_and": torch.logical_and,
    "logical_xor": torch.logical_xor,
}
CLOSE_TWO: dict[str, Function] = {
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": torch.pow,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "remainder": torch.remainder,
}
CLOSE_ONE: dict[str, Function] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sin": lambda x: torch.sin(x.clamp(-10, 10)),
    "cos": lambda x: torch.cos(x.clamp(-10, 10)),
    "atan": torch.atan,
    "asin": torch.asin,
    "acos": torch.acos,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "gelu": lambda x: F.gelu(x.clamp_min(-1)),
    "gelu_tanh": lambda x: F.gelu(x.clamp_min(-1), approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "logit": torch.logit,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "power_3": lambda x: x**3,
    "power_-2": lambda x: x**-2,
    "power_-0.5": lambda x: x**-0.5,
    "power_1.5": lambda x: x**1.5,
    "power_inf": lambda x: x**INF,
    "power_of_2": lambda x: 2.0**x,
    "power_of_-2": lambda x: torch.pow(-2.0, x.trunc()),
    "power_of_0": lambda x: torch.pow(0.0, x),
    "power_of_1": lambda x: torch.pow(1.0, x),
}


def special() -> Iterator[Family]:
    for dtype in FLOATS:
        name = str(dtype).removeprefix("torch.")
        # Triton's interpreter has no bfloat16 below the normal numbers.
        tail = TAIL if dtype != torch.bfloat16 else (n for n in TAIL if abs(n) != 1e-40)
        x = torch.tensor((*SPECIAL, *tail)).to(dtype)
        few = torch.tensor((0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5, 1e30, INF, -INF, NAN))
        yield Family(f"exact {name}", EXACT_ONE, (x,))
        # On some processors torch's own root of a double is off by one unit.
        yield Family(f"roots {name}", ROOTS, (x,), int(dtype == torch.float64))
        yield Family(f"exact pairs {name}", EXACT_TWO, pairs(x[:24], few.to(dtype)))
        yield Family(f"close {name}", CLOSE_ONE, (x,), 16)
        yield Family(f"close pairs {name}", CLOSE_TWO, pairs(x[:24], few.to(dtype)), 16)


EXACT_ROWS: dict[str, Function] = {
    "amax": lambda x: x.amax(-1) + 0.0,
    "amin": lambda x: x.amin(-1) + 0.0,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "max_index": lambda x: x.max(-1)[1],
    "min_index": lambda x: x.min(-1)[1],
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "counted": lambda x: (x > 0).sum(-1),
    "nonzero": lambda x: x.count_nonzero(-1),
}
CLOSE_ROWS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(-1),
    "mean": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
    "norm_inf": lambda x: x.norm(p=INF, dim=-1),
    "nansum": lambda x: x.nansum(-1),
}
INTEGER_ROWS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "argmax": lambda x: x.argmax(-1),
    "sum_int32": lambda x: x.sum(-1, dtype=torch.int32),
    "sum_float": lambda x: x.sum(-1, dtype=torch.float64),
    "mean": lambda x: x.mean(-1, dtype=torch.float64),
    "any_all": lambda x: x.any() & x.all(0),
}


def reductions() -> Iterator[Family]:
    rows = torch.tensor(
        [
            [-INF, -INF, -INF, -INF],
            [INF, 1.0, INF, 0.0],
            [NAN, 1.0, 2.0, NAN],
            [0.0, -0.0, 0.0, -0.0],
            [-0.0, 0.0, -0.0, 0.0],
            [-0.0, -0.0, -0.0, -0.0],
            [1e38, 1e38, 1e38, 1e38],
            [3.0, 3.0, -1.0, 3.0],
            [-INF, 2.0, 1.0, -INF],
            [1e-40, -1e-40, 0.0, 0.0],
        ]
    )
    yield Family("exact rows", EXACT_ROWS, (rows,))
    yield Family(
        "close rows",
        CLOSE_ROWS,
        (rows,),
        8,
    )
    for dtype in INTEGERS:
        name = str(dtype).removeprefix("torch.")
        grid = torch.stack([ends(dtype)[-9:].roll(n) for n in range(4)])
        grid[1] = 0
        grid[2, :8] = 0
        yield Family(
            f"rows of {name}",
            INTEGER_ROWS,
            (grid,),
        )
