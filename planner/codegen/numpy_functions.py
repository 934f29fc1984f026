"""Stand-ins, in Triton's interpreter, for libdevice and the functions of `intrinsics.py`.

The interpreter runs kernels on NumPy arrays and has no libdevice and no inline assembly; each
function here is NumPy's own of the same meaning, so that the expressions of the operation table run
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def _wrap(data: Any, like: Any) -> Any:
    handle = TensorHandle(np.asarray(data, dtype=like.handle.data.dtype), like.handle.dtype)
    return tl.core.tensor(handle, like.type)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, *more: Any) -> Any:
        arrays = [getattr(getattr(a, "handle", None), "data", a) for a in (x, *more)]
        tensor = next(a for a in (x, *more) if hasattr(a, "handle"))
        with np.errstate(all="ignore"):
            data = np.asarray(function(*arrays))
        if data.shape == tensor.handle.data.shape:
            return _wrap(data, tensor)
        # Operands of different shapes, or a scalar beside a tile, which counts as [1].
        element = tensor.handle.data.dtype
        handle = TensorHandle(np.asarray(data, dtype=element), tensor.handle.dtype)
        return tl.core.tensor(handle, tl.block_type(tensor.dtype, list(data.shape)))

    return call


def _by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return function(torch.from_numpy(np.ascontiguousarray(x))).numpy()

    return _elementwise(call)


tanh = _elementwise(np.tanh)
expm1 = _elementwise(np.expm1)
log10 = _elementwise(np.log10)
log1p = _elementwise(np.log1p)
erfc = _by_torch(torch.special.erfc)
erfcx = _by_torch(torch.special.erfcx)
erfinv = _by_torch(torch.special.erfinv)
normcdfinv = _by_torch(torch.special.ndtri)
lgamma = _by_torch(torch.special.gammaln)
cyl_bessel_i0 = _by_torch(torch.special.i0)
cyl_bessel_i1 = _by_torch(torch.special.i1)
j0 = _by_torch(torch.special.bessel_j0)
j1 = _by_torch(torch.special.bessel_j1)
y0 = _by_torch(torch.special.bessel_y0)
y1 = _by_torch(torch.special.bessel_y1)
tan = _elementwise(np.tan)
asin = _elementwise(np.arcsin)
acos = _elementwise(np.arccos)
atan = _elementwise(np.arctan)
sinh = _elementwise(np.sinh)
cosh = _elementwise(np.cosh)
asinh = _elementwise(np.arcsinh)
acosh = _elementwise(np.arccosh)
atanh = _elementwise(np.arctanh)
atan2 = _elementwise(np.arctan2)
trunc = _elementwise(np.trunc)
rint = _elementwise(np.rint)
fmod = _elementwise(np.fmod)
fmax = _elementwise(np.fmax)
fmin = _elementwise(np.fmin)
relu = _elementwise(lambda x: np.where(x < 0, np.zeros_like(x), x))  # -0.0 as on a CPU
invert = _elementwise(np.invert)
negative = _elementwise(np.negative)
copysign = _elementwise(np.copysign)
hypot = _elementwise(np.hypot)
nextafter = _elementwise(np.nextafter)
pow = _elementwise(np.power)
exp2 = _elementwise(np.exp2)
exp = _elementwise(np.exp)  # whose fused multiply-add the interpreter rounds twice
fast_exp = exp_below_one = exp
fast_exp2 = _elementwise(np.exp2)
fast_log = _elementwise(np.log)
fast_logf = _elementwise(np.log)
fast_sigmoid = _elementwise(lambda x: 1 / (1 + np.exp(-x)))
fast_tanh = _elementwise(np.tanh)
is_positive = _elementwise(lambda x: (x > 0).astype(x.dtype))
logistic = _elementwise(lambda x: 1 / (1 + np.exp2(x)))


def trap_unless(inside: Any) -> None:
    """Raises IndexError where an index lies outside."""
    if not inside.handle.data.all():
        raise IndexError("an index is out of bounds of the tensor that is written")


def rounded(x: Any) -> Any:
    """float32 at bfloat16's precision, rounded to nearest even."""
    if not hasattr(x, "handle"):
        x = tl.full([1], x, tl.float32)
    data = torch.from_numpy(np.array(x.handle.data, dtype=np.float32))
    return _wrap(data.to(torch.bfloat16).to(torch.float32).numpy(), x)


as_bfloat16 = rounded


def _float8(held: tl.dtype, dtype: torch.dtype) -> tuple[Callable[[Any], Any], ...]:
    """A float8, of which the interpreter has the bits: from it, to it, and rounded to it."""

    def tensor(data: torch.Tensor, of: tl.dtype, like: Any) -> Any:
        handle = TensorHandle(data.numpy(), of)
        return tl.core.tensor(handle, tl.block_type(of, list(like.shape)) if like.shape else of)

    def read(x: Any) -> Any:
        bits = torch.from_numpy(np.array(x.handle.data, dtype=np.uint8))
        return tensor(bits.view(dtype).to(torch.float32), tl.float32, x)

    def write(x: Any) -> Any:
        data = torch.from_numpy(np.array(x.handle.data, dtype=np.float32))
        return tensor(data.to(dtype).view(torch.uint8), held, x)

    return read, write, lambda x: read(write(x))


from_float8_e4m3fn, to_float8_e4m3fn, as_float8_e4m3fn = _float8(tl.float8e4nv, torch.float8_e4m3fn)
from_float8_e5m2, to_float8_e5m2, as_float8_e5m2 = _float8(tl.float8e5, torch.float8_e5m2)


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's warnings of infinities and NaN are no news here."""

    def call(*given: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*given, **named)

    return call


def _reduce(function: Callable[..., Any]) -> Callable[[Any, int], Any]:
    def call(x: Any, axis: int) -> Any:
        data = np.asarray(function(x.handle.data, axis=axis))
        if data.ndim == 0:
            return tl.core.tensor(TensorHandle(data.reshape(1), x.handle.dtype), x.dtype)
        return tl.core.tensor(
            TensorHandle(data, x.handle.dtype), tl.block_type(x.dtype, list(data.shape))
        )

    return call


max_nan = _reduce(np.max)
min_nan = _reduce(np.min)
prod = _reduce(lambda x, axis: np.prod(x, axis=axis, dtype=x.dtype))  # NumPy widens integers
log_add_exp = fast_log_add_exp = _elementwise(np.logaddexp)
log_sum_exp = fast_log_sum_exp = _reduce(_quietly(np.logaddexp.reduce))


def log_cumsum_exp(x: Any, axis: int, reverse: bool) -> Any:
    """Each element's exponential summed with those of all before it, or after it; the logarithm."""
    along = x.handle.data[...]
    along = np.flip(along, axis) if reverse else along
    found = _quietly(np.logaddexp.accumulate)(along, axis=axis)
    return _wrap(np.flip(found, axis) if reverse else found, x)


fast_log_cumsum_exp = log_cumsum_exp
