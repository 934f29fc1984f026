"""Types and numbers that kernels rarely see: unsigned integers of every width, float8, complex,
integers at their ends, booleans as numbers, and indices of the small types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family, Maker

# --- unsigned integers --------------------------------------------------------------------------

unsigned = Family("unsigned", ours=False)

WIDTHS = {"u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64}


def of_width(dtype: torch.dtype, *words: str) -> Callable[[Maker], Sequence[Tensor]]:
    """Inputs of integers, the first of them in this type."""

    def made(m: Maker) -> list[Tensor]:
        first, *rest = m.all(" ".join(words))
        return [first.abs().to(dtype), *rest]

    return made


for _name, _dtype in WIDTHS.items():
    unsigned(
        f"{_name}_as_floats", of_width(_dtype, "i64[37]!<60000"), lambda x: (x.float() * 2).sum()
    )
    unsigned(f"{_name}_as_long", of_width(_dtype, "i64[37]!full"), lambda x: x.long() + 1)
    unsigned(f"{_name}_returned", of_width(_dtype, "i64[6,5]"), lambda x: (x.t(), x.float() + 1))
    unsigned(
        f"{_name}_made",
        "i64[37]!<60000",
        lambda x, d=_dtype: ((x + 1).to(d), (x * 2).float().softmax(0)),
    )
    unsigned(
        f"{_name}_joined",
        of_width(_dtype, "i64[6,5]", "f32[6,5]"),
        lambda x, y: (torch.cat((x, x)), y.exp() + x.float()),
    )

# --- integers at their ends ---------------------------------------------------------------------

ends = Family("ends")
for _word in ("i8", "u8", "i16", "i32", "i64"):
    given = f"{_word}[33]!full {_word}[33]!nonzero"
    ends(f"{_word}_sum_is_long", given, lambda x, y: ((x + y).sum(), (x * y).prod()))
    ends(f"{_word}_mean_in_float", given, lambda x, y: (x.float().mean(), (x > y).float().mean()))
    ends(f"{_word}_absolute", given, lambda x, y: (x.abs(), x.neg(), (x - y).sign(), x.square()))
    ends(
        f"{_word}_divided",
        given,
        lambda x, y: (x / y, x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x.fmod(y)),
        by="element",
    )
    ends(
        f"{_word}_shifted_by_all",
        given,
        lambda x, y: (x << 1, x >> 1, x << 7, x >> 7, x & y, x | y, x ^ y, ~x),
    )
    ends(
        f"{_word}_extrema", given, lambda x, y: (x.max(), x.min(), torch.maximum(x, y), x.argmax())
    )
    ends(f"{_word}_clamped", given, lambda x, y: (x.clamp(-3, 100), x.clamp(min=y), x.clip(max=5)))
    ends(f"{_word}_cumulative", given, lambda x, y: (x.cumsum(0), y.cumprod(0), x.diff()))
    ends(
        f"{_word}_powers",
        given,
        lambda x, y: (x**2, y**3, y**0, torch.pow(2, y.abs().clamp(max=6))),
    )
    ends(f"{_word}_as_bool", given, lambda x, y: (x.bool(), x.logical_not(), x.any(), y.all()))

ends("int_by_float_scalar", "i32[33]!full", lambda x: (x * 0.5, x + 1e10, x / 3, x // 2.5, x**0.5))
ends(
    "large_int_as_float",
    "i64[33]!full",
    lambda x: (x.float(), x.double() + 0.5, x.to(torch.bfloat16)),
)
ends("float_as_small_int", "f32[33]!100", lambda x: (x.to(torch.int8), x.int(), x.to(torch.int16)))
ends("bool_arithmetic", "bool[33] bool[33]", lambda x, y: (x + y, x * y, x & ~y, x ^ y, x.sum()))
ends("bool_and_numbers", "bool[33]", lambda x: (x + 1, x * 2.5, 3 - x.int(), x / 2, x**2))
ends(
    "bool_cumulative", "bool[5,33]", lambda x: (x.cumsum(1), x.int().cumprod(1), x.float().mean(1))
)
ends("bool_extrema", "bool[5,33]", lambda x: (x.amax(1), x.amin(0), x.int().argmax(1), x.max()))
ends(
    "bool_compared",
    "bool[33] bool[33]",
    lambda x, y: (x == y, x < y, x >= y, torch.where(x, y, ~y)),
)
ends(
    "i64_beyond_double",
    "i64[33]!full",
    lambda x: (x == x.double().long(), x > 2**62, x < -(2**63) + 5),
)
ends(
    "gcd_free_hash", "i64[33]!full", lambda x: (x * 6364136223846793005 + 1442695040888963407) >> 33
)
ends(
    "byte_image_blend",
    "u8[5,33]!full u8[5,33]!full",
    lambda x, y: ((x.int() * 3 + y.int()) // 4).to(torch.uint8),
)
ends(
    "byte_minus_byte",
    "u8[5,33]!full u8[5,33]!full",
    lambda x, y: ((x - y).abs(), (y - x).float().mean()),
)
ends("average_by_shift", "i16[33]!full i16[33]!full", lambda x, y: (x & y) + ((x ^ y) >> 1))
ends(
    "count_by_compare", "i32[5,33]", lambda x: ((x > 0).sum(1), (x == 3).sum(), (x % 2 == 0).sum(0))
)

# --- float8 -------------------------------------------------------------------------------------

eighths = Family("float8")


def eight(dtype: torch.dtype, word: str) -> Callable[[Maker], Sequence[Tensor]]:
    def made(m: Maker) -> list[Tensor]:
        x = m(word)
        # The exact way takes the same numbers, in float64.
        return [x.to(dtype).to(x.dtype) if m.wide else x.to(dtype)]

    return made


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


for _name, _dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    eighths(f"{_name}_read", eight(_dtype, "f32[5,33]"), lambda x: (_wide(x) * 2).softmax(1))
    eighths(f"{_name}_transposed", eight(_dtype, "f32[6,33]"), lambda x: _wide(x.t()).sum(0) + 1)
    eighths(f"{_name}_sliced", eight(_dtype, "f32[6,33]"), lambda x: _wide(x[1:5, 3:]).exp() + 1)
    eighths(
        f"{_name}_special",
        eight(_dtype, "f32[64]!special"),
        lambda x: (_wide(x) + 1, _wide(x).abs()),
    )

# --- complex beside ours ------------------------------------------------------------------------

complexes = Family("complex")


def pairs(*words: str) -> Callable[[Maker], Sequence[Tensor]]:
    """The first two inputs as one complex input."""

    def made(m: Maker) -> list[Tensor]:
        first, second, *rest = m.all(" ".join(words))
        return [torch.complex(first, second), *rest]

    return made


complexes(
    "norm_of",
    pairs("f32[5,9]", "f32[5,9]", "f32[5,9]"),
    lambda z, x: (z.abs().square() + x.exp()).sum(1),
)
complexes(
    "conjugated",
    pairs("f32[5,9]", "f32[5,9]", "f32[5,9]"),
    lambda z, x: (z * z.conj()).real + x * 2,
)
complexes(
    "phase",
    pairs("f32[5,9]", "f32[5,9]", "f32[5,9]"),
    lambda z, x: (z.angle().cos() * x, x.softmax(1)),
)
complexes(
    "returned_beside", pairs("f32[5,9]", "f32[5,9]", "f32[5,9]"), lambda z, x: (z.t(), x.exp() + 1)
)
complexes("as_real", pairs("f32[5,9]", "f32[5,9]"), lambda z: torch.view_as_real(z).sin() + 1)


def _turned(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(wide.reshape(2, 5, 3, 9, 2))
    return torch.view_as_real(pairs * z[None, :, None]).flatten(3).to(x.dtype)


complexes("rotary_of_bfloat16", pairs("f32[5,9]", "f32[5,9]", "bf16[2,5,3,18]"), _turned)
complexes("rotary_of_float32", pairs("f32[5,9]", "f32[5,9]", "f32[2,5,3,18]"), _turned)
complexes(
    "real_view_sum", pairs("f32[5,9]", "f32[5,9]"), lambda z: (z.real.softmax(1) * z.imag).sum(0)
)
complexes("to_complex", "f32[5,9]", lambda x: ((x * 2).to(torch.complex64) * 1j).imag + x)
complexes(
    "fft_filter", "f32[5,16]", lambda x: torch.fft.irfft(torch.fft.rfft(x * 2) * 0.5, n=16) + 1
)
complexes("polar", "f32[9]!pos f32[9]", lambda r, a: torch.polar(r * 2, a).real + 1)
complexes(
    "where_of_complex",
    pairs("f32[9]", "f32[9]", "f32[9]"),
    lambda z, x: torch.where(x > 0, z, z.conj()).abs() + x.exp(),
)
complexes(
    "resolved",
    pairs("f32[9]", "f32[9]"),
    lambda z: (z.conj().resolve_conj().imag * 2, z.conj().imag + 1),
)
complexes(
    "negative_view", pairs("f32[9]", "f32[9]"), lambda z: (z.conj().imag.exp(), z.conj().imag)
)
complexes(
    "gradient", "f32[5,9] f32[5,9]", lambda a, b: torch.complex(a.sin(), b).abs() * 2, grad=True
)
complexes(
    "gradient_of_fft", "f32[5,16]", lambda x: torch.fft.rfft(x.tanh()).abs().sum(1), grad=True
)

# --- indices of small types ---------------------------------------------------------------------

indices = Family("indices")
indices("by_int32", "f32[9,5] i32[7]!<9", lambda x, i: x[i] * 2 + F.embedding(i, x))
indices("by_uint8_is_a_mask", "f32[9,5] u8[9]!<2", lambda x, i: x[i] * 2, ours=False)
indices("by_bool_scalar", "f32[9,5]", lambda x: (x * 2)[None, :, None] + 1)
indices(
    "by_int16_is_refused",
    "f32[9,5] i16[7]!<9",
    lambda x, i: torch.gather(x, 0, i[:, None]),
    fails=True,
)
indices(
    "embedding_int32_grad",
    "f32[9,5] i32[7]!<9",
    lambda x, i: F.embedding(i, x * 2).tanh(),
    grad=True,
)
indices(
    "embedding_padding",
    "f32[9,5] i64[4,7]!<9",
    lambda x, i: F.embedding(i, x * 2, padding_idx=3).sin(),
    grad=True,
)
indices(
    "embedding_scaled",
    "f32[9,5] i64[7,7]!<9",
    lambda x, i: F.embedding(i, x, scale_grad_by_freq=True) * 2,
    grad=True,
)
indices(
    "out_of_range_rows_masked",
    "f32[9,5] i64[7]!<9",
    lambda x, i: torch.where((i > 4)[:, None], x[(i - 4).clamp(min=0)], 0.0) * 2,
)

FAMILIES = (unsigned, ends, eighths, complexes, indices)
