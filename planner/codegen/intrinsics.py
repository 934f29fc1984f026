"""Functions that generated kernels call beside Triton's own, as text.

`GPU` is pasted, function by function as needed, above the kernel. What Triton's interpreter cannot
run, `numpy_functions.py` stands in for there, as for libdevice.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .bit_fields import from_bytes
from .quick_functions import QUICK

STAND_INS = (
    "as_bfloat16",
    "as_float8_e4m3fn",
    "as_float8_e5m2",
    "exp",
    "exp_below_one",
    "fast_exp",
    "fast_exp2",
    "fast_log",
    "fast_log_add_exp",
    "fast_log_cumsum_exp",
    "fast_log_sum_exp",
    "fast_sigmoid",
    "fast_tanh",
    "fmax",
    "fmin",
    "invert",
    "is_positive",
    "logistic",
    "max_nan",
    "min_nan",
    "negative",
    "log_add_exp",
    "log_cumsum_exp",
    "log_sum_exp",
    "prod",
    "relu",
    "trap_unless",
)


def _float8() -> dict[str, str]:
    """Casts to float8, as torch's: a conversion of the GPU gives the largest number for what is
    beyond it. So did torch's to e4m3fn never before 2.12, which gave NaN."""
    with _disable_current_modes():
        saturates = bool(torch.full((), 1e9).to(torch.float8_e4m3fn).float().isfinite())
    beyond = "x" if saturates else 'tl.where(tl.abs(x) > 464.0, float("nan"), x)'
    return {
        "as_float8_e4m3fn": f"""
@triton.jit
def as_float8_e4m3fn(x):
    return ({beyond}).to(tl.float8e4nv).to(tl.float32)
""",
        "as_float8_e5m2": """
@triton.jit
def as_float8_e5m2(x):
    return tl.where(tl.abs(x) < 61440.0, x.to(tl.float8e5).to(tl.float32), x * float("inf"))
""",
    }


def _log_sums(quick: str, rest: str) -> dict[str, str]:
    """log(exp(a) + exp(b)), of two, of all and of all so far along an axis. rest: an expression for
    log(1 + exp(apart)), apart being at most 0. Two equal infinities give that one."""
    return {
        f"{quick}log_add_exp": f"""
@triton.jit
def {quick}log_add_exp(a, b):
    apart = tl.where(a == b, 0.0, -tl.abs(a - b))
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL) + {rest}
""",
        f"{quick}log_sum_exp": f"""
@triton.jit
def {quick}log_sum_exp(x, axis: tl.constexpr):
    return tl.reduce(x, axis, {quick}log_add_exp)
""",
        f"{quick}log_cumsum_exp": f"""
@triton.jit
def {quick}log_cumsum_exp(x, axis: tl.constexpr, reverse: tl.constexpr):
    return tl.associative_scan(x, axis, {quick}log_add_exp, reverse)
""",
    }


GPU = {
    "as_bfloat16": '''
@triton.jit
def as_bfloat16(x):
    """Two numbers are rounded by one instruction, where that for one takes the time of eight."""
    if x.dtype != tl.float32:
        result = x.to(tl.bfloat16).to(tl.float32)
    else:
        result = tl.inline_asm_elementwise(
            "{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, $3, $2; "
            "shl.b32 $0, pair, 16; and.b32 $1, pair, 0xffff0000; }",
            "=r,=r,f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    return result
''',
    "as_float16": """
@triton.jit
def as_float16(x):
    return x.to(tl.float16).to(tl.float32)
""",
    **_float8(),
    "exp": '''
@triton.jit
def exp(x):
    """exp to about 1 ulp: the rounding errors of log2(e) and of x * log2(e) are carried into the
    result."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    t = x * 1.4426950408889634
    rest = tl.fma(x, 1.4426950408889634, -t) + x * 1.925963033500497e-08
    y = tl.exp2(t)
    # Beyond -150 < t < 128, y is 0 or infinite and must stay so.
    return tl.where(tl.abs(t + 11.0) < 139.0, tl.fma(y, rest * 0.6931471805599453, y), y)
''',
    "exp_below_one": '''
@triton.jit
def exp_below_one(x):
    """exp of what is not above 0, by the special function unit. Of 2**24 times as much nothing that
    counts is below 2**-126, so that it keeps what is small. Relative error 2**-20."""
    return fast_exp2(tl.fma(x, 1.4426950408889634, 24.0)) * 5.960464477539063e-08
''',
    "fast_exp": '''
@triton.jit
def fast_exp(x):
    """exp by the special function unit alone; what is below 2**-126 becomes 0."""
    return fast_exp2(x * 1.4426950408889634)
''',
    "fast_exp2": '''
@triton.jit
def fast_exp2(x):
    """2**x by one instruction; what is below 2**-126 becomes 0. Triton's own, which keeps it, takes
    four."""
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    "fast_log": '''
@triton.jit
def fast_log(x):
    """log by the special function unit, for results rounded to bfloat16."""
    return libdevice.fast_logf(x)
''',
    "fast_sigmoid": '''
@triton.jit
def fast_sigmoid(x):
    """1 / (1 + exp(-x)) by the special function unit alone. Its reciprocal flushes what is below
    2**-126, so that it is taken of a smaller number."""
    y = tl.fma(fast_exp2(x * -1.4426950408889634), 5.960464477539063e-08, 5.960464477539063e-08)
    inverse = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
    )
    return inverse * 5.960464477539063e-08
''',
    "from_int8": from_bytes("from_int8", signed=True),
    "from_uint8": from_bytes("from_uint8", signed=False),
    "from_pairs": '''
@triton.jit
def from_pairs(x):
    """float32 of bfloat16, of which two lie in a register."""
    return tl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        "=f,=f,r",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=2,
    )
''',
    "each_twice": '''
@triton.jit
def each_twice(x, shape: tl.constexpr):
    """Every element of the last dimension two times, in the registers of its thread."""
    return tl.reshape(tl.join(x, x), shape)
''',
    "prefetch": '''
@triton.jit
def prefetch(pointers):
    """Bring the lines of these addresses into the L2 cache; the result stands for nothing."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
''',
    "trap_unless": '''
@triton.jit
def trap_unless(inside):
    """End the kernel with an error where an index lies outside, as kernels of eager do."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $1, 0; @p trap; mov.u32 $0, 0; }",
        "=r,r",
        [inside.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
''',
    "fast_tanh": '''
@triton.jit
def fast_tanh(x):
    """tanh by the special function unit (relative error 2**-11), for bfloat16 results."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    "logistic": '''
@triton.jit
def logistic(x):
    """1 / (1 + 2**x) by the special function unit alone; what is below 2**-126 becomes 0."""
    y = 1.0 + fast_exp2(x)
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    "is_positive": '''
@triton.jit
def is_positive(x):
    """1.0 where x is more than 0, else 0.0: one instruction, where a choice takes two."""
    return tl.inline_asm_elementwise(
        "set.gt.f32.f32 $0, $1, 0f00000000;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    **QUICK,
    "sums_of_2": """
@triton.jit
def sums_of_2(a, b, x, y):
    return a + x, b + y
""",
    "sums_of_3": """
@triton.jit
def sums_of_3(a, b, c, x, y, z):
    return a + x, b + y, c + z
""",
    "sums_of_4": """
@triton.jit
def sums_of_4(a, b, c, d, x, y, z, w):
    return a + x, b + y, c + z, d + w
""",
    "relu": '''
@triton.jit
def relu(x):
    """x, or 0 where it is less: 0.0 of -0.0, as CUDA's own kernel gives it."""
    return tl.maximum(x, 0, propagate_nan=tl.PropagateNan.ALL)
''',
    "left_shift": '''
@triton.jit
def left_shift(x, n):
    """x * 2**n; 0 where n is no place of a bit in x."""
    return tl.where((n >= 0) & (n < x.dtype.primitive_bitwidth), x << n, x - x)
''',
    "right_shift": '''
@triton.jit
def right_shift(x, n):
    """x / 2**n, rounded down; where n is no place of a bit in x, only the sign is left."""
    last = x.dtype.primitive_bitwidth - 1
    return tl.where((n >= 0) & (n <= last), x >> n, tl.where(x < 0, x - x - 1, x - x))
''',
    "uniform": '''
@triton.jit
def _mixed(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def uniform(seed, index):
    """The random number in [0, 1) of a seed and an index, bit for bit that of `library.uniform`."""
    low = _mixed(seed.to(tl.uint32))
    high = _mixed((seed >> 32).to(tl.uint32) + low)
    word = _mixed(_mixed(index.to(tl.uint32) ^ low) + high)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08
''',
    "clamp": """
@triton.jit
def clamp(x, low, high):
    if low is not None:
        x = tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    if high is not None:
        x = tl.minimum(x, high, propagate_nan=tl.PropagateNan.ALL)
    return x
""",
    "remainder": '''
@triton.jit
def remainder(x, y):
    """The remainder that has the sign of the divisor; one of both may be a plain number. Of floats
    libdevice's is exact, Triton's own subtracts a rounded product."""
    r = x % y
    if r.dtype.is_floating():
        dividend = tl.where((y == y) | (y != y), x, y)
        r = libdevice.fmod(dividend, tl.where((x == x) | (x != x), y, x))
    return tl.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)
''',
    "fmod": '''
@triton.jit
def fmod(dividend, y):
    """The remainder that has the sign of the dividend, which may be a plain number. libdevice has
    it of floats alone."""
    x = tl.where((y == y) | (y != y), dividend, y)
    if x.dtype.is_floating():
        result = libdevice.fmod(x, y)
    else:
        result = x % y
    return result
''',
    "power": '''
@triton.jit
def power(x, y):
    """x to the power of y, one of which may be a plain number: libdevice takes equal types."""
    base = tl.where((y == y) | (y != y), x, y)
    exponent = tl.where((x == x) | (x != x), y, x)
    return libdevice.pow(base, exponent)
''',
    "copysign": '''
@triton.jit
def copysign(x, y):
    """The size of x with the sign of y, which may be a plain number."""
    return libdevice.copysign(x, tl.where((x == x) | (x != x), y, x))
''',
    "floor_divide": '''
@triton.jit
def _floor_divide(x, y):
    r = libdevice.fmod(x, y)
    q = (x - r) / y
    q = tl.where((r != 0) & ((y < 0) != (r < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    whole = tl.where(q == 0, libdevice.copysign(q - q, x / y), whole)
    return tl.where(y == 0, x / y, whole)


@triton.jit
def floor_divide(dividend, divisor):
    """dividend / divisor rounded down: as torch, from the exact remainder, which a rounded quotient
    is not. One of both may be a plain number."""
    x = tl.where((divisor == divisor) | (divisor != divisor), dividend, divisor)
    y = tl.where((x == x) | (x != x), divisor, x)
    if x.dtype.is_floating():
        result = _floor_divide(x, y)
    else:
        q = x // y
        result = tl.where((x % y != 0) & ((x < 0) != (y < 0)), q - 1, q)
    return result
''',
    "trunc_divide": '''
@triton.jit
def trunc_divide(dividend, divisor):
    """dividend / divisor rounded towards 0. One of both may be a plain number."""
    x = tl.where((divisor == divisor) | (divisor != divisor), dividend, divisor)
    y = tl.where((x == x) | (x != x), divisor, x)
    if x.dtype == tl.float64:
        result = libdevice.trunc(x / y)
    elif x.dtype.is_floating():
        result = libdevice.trunc(tl.div_rn(x, y))
    else:
        result = x // y
    return result
''',
    "signbit": '''
@triton.jit
def signbit(x):
    """Whether a number is negative, -0.0 too."""
    if x.dtype.is_floating():
        result = libdevice.copysign(tl.where((x == x) | (x != x), 1.0, x), x) < 0
    else:
        result = x < 0
    return result
''',
    "fmax": '''
@triton.jit
def fmax(x, y):
    """The greater of two numbers; a NaN counts as none, and 0.0 as greater than -0.0."""
    return tl.maximum(x, y)
''',
    "fmin": '''
@triton.jit
def fmin(x, y):
    """The lesser of two numbers; a NaN counts as none, and -0.0 as less than 0.0."""
    return tl.minimum(x, y)
''',
    "negative": '''
@triton.jit
def negative(x):
    """-x; Triton's own is 0 - x, which loses the sign of a zero."""
    if x.dtype.is_floating():
        result = x * -1.0
    else:
        result = -x
    return result
''',
    "invert": """
@triton.jit
def invert(x):
    return ~x
""",
    "max_nan": '''
@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_nan(x, axis: tl.constexpr):
    """Maximum along an axis, NaN when there is one."""
    if x.dtype.is_floating():
        return tl.reduce(x, axis, _max_nan)
    return tl.max(x, axis)
''',
    "min_nan": '''
@triton.jit
def _min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_nan(x, axis: tl.constexpr):
    """Minimum along an axis, NaN when there is one."""
    if x.dtype.is_floating():
        return tl.reduce(x, axis, _min_nan)
    return tl.min(x, axis)
''',
    "prod": """
@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def prod(x, axis: tl.constexpr):
    return tl.reduce(x, axis, _multiply)
""",
    **_log_sums("", "libdevice.log1p(exp(apart))"),
    **_log_sums("fast_", "tl.log2(1.0 + tl.exp2(apart * 1.4426950408889634)) * 0.6931471805599453"),
}
