"""Functions that generated kernels call beside Triton's own, as text.

`GPU` is pasted, function by function as needed, above the kernel. What Triton's interpreter cannot
run, `interpreted.py` stands in for there, as for libdevice.
"""

from __future__ import annotations

STAND_INS = ("fast_log", "fast_tanh", "max_nan", "min_nan", "prod")

GPU = {
    "exp": '''
@triton.jit
def exp(x):
    """exp to about 1 ulp: the rounding error of x * log2(e) is carried into the result."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    t = x * 1.4426950408889634
    rest = tl.fma(x, 1.4426950408889634, -t)
    y = tl.exp2(t)
    # Beyond -150 < t < 128, y is 0 or infinite and must stay so.
    return tl.where(tl.abs(t + 11.0) < 139.0, tl.fma(y, rest * 0.6931471805599453, y), y)
''',
    "fast_log": '''
@triton.jit
def fast_log(x):
    """log by the special function unit, for results rounded to bfloat16."""
    return libdevice.fast_logf(x)
''',
    "fast_tanh": '''
@triton.jit
def fast_tanh(x):
    """tanh by the special function unit (relative error 2**-11), for bfloat16 results."""
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
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
    """The remainder that has the sign of the divisor."""
    r = x % y
    return tl.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)
''',
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
}
