"""Cheaper forms of functions: by polynomials and the special function unit, less accurate.

For results that are rounded to 16 bits, or where about 2**-20 is accurate enough (`Accuracy` says
which form an operation takes). They are part of `intrinsics.GPU`, some of whose functions they
call.
"""

from __future__ import annotations

QUICK = {
    "erf_plus_one": '''
@triton.jit
def erf_plus_one(x, scale: tl.constexpr):
    """1 + erf(scale * x), scale > 0, by one exponential: 1 - erf(|x|) is 2 to the power of a
    polynomial. Good to 2**-12 of itself, or to 2**-24."""
    a = tl.abs(x)
    p = tl.fma(a, -0.00162403841 * scale**5, 0.0220176431 * scale**4)
    p = tl.fma(p, a, -0.13353679 * scale**3)
    p = tl.fma(p, a, -0.930519102 * scale**2)
    p = tl.fma(p, a, -1.62491533 * scale)
    y = fast_exp2(p * a)
    # 2 - y on the right, y on the left, without a choice.
    return tl.abs(tl.fma(is_positive(x), -2.0, y))
''',
    "quick_log": '''
@triton.jit
def quick_log(x):
    """log: near 1, where the special function unit's error is not small beside the result, a
    polynomial. Relative error 2**-20."""
    y = x - 1.0
    p = tl.fma(y, 0.157574292, -0.181272582)
    p = tl.fma(p, y, 0.199423832)
    p = tl.fma(p, y, -0.249533555)
    p = tl.fma(p, y, 0.333340382)
    p = tl.fma(p, y, -0.500003684)
    p = tl.fma(p, y, 0.999999987)
    return tl.where(tl.abs(y) < 0.25, p * y, libdevice.fast_logf(x))
''',
    "quick_log1p": '''
@triton.jit
def quick_log1p(x):
    """log(1 + x), by the polynomial of `quick_log` near 0. Relative error 2**-20."""
    p = tl.fma(x, 0.157574292, -0.181272582)
    p = tl.fma(p, x, 0.199423832)
    p = tl.fma(p, x, -0.249533555)
    p = tl.fma(p, x, 0.333340382)
    p = tl.fma(p, x, -0.500003684)
    p = tl.fma(p, x, 0.999999987)
    return tl.where(tl.abs(x) < 0.25, p * x, libdevice.fast_logf(1.0 + x))
''',
    "quick_expm1": '''
@triton.jit
def quick_expm1(x):
    """exp(x) - 1, by a polynomial near 0. Relative error 2**-20."""
    p = tl.fma(x, 0.00138888198, 0.00840768268)
    p = tl.fma(p, x, 0.0416687003)
    p = tl.fma(p, x, 0.166659743)
    p = tl.fma(p, x, 0.499999831)
    p = tl.fma(p, x, 1.00000009)
    return tl.where(tl.abs(x) < 0.5, p * x, fast_exp(x) - 1.0)
''',
    "quick_tanh": '''
@triton.jit
def quick_tanh(x):
    """tanh by one exponential and one division, by an odd polynomial near 0. Relative error
    2**-20."""
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, -0.0460281934, 0.13236369)
    p = tl.fma(p, u, -0.333294672)
    p = tl.fma(p, u, 0.999999757)
    # Past the range of the exponential the quotient is 0.
    far = 1.0 - 2.0 / (fast_exp2(a * 2.8853900817779268) + 1.0)
    return tl.where(a < 0.45, p * x, libdevice.copysign(far, x))
''',
    "quick_erf": '''
@triton.jit
def quick_erf(x):
    """erf by 1 - 2**q(|x|), by an odd polynomial near 0. Relative error 2**-19; 1 - erf(x) is
    good to 2**-12 of itself up to 4, as GELU needs it."""
    a = tl.abs(x)
    u = x * x
    p = tl.fma(u, 0.00376721275, -0.0258860729)
    p = tl.fma(p, u, 0.112558926)
    p = tl.fma(p, u, -0.376098039)
    p = tl.fma(p, u, 1.1283787)
    q = tl.fma(a, -0.000833557389, 0.0140406979)
    q = tl.fma(q, a, -0.103323467)
    q = tl.fma(q, a, -0.983644044)
    q = tl.fma(q, a, -1.58196956)
    q = tl.fma(q, a, -0.012676628)
    far = 1.0 - fast_exp2(q)
    return tl.where(a < 0.9, p * x, libdevice.copysign(far, x))
''',
}
