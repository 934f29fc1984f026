"""Conversions, integers, constants."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import DTYPES, Family

# --- conversions that the user wrote ------------------------------------------------------------

casts = Family("casts")
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")


def to_all(x: Tensor) -> list[Tensor]:
    y = x + x
    return [y.to(d) for d in DTYPES.values() if d is not torch.uint8] + [y.abs().to(torch.uint8)]


for each in (*FLOATS, *INTEGERS):
    casts(f"{each}_to_all", f"{each}[7,13]", to_all)
casts("bool_to_all", "bool[7,13]", lambda x: [(~x).to(d) for d in DTYPES.values()])
for each in ("f16", "bf16"):
    to: Any = DTYPES[each]
    casts(f"{each}_there_and_back", "f32[5,67]", lambda x, d=to: x.to(d).float(), grad=True)
    casts(f"{each}_after_a_sum", "f32[5,67]", lambda x, d=to: (x * 3).sum(1).to(d).float() * 2)
    casts(f"{each}_then_compare", "f32[9,33]", lambda x, d=to: x.to(d).float() == x)
    casts(f"{each}_then_argmax", "f32[9,133]", lambda x, d=to: x.to(d).argmax(1))
    casts(f"{each}_then_sum_of_equal", "f32[33]", lambda x, d=to: (x.to(d) == x.to(d).max()).sum())
    casts(f"{each}_then_softmax", "f32[9,33]", lambda x, d=to: torch.softmax(x.to(d).float(), 1))
    casts(f"{each}_rounded_difference", "f32[9,33]", lambda x, d=to: x - x.to(d).float())
    casts(
        f"{each}_twice_with_work",
        "f32[64]",
        lambda x, d=to: ((x * 3).to(d).float() + 1).to(d).float(),
    )
    casts(f"{each}_of_double", "f64[64]", lambda x, d=to: x.to(d).double() + x)
    casts(f"{each}_in_a_product", "f32[5,16] f32[16,7]", lambda x, y, d=to: x.to(d).to(y.dtype) @ y)
    casts(f"{each}_floor", "f32[64]!100", lambda x, d=to: x.to(d).float().floor())
casts("half_overflow_is_infinite", "f32[64]!1e5", lambda x: x.half().float() * 0.5)
casts("half_underflow_is_zero", "f32[64]!1e-8", lambda x: x.half().float() * 1e8, by="element")
casts("half_overflow_under_where", "f32[64]!1e5", lambda x: torch.where(x.half().isinf(), 1.0, x))
casts("double_to_float_and_back", "f64[64]", lambda x: x - x.float().double())
casts("float_of_large_long", "i64[64]!full", lambda x: x.float() + 1)
casts("float_of_2_to_24", "i64[5]", lambda x: (x + 2**24).float() - 2.0**24)
casts("double_of_2_to_53", "i64[5]", lambda x: (x + 2**53).double() - 2.0**53)
casts(
    "long_of_negative_floats", "f32[64]!10", lambda x: (x.long(), x.int(), (x * 3).to(torch.int16))
)
casts("wrap_of_long_to_int", "i64[64]!full", lambda x: x.int() + 1)
casts("wrap_of_long_to_small", "i64[64]!full", lambda x: [x.to(DTYPES[d]) for d in INTEGERS])
casts("wrap_of_int_to_uint8", "i32[64]!full", lambda x: x.to(torch.uint8).long() + x.to(torch.int8))
casts("uint8_to_int8", "u8[64]!full", lambda x: x.to(torch.int8).int() * 2)
casts("int8_to_uint8", "i8[64]!full", lambda x: x.to(torch.uint8).int() * 2)
casts("bool_of_small_floats", "f32[64]!1e-30", lambda x: (x.bool(), (x * 1e-5).bool().sum()))
casts("bool_of_half", "f16[64]!1e-4", lambda x: (x * x).bool())
casts("bool_of_zero_and_nan", "f32[64]!special", lambda x: x.bool())
casts("bool_of_large_long", "i64[64]", lambda x: (x << 40).bool())
casts("float_of_bool_sum", "bool[9,33]", lambda x: x.float().sum(1) / x.sum(1))
casts("type_as", "f32[7,5] f16[5]", lambda x, y: x.type_as(y) + y)
casts("chain_of_all_floats", "f64[64]", lambda x: x.float().half().float().bfloat16().double() + 1)
casts("cast_between_two_sums", "f32[9,33]", lambda x: (x.sum(1).half() * 2).float().sum())
casts("cast_of_an_expanded", "f32[5,1]", lambda x: x.expand(5, 9).half() + 1, grad=True)
casts("cast_of_a_transposed", "f32[5,9]", lambda x: x.t().bfloat16().contiguous() * 2, grad=True)
casts("int_division_of_a_cast", "f32[64]!100", lambda x: x.int() // 7 * 7 + x.int() % 7)
casts(
    "float_to_int_after_scale",
    "f32[64]",
    lambda x: (x * 127).round().clamp(-128, 127).to(torch.int8),
)
casts("dequantise", "i8[8,16]!full f32[8,1]!pos", lambda q, s: (q.float() - 3) * s)
casts("fake_quantise", "f32[8,16]", lambda x: ((x / 0.1).round().clamp(-8, 7) * 0.1) - x)
casts(
    "cast_and_its_source", "f32[8,16]", lambda x: (x.half(), x.half().float() + x, x.half().sum(1))
)
casts("gradient_through_half", "f32[8,16]", lambda x: (x.half().float() * 3).sum(), grad=True)
casts("where_of_two_types", "f16[8,16] f32[8,16]", lambda x, y: torch.where(x > 0, x, y), grad=True)
casts("cat_of_two_types", "f16[3,16] f32[5,16]", lambda x, y: torch.cat((x, y)) * 2, grad=True)
casts("sum_in_another_type", "f16[9,33]!100", lambda x: (x.sum(1, dtype=torch.float32), x.sum(1)))
casts(
    "to_int32_beyond_its_range",
    "f32[32]!special",
    lambda x: ((x * 2).int(), (x * 1e9).int().clamp(0, 9)),
)
casts("mean_of_ints_as_floats", "i64[9,33]!full", lambda x: x.double().mean(1))
casts("softmax_with_dtype", "f16[9,33]", lambda x: torch.softmax(x, 1, dtype=torch.float32))
casts("prod_with_dtype", "i8[5,4]!nonzero", lambda x: x.prod(1, dtype=torch.int16))
casts(
    "view_as_other_bits", "f32[64]", lambda x: (x.float() * 2).view(torch.int32) & 0xFF, ours=False
)

# --- integers -----------------------------------------------------------------------------------

ints = Family("integers")


def arithmetic(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x + y, x - y, x * y, x * 3 - y, -x, x.abs(), x.square()]


def divisions(x: Tensor, y: Tensor) -> list[Tensor]:
    t = torch.div(x, y, rounding_mode="trunc")
    return [x // y, x % y, t, torch.fmod(x, y), torch.remainder(x, 3), x // 3, x % 5]


def bits(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x & y, x | y, x ^ y, ~x, x << 2, x >> 2, (x ^ 5) & 15]


def comparisons(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x < y, x <= y, x == y, x != y, x > 3, x >= 0, torch.maximum(x, y), x.clamp(2, 7)]


def folds(x: Tensor) -> list[Tensor]:
    found = [x.sum(), x.sum(1), x.amax(1), x.amin(0), x.argmax(1), x.argmin(), x.any(1), x.all(0)]
    return [*found, (x % 3).prod(1), x.max(1)[0], (x != 0).sum(0)]


for each in INTEGERS:
    ints(f"arithmetic_{each}", f"{each}[64]!full {each}[64]!full", arithmetic)
    ints(f"divisions_{each}", f"{each}[64]!full {each}[64]!nonzero", divisions)
    ints(f"bits_{each}", f"{each}[64]!full {each}[64]!full", bits)
    ints(f"comparisons_{each}", f"{each}[64]!full {each}[64]!full", comparisons)
    ints(f"folds_{each}", f"{each}[5,37]!full", folds)
    ints(
        f"true_division_{each}", f"{each}[64]!full {each}[64]!nonzero", lambda x, y: (x / y, x / 7)
    )
    ints(f"with_a_float_{each}", f"{each}[64]", lambda x: (x * 0.5, x + 1.0, x > 0.5, x // 0.3))
    ints(f"any_all_{each}", f"{each}[4,9]", lambda x: (x.any(), x.all(), (x * 2).any(1), x.all(1)))
    ints(f"where_{each}", f"{each}[64]!full", lambda x: torch.where(x > 1, x, 1) + x)
ints("uint8_above_its_range", "u8[64]!full", lambda x: (x < 300, x == 256, x >= 255, x != 1000))
ints("uint8_below_its_range", "u8[64]!full", lambda x: (x > -1, x >= -300, x == -1, x < -1))
ints("int8_beyond_its_range", "i8[64]!full", lambda x: (x < 200, x > -200, x == 255, x <= 128))
ints("int16_beyond_its_range", "i16[64]!full", lambda x: (x < 40000, x > -40000, x == 65535))
ints("int32_beyond_its_range", "i32[64]!full", lambda x: (x < 2**40, x > -(2**40), x == 2**32))
ints("uint8_plus_300", "u8[64]!full", lambda x: (x + 300, x - 300, x * 257))
ints("int8_plus_200", "i8[64]!full", lambda x: (x + 200, x * 200, x - 129))
ints("int16_times_40000", "i16[64]!full", lambda x: x * 40000 + 70000)
ints("int32_plus_2_to_31", "i32[64]!full", lambda x: x + 2**31)
ints("int64_plus_2_to_62", "i64[64]!full", lambda x: (x + 2**62, x * 2**40, x ^ (2**63 - 1)))
ints("uint8_minus_is_no_negative", "u8[64]!full", lambda x: (x - 1, 1 - x, -x))
ints("uint8_clamp_beyond", "u8[64]!full", lambda x: x.clamp(-5, 300), fails=True)
ints("int8_clamp_beyond", "i8[64]!full", lambda x: x.clamp(-1000, 1000) + 1, fails=True)
ints("uint8_fill_beyond", "u8[64]!full", lambda x: torch.full_like(x, 300) + x, fails=True)
ints("uint8_masked_fill_beyond", "u8[64]!full", lambda x: x.masked_fill(x > 3, 300), fails=True)
ints("uint8_shift", "u8[64]!full", lambda x: (x << 3, x >> 1, (x << 7) >> 7))
ints("int8_shift_of_negative", "i8[64]!full", lambda x: (x >> 3, x << 7))
ints("int64_shift_by_40", "i64[64]!full", lambda x: (x << 40, x >> 40, (x >> 63) & 1))
ints("hash_of_tokens", "i64[64]!<50257", lambda x: (x * 0x9E3779B97F4A7C1) % 1000003)
ints("hash_by_xorshift", "i64[64]!full", lambda x: (y := x ^ (x << 13)) ^ (y >> 7) ^ (y << 17))
ints("hash_32", "i32[64]!full", lambda x: ((x ^ 61) ^ (x >> 16)) * 9 + 0x27D4EB2D)
ints("fnv", "i64[8,5]!<256", lambda x: ((x[:, 0] ^ 14695981039346656) * 1099511628211) ^ x[:, 1])
ints("population_count", "i64[64]!full", lambda x: sum((x >> i) & 1 for i in range(0, 64, 7)))
ints("floor_division_by_float", "i64[64]", lambda x: (x // 2.5, x % 2.5))
ints("python_int_over_tensor", "i64[64]!nonzero", lambda x: (100 // x, 100 % x, -7 // x, 7 / x))
ints("remainder_signs", "i64[64]!nonzero", lambda x: [torch.remainder(x, n) for n in (-3, 3, -7)])
ints("fmod_signs", "i32[64]", lambda x: [torch.fmod(x, n) for n in (-3, 3, -7)])
ints("power", "i64[64]", lambda x: (x**2, x**3, x**0, 2 ** (x & 15)))
ints("power_of_tensors", "i64[64] i64[64]!<6", lambda x, y: x**y, ours=False)
ints("small_power", "i8[64] u8[64]", lambda x, y: (x**2, y**3))
ints(
    "mixed_small",
    "u8[64]!full i8[64]!full",
    lambda x, y: (x + y, x * y, x < y, torch.maximum(x, y)),
)
ints("mixed_wide", "i32[64]!full i64[64]!full", lambda x, y: (x + y, x - y, x > y))
ints("mixed_with_bool", "i32[64]!full bool[64]", lambda x, y: (x + y, x * y, x & y, x == y))
ints("bool_arithmetic", "bool[64] bool[64]", lambda x, y: (x + y, x * y, x ^ y, ~x, x & y, x < y))
ints("bool_with_numbers", "bool[64]", lambda x: (x + 1, x * 2.5, x + True, x == 1, x > 0.5))
ints("bool_folds", "bool[5,37]", lambda x: (x.sum(1), x.any(0), x.all(1), x.int().amax(1), x.sum()))
ints("bool_minus_is_refused", "bool[64] bool[64]", lambda x, y: x - y, fails=True)
ints("mean_of_ints_is_refused", "i64[64]", lambda x: (x + 1).mean(), fails=True)
ints("sum_of_int8_is_long", "i8[3,300]!full", lambda x: (x.sum(1), x.sum(1, dtype=torch.int8)))
ints("sum_of_large", "i64[3,37]!full", lambda x: (x.sum(1), (x >> 8).sum()))
ints("sum_of_uint8_products", "u8[3,37]!full", lambda x: (x.int() * x.int()).sum(1))
ints("argmax_of_ties", "i64[9,33]!<3", lambda x: ((x + 1).argmax(1), (x * 2).argmin(1)))
ints("extrema_of_limits", "i64[4,16]!full", lambda x: (x.amax(1), x.amin(1), x.max(), x.min()))
ints("cumulative", "i64[5,9]", lambda x: (x * 2).cumsum(1) + 1)
ints("long_against_float", "i64[64]!full f32[64]", lambda x, y: (x < y, x == x.float(), x + y))
ints("float_scalar_on_int8", "i8[64]", lambda x: (x * 2.0, x / 2, x + 0.5))
ints("zero_dim_does_not_widen", "i8[64] i64[]", lambda x, y: (x + y, x * 3 + y))
ints("integer_product", "i64[5,9] i64[9,3]", lambda x, y: (x + 1) @ y, cpu=True, ours=False)
ints("integer_dot", "i32[37]!full i32[37]", lambda x, y: (x * y).sum(dtype=torch.int64))
ints("sign_and_abs_of_least", "i8[64]!full", lambda x: (x.sign(), x.abs(), -x, x.abs() < 0))
ints(
    "gcd_like_steps",
    "i64[64]!nonzero i64[64]!nonzero",
    lambda x, y: (x % y, y % (x % y).abs().clamp(1)),
)
ints(
    "compare_with_int_extremes",
    "i64[64]!full",
    lambda x: (x == 2**63 - 1, x <= -(2**63), x > -(2**63)),
)
ints("clamp_with_extremes", "i64[64]!full", lambda x: x.clamp(-(2**40), 2**40) + 1)
ints("bitwise_of_scalars", "i64[64]!full", lambda x: (x & 0xFFFFFFFF, x | 2**40, x ^ -1))
ints("uint8_not", "u8[64]!full", lambda x: (~x, ~x + 1, x ^ 255))
ints(
    "logical_of_numbers", "i64[64] f32[64]!ties", lambda x, y: (torch.logical_and(x, y), ~x.bool())
)
ints("round_trip_of_halves", "i64[64]!<2048", lambda x: (x.half().float() + 0.5).long())
ints("floor_divide_floats", "f32[64]!10 f32[64]!pos", lambda x, y: (x // y, x % y), by="element")

# --- constants ----------------------------------------------------------------------------------

constants = Family("constants")
constants("double_tenth", "f64[64]", lambda x: x * 0.1 + 1 / 3, by="element")
constants("double_pi", "f64[64]", lambda x: (x + 3.141592653589793) - 3.141592653589793)
constants("double_clamp", "f64[64]", lambda x: x.clamp(-0.1, 0.1))
constants("double_where", "f64[64]", lambda x: torch.where(x > 0, 0.1, x))
constants("double_compare", "f64[64]!ties", lambda x: (x * 0.1 == 0.1, x < 0.3))
constants("double_full", "f64[64]", lambda x: torch.full_like(x, 0.1) + x)
constants("double_masked_fill", "f64[64]", lambda x: x.masked_fill(x > 0, 0.7) * 2)
constants("double_beyond_float", "f64[64]", lambda x: x * 1e300 * 1e-300 + 1e-200, by="element")
constants("float_beyond_range", "f32[64]", lambda x: (x + 1e39, x < 1e40, x > -1e300))
constants("float_subnormal", "f32[64]", lambda x: (x > 1e-40, x * 1e-38 * 1e38), by="tensor")
constants("half_beyond_range", "f16[64]", lambda x: (x < 1e6, x > -1e6, x.clamp(-6e4, 6e4) + 1))
constants("half_rounds_no_scalar", "f16[64]", lambda x: x * 0.1 + 0.3)
constants(
    "infinities", "f32[64]", lambda x: (x < float("inf"), x + float("inf"), x * float("-inf"))
)
constants("nan", "f32[64]", lambda x: (x + float("nan"), x == float("nan"), x != float("nan")))
constants("negative_zero", "f32[64]", lambda x: torch.signbit(x * 0 + -0.0))
constants("negative_zero_where", "f32[64]", lambda x: torch.signbit(torch.where(x > 0, -0.0, 0.0)))
constants("long_beyond_int32", "i64[64]!full", lambda x: (x + 5_000_000_000, x > 3_000_000_000))
constants("long_fill", "i64[64]", lambda x: x.masked_fill(x > 0, 2**40) + 1)
constants("long_full", "i64[64]", lambda x: torch.full_like(x, 2**40) + x)
constants("int_of_float", "i64[64]", lambda x: torch.full_like(x, 2.7) + x)
constants("float_of_int", "f32[64]", lambda x: torch.full_like(x, 2**24 + 1) + x * 0)
constants("bool_full", "bool[64]", lambda x: torch.full_like(x, 5) & x)
constants(
    "full_of_types",
    "f32[7]",
    lambda x: [torch.full((7,), 3, dtype=d, device=x.device) + x for d in DTYPES.values()],
)
constants("scalar_tensor_float64", "f32[64] f64[]", lambda x, y: x * y + x)
constants("scalar_tensor_half", "f32[64] f16[]", lambda x, y: x * y)
constants("scalar_float_on_ints", "i64[64] f32[]", lambda x, y: x * y + 1)
constants("scalar_double_on_half", "f16[64] f64[]", lambda x, y: x * y, grad=True)
constants("scalar_int_on_half", "f16[64] i64[]", lambda x, y: x * y + 1)
constants("scalar_of_two_scalars", "f32[] f64[]", lambda x, y: (x * y, x + 1, y * 2))
constants("one_dim_of_one_widens", "f16[64] f32[1]", lambda x, y: x * y, grad=True)
constants(
    "tensor_in_the_code",
    "f32[4]",
    lambda x: x * torch.tensor([1.0, 2.0, 3.0, 0.1], device=x.device) + 1,
)
constants("number_as_tensor", "f64[64]", lambda x: x * torch.tensor(0.1, device=x.device) + 1)
constants(
    "ones_zeros_eye", "f32[5,5]", lambda x: x + torch.eye(5, device=x.device) - torch.ones_like(x)
)
constants(
    "eye_of_types",
    "f32[5,7]",
    lambda x: (
        [torch.eye(5, 7, device=x.device, dtype=d) for d in (torch.half, torch.int64)] + [x + 1]
    ),
)
constants(
    "arange_types",
    "f32[7]",
    lambda x: (
        [
            torch.arange(7, device=x.device, dtype=d) * 2
            for d in (torch.int32, torch.half, torch.double)
        ]
        + [x + 1]
    ),
)
constants(
    "arange_of_floats",
    "f32[7]",
    lambda x: torch.arange(0.1, 0.75, 0.1, device=x.device) * x,
    ours=False,
)
constants(
    "arange_of_doubles",
    "f64[7]",
    lambda x: torch.arange(0, 0.7, 0.1, device=x.device, dtype=torch.float64) + x,
    ours=False,
)
constants(
    "arange_beyond_2_31",
    "i64[5]",
    lambda x: torch.arange(2**31 - 2, 2**31 + 3, device=x.device) + x,
)
constants(
    "arange_step_beyond", "i64[5]", lambda x: torch.arange(0, 5 * 2**33, 2**33, device=x.device) + x
)
constants(
    "arange_downwards", "i64[5]", lambda x: torch.arange(2**33, 2**33 - 5, -1, device=x.device) * x
)
constants(
    "arange_times_large", "i64[5]", lambda x: torch.arange(5, device=x.device) * 3_000_000_000 + x
)
constants("linspace", "f32[9]", lambda x: torch.linspace(-1, 1, 9, device=x.device) * x)
constants(
    "linspace_double",
    "f64[9]",
    lambda x: torch.linspace(0, 1, 9, device=x.device, dtype=torch.float64) * x,
)
for _type, _dtype in (("i64", torch.int64), ("i32", torch.int32), ("u8", torch.uint8)):
    constants(
        f"linspace_of_{_type}",
        f"{_type}[33]!<9",
        lambda x, dtype=_dtype: [
            x[:n] + torch.linspace(a, b, n, device=x.device, dtype=dtype)
            for a, b, n in ((3.7, 52.2, 33), (9, 1, 5), (0.9, 1.9, 6), (200, 7, 31))
        ],
    )
constants(
    "linspace_between_tensors",
    "i32[17]!<9 f32[2]!90",
    lambda x, e: x + torch.linspace(e[0], e[1], 17, dtype=torch.int32, device=x.device),
)
constants(
    "promotion_matrix",
    "i8[3] f16[3] bf16[3] f32[3]",
    lambda a, b, c, d: (a + b, b + c, c + d, a * c, b * d, a / b),
)
constants("python_bool", "f32[64]", lambda x: (x + True, x * False, (x > 0) == True))  # noqa: E712
constants("scale_by_power_of_two", "f16[64]", lambda x: x * 2**-14 * 2**14)
constants(
    "divide_by_constant", "f32[64]", lambda x: (x / 3, x / 7, x / 1e-3, 1 / (x + 10)), by="element"
)
constants("double_divide", "f64[64]", lambda x: (x / 3, x / 49, x / 10), by="element")
constants(
    "finfo_in_a_mask",
    "f16[9,33]",
    lambda x: torch.softmax(x.masked_fill(x > 0, torch.finfo(x.dtype).min), 1),
)
constants(
    "addcmul_value", "f64[64] f64[64]", lambda x, y: torch.addcmul(x, y, y, value=0.1), by="tensor"
)
constants("add_alpha", "f64[64] f64[64]", lambda x, y: torch.add(x, y, alpha=0.1))
constants(
    "add_alpha_ints",
    "i64[64] i64[64]",
    lambda x, y: torch.add(x, y, alpha=3) - torch.sub(x, y, alpha=-2),
)
constants("lerp_number", "f64[64] f64[64]", lambda x, y: torch.lerp(x, y, 0.1))
constants("threshold", "f64[64]", lambda x: F.threshold(x, 0.1, 0.7))
constants("hardtanh", "f64[64]", lambda x: F.hardtanh(x, -0.1, 0.3))
constants("nan_to_num", "f32[64]!special", lambda x: x.nan_to_num(0.5, 1e30, -7.0))
constants("pad_value", "f64[5]", lambda x: F.pad(x * 2, (2, 3), value=0.1))
constants("pad_value_long", "i64[5]", lambda x: F.pad(x * 2, (2, 3), value=2**40))

FAMILIES = (casts, ints, constants)
