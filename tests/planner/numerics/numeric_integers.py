"""Integers at the ends of their types."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from numeric_family import INTEGERS, Family, Function, ends, pairs

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
