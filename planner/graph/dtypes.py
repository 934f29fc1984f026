"""Types of elements: what each is called, how large it is, what it holds, and in what it is
computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype by its torch name. triton: its name in a kernel, "" where no kernel holds it.
    signature: in the types of a kernel's arguments."""

    name: str
    nbytes: int
    kind: Literal["bool", "int", "float", "complex"]
    triton: str = ""
    signature: str = ""


_ALL = (
    DType("bool", 1, "bool", "tl.int1", "i1"),
    DType("uint8", 1, "int", "tl.uint8", "u8"),
    DType("int8", 1, "int", "tl.int8", "i8"),
    DType("int16", 2, "int", "tl.int16", "i16"),
    DType("int32", 4, "int", "tl.int32", "i32"),
    DType("int64", 8, "int", "tl.int64", "i64"),
    DType("float8_e4m3fn", 1, "float", "tl.float8e4nv", "fp8e4nv"),
    DType("float8_e5m2", 1, "float", "tl.float8e5", "fp8e5"),
    DType("float16", 2, "float", "tl.float16", "fp16"),
    DType("bfloat16", 2, "float", "tl.bfloat16", "bf16"),
    DType("float32", 4, "float", "tl.float32", "fp32"),
    DType("float64", 8, "float", "tl.float64", "fp64"),
    DType("complex64", 8, "complex"),
    DType("complex128", 16, "complex"),
)

_HELD = tuple(d for d in _ALL if d.triton)

DTYPES = frozenset(d.name for d in _HELD)
"""Those that a kernel can hold."""

FLOATS = frozenset(d.name for d in _HELD if d.kind == "float")

NARROW = frozenset(d.name for d in _HELD if d.kind == "float" and d.nbytes < 4)
"""Floats of 16 and of 8 bits, which are float32 in registers."""

FLOAT8 = frozenset(d.name for d in _HELD if d.kind == "float" and d.nbytes == 1)
"""Floats of 8 bits: tensors are cast to them and from them, nothing is computed in them."""

MATMUL_DTYPES = FLOATS - FLOAT8 - {"float64"}
"""Those that tensor cores multiply, float32 as tf32 or in several steps."""

INDICES = frozenset({"int32", "int64"})
"""Those that name places in a tensor."""

BOUNDS = {
    d.name: (0, (1 << 8 * d.nbytes) - 1)
    if d.name.startswith("u")
    else (-(1 << 8 * d.nbytes - 1), (1 << 8 * d.nbytes - 1) - 1)
    for d in _HELD
    if d.kind == "int"
}
"""The least and the greatest number of each integer type."""

TRITON_DTYPE = {d.name: d.triton for d in _HELD}
SIGNATURE = {d.name: d.signature for d in _HELD}

_ITEMSIZE = {d.name: d.nbytes for d in _ALL}


def itemsize(dtype: str) -> int:
    """Bytes of one element; unknown dtypes (quantised ones) count as one byte."""
    return _ITEMSIZE.get(dtype, 1)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def register_dtype(dtype: str) -> str:
    """The dtype in which elements are computed."""
    return "float32" if dtype in NARROW else dtype
