"""Values as Triton expressions: conversions, operands, literals, identities."""

from __future__ import annotations

import math

from ..graph.graph import Arg, Ref
from ..graph.sizes import Amount, varies
from ..values.values import Compute
from .numbers import Numbers

TRITON_DTYPE = {
    "bool": "tl.int1",
    "uint8": "tl.uint8",
    "int8": "tl.int8",
    "int16": "tl.int16",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float64": "tl.float64",
}
_BOUNDS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def convert(text: str, source: str, target: str) -> str:
    """The expression converted between dtypes, as PyTorch's `to` does."""
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    if is_float(source) and not is_float(target) and target != "int64":
        # Out of range is undefined in C; going through 64 bits wraps as eager does.
        return f"({text}).to(tl.int64).to({TRITON_DTYPE[target]})"
    return f"({text}).to({TRITON_DTYPE[target]})"


def literal(number: Arg, dtype: str | None, numbers: Numbers) -> str:
    """A Python number as it stands in an expression evaluated in `dtype`."""
    if number is None:
        return "None"
    if not isinstance(number, (bool, int, float)):
        raise TypeError(f"{number!r} is no number")
    if varies(number) and (text := _argument(number, dtype, numbers)):
        return text
    if dtype is not None and is_float(dtype):
        value = float(number)
        if math.isfinite(value):
            return repr(value)
        return f'float("{value}")'
    if dtype == "bool":
        return str(bool(number))
    return str(int(number)) if not isinstance(number, float) else repr(number)


def _argument(number: float, dtype: str | None, numbers: Numbers) -> str:
    """A varying number as an argument of the kernel; "" where it has to be a literal."""
    if isinstance(number, Amount):
        return numbers.text(number) if dtype == "float32" else ""
    if dtype is None or dtype == "bool":
        return ""
    return f"{numbers.text(number)}.to({TRITON_DTYPE[dtype]})"


def expression(
    compute: Compute, names: dict[int, str], dtypes: dict[int, str], numbers: Numbers
) -> str:
    """The operation over its operands' names, each converted to the working dtype."""
    fields = {}
    for name, operand in compute.operands:
        if not isinstance(operand, Ref):
            fields[name] = literal(operand, compute.working, numbers)
            continue
        text = names[operand.node]
        if name == "condition":
            fields[name] = convert(text, dtypes[operand.node], "bool")
        elif compute.working is None:
            fields[name] = text
        else:
            fields[name] = convert(text, dtypes[operand.node], compute.working)
    return compute.expr.format(**fields)


def identity(identities: dict[str, str], dtype: str) -> str:
    """The neutral element of a monoid for a register dtype."""
    kind = "float" if is_float(dtype) else "int" if "int" in identities else "bool"
    low, high = _BOUNDS.get(dtype, (0, 1))
    return identities[kind].format(lowest=low, highest=high)
