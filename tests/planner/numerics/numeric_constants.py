"""Casts that a user wrote, and constants of each type."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from numeric_family import INF, NAN, Family, Function

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

OF_INTEGERS: dict[str, Function] = {
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
        OF_INTEGERS,
        (counts,),
    )


OF_FLOAT64: dict[str, Function] = {
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
    "function of 0": lambda x: torch.log1p(torch.exp(torch.zeros_like(x))) + x.clamp(-1, 1),
}
OF_FLOAT32: dict[str, Function] = {
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
    "full_float_long": lambda y: torch.full((8,), 2**24 + 1, dtype=torch.float32).long() + y,
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
}
OF_HALVES: dict[str, Function] = {
    "compare": lambda y: y == 0.1,
    "tensor": lambda y: (y + torch.full_like(y, 0.1)).float().mul(64).round(),
    "large": lambda y: torch.full_like(y, 60000.0) > y,
    "beside_float": lambda y: y * torch.full((8,), 0.1),
    "scalar": lambda y: y * torch.scalar_tensor(0.1, dtype=torch.float64),
    "count": lambda y: y + torch.full((8,), 300, dtype=torch.int64),
}


def constants() -> Iterator[Family]:
    x = torch.tensor([1.0, 0.1, -3.0, 2.0**24, 2.0**53, 1e300, 1e-300, 0.0], dtype=torch.float64)
    yield Family(
        "constants of float64",
        OF_FLOAT64,
        (x,),
    )
    y = torch.tensor([1.0, 0.1, -3.0, 2.0**24, 16777217.0, 1e30, 1e-30, 0.0])
    yield Family(
        "constants of float32",
        OF_FLOAT32,
        (y,),
    )
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield Family(
            f"constants of {name}",
            OF_HALVES,
            (y.to(dtype),),
        )
