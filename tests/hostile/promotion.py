"""Types that meet: promotion, Python's numbers, types that are rare."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hostile.cases import Family, Maker

# --- promotion ----------------------------------------------------------------------------------

promotion = Family("promotion")
PAIRS = (
    ("u8", "i16"),
    ("u8", "i8"),
    ("i8", "f16"),
    ("i64", "f16"),
    ("i32", "bf16"),
    ("f16", "bf16"),
    ("bf16", "f32"),
    ("f16", "f64"),
    ("bool", "u8"),
    ("bool", "bf16"),
    ("i16", "f64"),
)


def meet(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x + y, x * y, x > y, x == y, torch.maximum(x, y), torch.where(x > 0, x, y)]


for one, other in PAIRS:
    promotion(f"{one}_meets_{other}", f"{one}[5,9] {other}[9]", meet)
    promotion(f"{one}_meets_0d_{other}", f"{one}[5,9] {other}[]", meet)
    promotion(f"0d_{one}_meets_{other}", f"{one}[] {other}[5,9]", meet)
promotion("0d_of_both", "f16[] i64[]", meet)
promotion(
    "0d_double_beside_half", "f64[] f16[7]", lambda x, y: (x / y, y**2 - x, torch.atan2(y, x))
)
promotion(
    "0d_results_stay_weak",
    "f32[3,5] f64[7]",
    lambda x, y: (x * y.sum(), x + y.amax(), torch.where(x > y.mean(), x, 0)),
)
promotion(
    "0d_beyond_half", "f16[7] f32[]", lambda x, y: (x * (y.abs() + 1e5), x > y + 7e4, x + y * 0)
)
promotion(
    "0d_long_beyond_int8", "i8[7]!full i64[]", lambda x, y: (x + (y + 300), x * (y * 0 + 129))
)
promotion(
    "0d_of_many_types",
    "f32[5] bool[] f64[] i64[] i64[] i8[] f16[] f64[]",
    lambda x, *numbers: [x * number for number in numbers],
)
promotion("0d_float_on_bool", "bool[7] f64[]", lambda x, y: (x * y, x + y, x == y))
promotion("python_over_half", "f16[7]!pos", lambda x: (1 / x, 3 - x, 2**x, 7 // x, 5 % x))
promotion("python_float_on_long", "i64[7]!full", lambda x: (x * 1.0, x - 0.5, x / 3, x == 2.0**62))
promotion(
    "python_bool_on_all", "f16[7] i8[7]", lambda x, y: (x + True, y * False, y ^ True, x.eq(True))
)
promotion("python_inf_on_long", "i64[7]", lambda x: (x * float("inf"), x < float("inf"), x + 1e300))
promotion(
    "python_large_on_half", "f16[7]", lambda x: (x + 1e5, x * 1e-8, x * 1e-8 * 1e8, x - 65519)
)
promotion("python_large_on_bfloat", "bf16[7]", lambda x: (x * 1e38 * 10, x + 1e39, x * 1e-45))
promotion(
    "alpha_of_another_type", "f16[7] i64[7]", lambda x, y: (x.add(y, alpha=0.3), y.add(y, alpha=3))
)
promotion(
    "rsub_of_types", "i8[7] f16[7]", lambda x, y: (torch.rsub(x, 5), torch.rsub(y, 2.5, alpha=3))
)
promotion("lerp_of_half_by_number", "f16[7] f16[7]", lambda x, y: (x.lerp(y, 0.3), x.lerp(y, 0.7)))
promotion(
    "addcmul_of_half",
    "f16[7] f16[7] f16[7]",
    lambda x, y, z: (x.addcmul(y, z, value=0.1), x.addcdiv(y, z.abs() + 1, value=3)),
)
promotion("addcmul_of_ints", "i64[7] i64[7] i64[7]", lambda x, y, z: x.addcmul(y, z, value=3))
promotion(
    "addcmul_of_ints_and_a_float",
    "i32[7] i32[7] i32[7]",
    lambda x, y, z: x.addcmul(y, z, value=1.7),
)
promotion(
    "addcmul_of_an_int_and_floats",
    "i64[7] f32[7] i64[7]",
    lambda x, y, z: x.addcmul(y, z, value=0.7),
)
promotion("clamp_of_half_by_float_tensors", "f16[7] f32[7] f32[7]", lambda x, y, z: x.clamp(y, z))
promotion("clamp_of_long_by_floats", "i64[7]", lambda x: (x.clamp(-1.5, 2.5), x.clamp(min=0.5)))
promotion(
    "where_of_number_and_half",
    "f16[7]",
    lambda x: (torch.where(x > 0, x, 0.1), torch.where(x > 0, 1e4, x)),
)
promotion(
    "where_of_long_and_float_number",
    "i64[7]",
    lambda x: (torch.where(x > 0, x, 0.5), torch.where(x > 0, 3, x)),
)
promotion("cat_of_three_types", "i8[3] f16[4] bf16[2]", lambda x, y, z: torch.cat((x, y, z)) * 2)
promotion("stack_of_bool_and_long", "bool[4] i64[4]", lambda x, y: torch.stack((x, y)) + 1)
promotion(
    "mean_with_dtype",
    "i8[5,9]!full f16[5,9]",
    lambda x, y: (x.mean(1, dtype=torch.float32), y.mean(0, dtype=torch.float64)),
)
promotion(
    "sum_with_dtype",
    "bool[5,9] f32[5,9]",
    lambda x, y: (
        x.sum(1, dtype=torch.int8),
        y.sum(1, dtype=torch.float16),
        y.sum(dtype=torch.float64),
    ),
)
promotion(
    "cumsum_with_dtype",
    "i8[5,9]!full bool[5,9]",
    lambda x, y: (x.cumsum(1), x.cumsum(1, dtype=torch.int8), y.cumsum(0)),
)
promotion("prod_of_bools", "bool[5,4]", lambda x: (x.prod(1), (~x).prod(0), x.prod()))
promotion(
    "int_functions_give_floats",
    "i32[7]",
    lambda x: (x.exp(), x.sin(), x.abs().sqrt(), x.sigmoid(), x.erf(), x.tanh()),
)
promotion("bool_functions_give_floats", "bool[7]", lambda x: (x.exp(), x.sqrt(), x.sigmoid()))
promotion(
    "rounding_of_ints", "i64[7]!full", lambda x: (x.floor() + 1, x.ceil(), x.round(), x.trunc() - 1)
)
promotion(
    "true_divide_of_bytes",
    "u8[7]!full u8[7]!nonzero",
    lambda x, y: (x / y, x.true_divide(3), 255 / y),
)
promotion(
    "float_power",
    "i32[7] f16[7]!pos",
    lambda x, y: (torch.float_power(x, 2), torch.float_power(y, 0.5)),
)
promotion(
    "ldexp_far",
    "f32[7] i32[7]",
    lambda x, y: (torch.ldexp(x * 1e-30, y * 22), torch.ldexp(x, y * 9)),
    by="element",
)
promotion("ldexp_of_half", "f16[7] i16[7]", lambda x, y: torch.ldexp(x, y))
promotion("ldexp_of_ints", "f32[7] i32[7]", lambda x, y: torch.ldexp(x, y))
promotion(
    "comparison_of_long_and_half",
    "i64[64]!full f16[64]!special",
    lambda x, y: (x < y, x == y, x >= y),
)
promotion(
    "comparison_of_long_and_double",
    "i64[64]!full f64[64]",
    lambda x, y: (x < y * 1e18, x.double() == x),
)
promotion(
    "equal_bytes_and_int8", "u8[64]!full i8[64]!full", lambda x, y: (x == y, x < y, x.eq(y).sum())
)
promotion(
    "result_type_of_where_chain",
    "f16[7] bf16[7] i64[7]",
    lambda x, y, z: torch.where(z > 0, x, y) * z,
)
promotion("gradient_of_mixed", "f16[5,9] f32[9] f64[]", lambda x, y, z: x * y + z, grad=True)
promotion("gradient_of_0d_half", "f32[5,9] f16[]", lambda x, y: (x * y).sin(), grad=True)
promotion("gradient_of_cat", "f16[3] f64[4]", lambda x, y: torch.cat((x, y)).sin(), grad=True)
promotion(
    "gradient_of_where_promoted",
    "f16[7] f64[7]",
    lambda x, y: torch.where(x > y, x, y) * 3,
    grad=True,
)
promotion("gradient_through_long", "f32[7]", lambda x: x * x.long(), grad=True)

# --- rare types ---------------------------------------------------------------------------------

rare = Family("rare-types", ours=False)


def as_type(dtype: torch.dtype, *words: str, scale: float = 1.0):  # type: ignore[no-untyped-def]
    def make(m: Maker) -> Sequence[Tensor]:
        return [(m(word) * scale if scale != 1 else m(word)).to(dtype) for word in words]

    return make


for name, dtype in (("u16", torch.uint16), ("u32", torch.uint32), ("u64", torch.uint64)):
    rare(
        f"{name}_to_others",
        as_type(dtype, "i64[64]!<60000"),
        lambda x: (x.to(torch.int64) * 2, x.to(torch.float32) + 1),
    )
    rare(f"{name}_from_others", "i64[64]!<60000", lambda x, d=dtype: (x + 1).to(d))
    rare(
        f"{name}_beside_work",
        lambda m, d=dtype: [m("i64[64]!<60000").to(d), m("f32[64]")],
        lambda x, y: (x, y * 2 + 1),
    )
    rare(
        f"{name}_view",
        as_type(dtype, "i64[8,8]!<60000"),
        lambda x: (x.view(4, 16), x.t().contiguous(), x[1:3]),
    )
rare(
    "u16_bits_of_bfloat",
    "f32[64]",
    lambda x: ((x * 2).to(torch.bfloat16).view(torch.uint16).to(torch.int32) >> 7) & 0xFF,
)
rare("u16_beyond", "i64[64]!full", lambda x: x.to(torch.uint16).to(torch.int64) + 1)
rare("u32_beyond", "i64[64]!full", lambda x: x.to(torch.uint32).to(torch.int64) + 1)
for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    rare(f"{name}_read", as_type(dtype, "f32[8,16]"), lambda x: x.to(torch.float32) * 2 + 1)
    rare(f"{name}_written", "f32[8,16]", lambda x, d=dtype: (x * 3).to(d))
    rare(f"{name}_there_and_back", "f32[8,16]!100", lambda x, d=dtype: x.to(d).float() - x)
    rare(f"{name}_from_half", "f16[8,16]!100", lambda x, d=dtype: (x * 0.5).to(d).half())
    rare(f"{name}_from_bfloat", "bf16[8,16]!special", lambda x, d=dtype: x.to(d).bfloat16())
    rare(f"{name}_from_double", "f64[8,16]!100", lambda x, d=dtype: x.to(d).double() * 3)
    rare(f"{name}_tiny", "f32[8,16]!1e-3", lambda x, d=dtype: x.to(d).float())
    rare(
        f"{name}_quantised_by_row",
        "f32[8,16]",
        lambda x, d=dtype: (
            (y := x / x.abs().amax(1, keepdim=True) * 100).to(d),
            y.to(d).float().sum(1),
        ),
    )
    rare(f"{name}_transposed", as_type(dtype, "f32[8,16]"), lambda x: x.t().to(torch.float16) + 1)
    rare(
        f"{name}_compared",
        as_type(dtype, "f32[8,16]!ties"),
        lambda x: (x.float() == x.float().t().contiguous().t(), x.bfloat16().amax(1)),
    )


def complexes(*words: str):  # type: ignore[no-untyped-def]
    def make(m: Maker) -> Sequence[Tensor]:
        return [torch.complex(m(word), m(word)) for word in words]

    return make


rare(
    "complex_arithmetic",
    complexes("f32[7]", "f32[7]"),
    lambda x, y: torch.view_as_real(x * y + x.conj()),
)
rare("complex_parts", complexes("f32[7]"), lambda x: (x.real * 2 + x.imag, x.abs(), x.angle()))
rare(
    "complex_beside_real",
    lambda m: [*complexes("f32[7]")(m), m("f32[7]")],
    lambda x, y: (torch.view_as_real(x * y), y.exp()),
)
rare("complex_built", "f32[7] f32[7]", lambda x, y: torch.view_as_real(torch.complex(x, y) ** 2))
rare(
    "complex_rotary",
    "f32[2,5,8] f32[5,4]",
    lambda x, a: torch.view_as_real(
        torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones_like(a), a)
    ).flatten(2),
)
rare(
    "complex_spectrum",
    "f32[5,16]",
    lambda x: torch.fft.irfft(torch.fft.rfft(x * 2) * 0.5, n=16) + 1,
)
rare("complex_gradient", "f32[7] f32[7]", lambda x, y: torch.complex(x, y).abs() * 2, grad=True)
rare(
    "complex_outputs_conjugated",
    complexes("f32[3,5]"),
    lambda x: torch.view_as_real((x.mH @ x).resolve_conj()),
)
rare("bool_as_bytes", "bool[64]", lambda x: x.view(torch.uint8) + 1)
rare("float_bits_as_long", "f64[64]", lambda x: (x * 2).view(torch.int64) ^ 1)
rare("half_bits", "f32[64]!special", lambda x: x.half().view(torch.int16) & 0x7FFF)
rare("wider_view", "i16[8,8]!full", lambda x: (x + 1).view(torch.int32) + 1)
rare("narrower_view", "i32[8,4]!full", lambda x: (x + 1).view(torch.int8).sum(1))

FAMILIES = (promotion, rare)
