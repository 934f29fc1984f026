"""Small functions whose results eager decides to the last bit, by family: integers at the ends of
their types, casts that a user wrote, constants, special values. One table for the interpreter and
for a GPU.

A family is a dictionary of functions of the same inputs, so that one kernel holds them all. What is
undefined in C (an integer divided by 0, a float beyond the integer's range), or differs between
eager on a CPU and on a GPU, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Function = Callable[..., torch.Tensor]
INF, NAN = math.inf, math.nan
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Family:
    """ulps: distance from eager's result that finite results other than 0 may have, in units of
    the last place of the result's type; 0 asks for the same bits (any NaN equals any other).
    untouched: functions that give the input itself."""

    name: str
    functions: dict[str, Function]
    inputs: tuple[torch.Tensor, ...]
    ulps: int = 0
    untouched: tuple[str, ...] = ()


def families() -> Iterator[Family]:
    yield from integers()
    yield from conversions()
    yield from special()
    yield from constants()
    yield from reductions()


# --- integers ---


def ends(dtype: torch.dtype, count: int = 16) -> torch.Tensor:
    """The ends of an integer type and what is near 0."""
    info = torch.iinfo(dtype)
    low = [info.min, info.min + 1, info.min // 2, -7, -3, -2, -1]
    high = [0, 1, 2, 3, 5, 7, info.max // 2, info.max - 1, info.max]
    return torch.tensor([n for n in (*low, *high) if n >= info.min][-count:], dtype=dtype)


def pairs(x: torch.Tensor, y: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Every element beside every other."""
    y = x if y is None else y
    return x.repeat_interleave(len(y)), y.repeat(len(x))


ARITHMETIC: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "eq": torch.eq,
    "lt": torch.lt,
    "ge": torch.ge,
    "true_divide": lambda x, y: torch.where(y == 0, x, x / y),
    "where": lambda x, y: torch.where(x > y, x, y * 2),
}
ONE: dict[str, Function] = {
    "neg": lambda x: -x,
    "abs": torch.abs,
    "square": lambda x: x * x,
    "cube": lambda x: x**3,
    "sign": torch.sign,
    "not": torch.bitwise_not,
    "logical_not": torch.logical_not,
    "bool": lambda x: x.bool(),
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "long": lambda x: x.long() * 3 - 1,
    "int": lambda x: x.int(),
    "byte": lambda x: x.to(torch.uint8),
    "char": lambda x: x.to(torch.int8),
    "add_1": lambda x: x + 1,
    "add_300": lambda x: x + 300,
    "rsub_300": lambda x: 300 - x,
    "mul_1000": lambda x: x * 1000,
    "mul_1.5": lambda x: x * 1.5,
    "eq_300": lambda x: x == 300,
    "ne_-1": lambda x: x != -1,
    "lt_300": lambda x: x < 300,
    "ge_-200": lambda x: x >= -200,
    "gt_1e10": lambda x: x > 10**10,
    "gt_-1.5": lambda x: x > -1.5,
    "lt_half": lambda x: x < 0.5,
    "clamp": lambda x: x.clamp(-3, 100),
    "clamp_min": lambda x: x.clamp_min(3),
    "masked_fill": lambda x: x.masked_fill(x > 3, 7),
    "where_number": lambda x: torch.where(x > 3, x, 1),
    "full_like": lambda x: torch.full_like(x, 3) + x,
    "floor_divide_7": lambda x: x // 7,
    "remainder_7": lambda x: x % 7,
    "fmod_-3": lambda x: x.fmod(3),
    "lshift": lambda x: x << 3,
    "rshift": lambda x: x >> 2,
    "and_1": lambda x: x & 1,
    "xor_5": lambda x: x ^ 5,
    "sum": lambda x: x.sum() + x * 0,
    "prod": lambda x: x.prod() + x * 0,
    "amax": lambda x: x.amax() + x,
    "amin": lambda x: x.amin() + x,
    "any": lambda x: x.any() & (x == x),
    "all": lambda x: x.all() | (x != x),
    "mean": lambda x: x.double().mean() + x,
}
DIVISION: dict[str, Function] = {
    "floor_divide": torch.floor_divide,
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
SHIFTS: dict[str, Function] = {
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "lshift_number": lambda x, y: x << 9,
    "rshift_number": lambda x, y: x >> 9,
}
NEGATIVE: dict[str, Function] = {
    "floor_divide_-7": lambda x: x // -7,
    "remainder_-7": lambda x: x % -7,
    "fmod_-7": lambda x: x.fmod(-7),
    "trunc_-2": lambda x: torch.div(x, -2, rounding_mode="trunc"),
    "rdiv": lambda x: torch.where(x == 0, x, -7 // torch.where(x == 0, 1, x)),
    "rmod": lambda x: torch.where(x == 0, x, -7 % torch.where(x == 0, 1, x)),
}
WIDE: dict[str, Function] = {
    "add": lambda x: x + 2**40,
    "rsub": lambda x: -(2**40) - x,
    "mul": lambda x: x * 6364136223846793005,
    "hash": lambda x: ((x * 2654435761) ^ (x >> 15)) % 1000003,
    "eq": lambda x: x == 2**40,
    "lt": lambda x: x < 2**31,
    "gt": lambda x: x > -(2**31) - 1,
    "and": lambda x: x & 0xFFFFFFFF,
    "fill": lambda x: torch.full_like(x, 2**33) + x,
    "where": lambda x: torch.where(x > 0, x, -(2**62)),
    "clamp": lambda x: x.clamp(-(2**33), 2**33),
    "floor_divide": lambda x: x // (2**33 + 1),
    "remainder": lambda x: x % (2**33 + 1),
    "index": lambda x: x + torch.arange(x.shape[0], device=x.device) * 2**32,
    "arange": lambda x: x + torch.arange(2**40, 2**40 + 3 * x.shape[0], 3, device=x.device),
    "squares": lambda x: x + torch.arange(x.shape[0], device=x.device).add(2**20) ** 2,
    "shifted": lambda x: x + (torch.arange(x.shape[0], device=x.device) << 40),
    "float": lambda x: x.double() + 2**53,
}
BOOLS: dict[str, Function] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x, y: ~x,
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "ge": lambda x, y: x >= y,
    "add_int": lambda x, y: x + 2,
    "add_float": lambda x, y: x + 0.5,
    "mul_int": lambda x, y: x * -3,
    "true_divide": lambda x, y: x / 2,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "and_true": lambda x, y: x & True,
    "xor_true": lambda x, y: x ^ True,
    "sum": lambda x, y: x.sum() + y,
    "cumulative": lambda x, y: (x.long() - y.long()).abs(),
    "byte": lambda x, y: x.to(torch.uint8) - 1,
    "float": lambda x, y: x.float() - y.half(),
    "any": lambda x, y: x.any() & y,
    "all": lambda x, y: x.all() | y,
    "amax": lambda x, y: x.amax() & y,
    "amin": lambda x, y: x.amin() | y,
    "where": lambda x, y: torch.where(x, y, True),
}


def integers() -> Iterator[Family]:
    for dtype in INTEGERS:
        name = str(dtype).removeprefix("torch.")
        x, y = pairs(ends(dtype))
        yield Family(f"arithmetic {name}", ARITHMETIC, (x, y))
        same = {torch.uint8: ("byte",), torch.int8: ("char",), torch.int32: ("int",)}
        yield Family(f"one {name}", ONE, (ends(dtype),), 0, same.get(dtype, ()))
        keep = (y != 0) & ~((y == -1) & (x == torch.iinfo(dtype).min))
        yield Family(f"division {name}", DIVISION, (x[keep], y[keep]))
        counts = torch.tensor([0, 1, 2, 5, 7, 8, 9, 15, 16, 31, 32, 63, 64, 70, 100, 127])
        yield Family(f"shifts {name}", SHIFTS, pairs(ends(dtype), counts.to(dtype)))
        if dtype != torch.uint8:
            yield Family(f"negative {name}", NEGATIVE, (ends(dtype),))
    for other in (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
        x, y = pairs(ends(torch.uint8), torch.arange(-8, 8).to(other))
        name = str(other).removeprefix("torch.")
        own = {n: f for n, f in ARITHMETIC.items() if other != torch.bool or "sub" not in n}
        yield Family(f"uint8 beside {name}", own, (x, y))
    yield Family("wide", WIDE, (ends(torch.int64),))
    flags = torch.tensor([False, True])
    yield Family("bools", BOOLS, pairs(flags))


# --- casts ---

THERE: dict[str, Function] = {
    "bfloat16": lambda x: x.bfloat16().float(),
    "half": lambda x: x.half().float(),
    "half_then_compare": lambda x: x.half().isinf(),
    "bfloat16_difference": lambda x: x - x.bfloat16(),
    "compare": lambda x: x.bfloat16() == x,
    "twice": lambda x: (x * 3).bfloat16().half().float(),
    "after_work": lambda x: (x * 1.001 + 1).bfloat16().float() * 3,
    "less": lambda x: x.bfloat16() < x,
    "amax": lambda x: x.bfloat16().float().amax() + x,
    "sum": lambda x: x.bfloat16().float().abs().amin() + x,
    "int": lambda x: x.clamp(-1000, 1000).int().float(),
    "long": lambda x: x.clamp(-1000, 1000).long() + 1,
    "long_of_half": lambda x: (x.clamp(-9, 9).half() * 333).long(),
    "bool_of_half": lambda x: (x.half() * 1e-4).bool(),
    "byte": lambda x: x.clamp(0, 255).to(torch.uint8).float(),
    "bool": lambda x: x.bool().float(),
    "double_and_back": lambda x: (x.double() * (1 + 2**-30)).float(),
    "double": lambda x: x.double() + 2**-40,
    "floor_after": lambda x: (x * 255).half().floor(),
    "where": lambda x: torch.where(x.half().float() > x, 1.0, 2.0),
    "select": lambda x: torch.where(x > 0, x.bfloat16(), 1.0).float(),
    "sign": lambda x: torch.sign((x - x.bfloat16()).float()),
}


def conversions() -> Iterator[Family]:
    x = torch.linspace(-3, 3, 97)
    odd = torch.tensor([0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e5, -1e6, 3.4e38, 1e-40, 6e-8, 2e-8])
    more = torch.tensor([0.3, 1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-9, 1 / 3, -1e-40, 2.5, 0.1, 1e-45])
    whole = torch.cat([x, odd, more])
    yield Family("casts", THERE, (whole,))
    specials = torch.tensor([INF, -INF, NAN, 0.0, -0.0, 1.5, 1e-45, 3.39e38])
    flags = ("bfloat16", "half", "half_then_compare", "bool", "double", "compare", "less")
    yield Family("casts of specials", {n: THERE[n] for n in flags}, (specials,))
    counts = torch.tensor([2**24 + 1, -(2**24) - 3, 2**31 - 1, -(2**31), 2**25 + 3, 5, 0, -1])
    yield Family(
        "casts of integers",
        {
            "float": lambda i: i.float(),
            "there_and_back": lambda i: (i.clamp(-(2**30), 2**30)).float().long(),
            "double": lambda i: i.double().long() + 1,
            "half": lambda i: i.half(),
            "bfloat16": lambda i: i.bfloat16().float(),
            "mixed": lambda i: i + 0.5,
            "true_divide": lambda i: i / 3,
            "scaled": lambda i: i * 0.1,
            "narrow": lambda i: i.to(torch.int8).long(),
            "narrow_bytes": lambda i: i.to(torch.uint8).int() + 1,
            "compare": lambda i: i.float() == i,
            "int32": lambda i: i.int() * 2,
            "int16": lambda i: i.to(torch.int16) + 1,
        },
        (counts,),
    )


# --- special values ---

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


# --- constants ---


def constants() -> Iterator[Family]:
    x = torch.tensor([1.0, 0.1, -3.0, 2.0**24, 2.0**53, 1e300, 1e-300, 0.0], dtype=torch.float64)
    yield Family(
        "constants of float64",
        {
            "add": lambda x: x + 0.1,
            "mul": lambda x: x * 1e-200,
            "div": lambda x: x / 3.3,
            "rdiv": lambda x: 0.1 / torch.where(x == 0, 1.0, x),
            "count": lambda x: x + (2**53 - 1),
            "compare": lambda x: x == 0.1,
            "less": lambda x: x < 0.1,
            "full": lambda x: torch.full_like(x, 0.1) + x,
            "full_float": lambda x: torch.full_like(x, 0.1, dtype=torch.float32).double() + x,
            "scalar": lambda x: torch.scalar_tensor(0.1, dtype=torch.float64, device=x.device) + x,
            "scalar_float": lambda x: torch.scalar_tensor(0.1, device=x.device) + x,
            "where": lambda x: torch.where(x > 0, x, 0.1),
            "fill": lambda x: x.masked_fill(x > 1, 0.1),
            "clamp": lambda x: x.clamp(0.1, 1e299),
            "remainder": lambda x: (x.clamp(-100, 100)).remainder(0.3),
            "fmod": lambda x: x.clamp(-100, 100).fmod(0.3),
            "alpha": lambda x: torch.add(x, x, alpha=0.5),
            "power": lambda x: x.clamp(0, 100) ** 2,
            "lerp": lambda x: torch.where(x == 0.1, 1 / 3, 1e-30),
            "mean": lambda x: x.clamp(-100, 100).mean() + 0.1,
            "infinite": lambda x: torch.full_like(x, INF) - x,
            "nan": lambda x: torch.full_like(x, NAN) + x,
            "arange": lambda x: torch.arange(8, dtype=torch.float64, device=x.device) / 3 + x,
        },
        (x,),
    )
    y = torch.tensor([1.0, 0.1, -3.0, 2.0**24, 16777217.0, 1e30, 1e-30, 0.0])
    yield Family(
        "constants of float32",
        {
            "count": lambda y: y + (2**24 + 1),
            "compare": lambda y: y == 2**24 + 1,
            "tenth": lambda y: y == 0.1,
            "less": lambda y: y < 0.1,
            "large": lambda y: y * 1e38,
            "beyond": lambda y: y * 1e39,
            "below": lambda y: y * 1e-46,
            "fill": lambda y: torch.full_like(y, 3.9, dtype=torch.int32) + y,
            "fill_bool": lambda y: torch.full_like(y, 0.5, dtype=torch.bool) & (y > 0),
            "fill_half": lambda y: torch.full_like(y, 0.1, dtype=torch.float16).float() + y,
            "fill_bfloat16": lambda y: torch.full_like(y, 0.1, dtype=torch.bfloat16).float() + y,
            "full_half": lambda y: torch.full((8,), 1e5, dtype=torch.float32).half() + y,
            "full_int": lambda y: torch.full((8,), 2**31 - 1, dtype=torch.int32) + (y > 0),
            "full_long": lambda y: torch.full((8,), 2**40, dtype=torch.int64) + (y > 0),
            "full_float_long": lambda y: (
                torch.full((8,), 2**24 + 1, dtype=torch.float32).long() + y
            ),
            "ones": lambda y: torch.ones_like(y, dtype=torch.int64) + y,
            "zeros": lambda y: torch.zeros_like(y, dtype=torch.bool) | (y > 0),
            "scalar_int": lambda y: torch.scalar_tensor(3, dtype=torch.int32) + y,
            "scalar_bool": lambda y: torch.scalar_tensor(True, dtype=torch.bool) & (y > 0),
            "arange_float": lambda y: torch.arange(0, 8, dtype=torch.float32) * 0.1 + y,
            "arange_step": lambda y: torch.arange(0, 2.0, 0.25) + y,
            "arange_long": lambda y: torch.arange(0, 8 * 2**33, 2**33) + (y > 0),
            "arange_int": lambda y: torch.arange(8, dtype=torch.int32) - 5 + y,
            "infinite": lambda y: torch.full_like(y, -INF).exp() + y,
            "true": lambda y: y + True,
        },
        (y,),
    )
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield Family(
            f"constants of {name}",
            {
                "compare": lambda y: y == 0.1,
                "tensor": lambda y: (y + torch.full_like(y, 0.1)).float().mul(64).round(),
                "large": lambda y: torch.full_like(y, 60000.0) > y,
                "beside_float": lambda y: y * torch.full((8,), 0.1),
                "scalar": lambda y: y * torch.scalar_tensor(0.1, dtype=torch.float64),
                "count": lambda y: y + torch.full((8,), 300, dtype=torch.int64),
            },
            (y.to(dtype),),
        )


# --- reductions ---


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
    exact: dict[str, Function] = {
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
    yield Family("exact rows", exact, (rows,))
    yield Family(
        "close rows",
        {
            "sum": lambda x: x.sum(-1),
            "prod": lambda x: x.prod(-1),
            "mean": lambda x: x.mean(-1),
            "softmax": lambda x: x.softmax(-1),
            "log_softmax": lambda x: x.log_softmax(-1),
            "logsumexp": lambda x: x.logsumexp(-1),
            "norm": lambda x: x.norm(dim=-1),
            "norm_inf": lambda x: x.norm(p=INF, dim=-1),
            "nansum": lambda x: x.nansum(-1),
        },
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
            {
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
            },
            (grid,),
        )
