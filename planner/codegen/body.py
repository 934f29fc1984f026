"""Values as Triton expressions: conversions, operands, literals, identities."""

from __future__ import annotations

import math

from ..graph.dtypes import BOUNDS, INDICES, TRITON_DTYPE, is_float, itemsize
from ..graph.graph import Arg, Ref, Symbol
from ..graph.numbers import inverse, single, wrapped
from ..graph.op import Accuracy
from ..graph.sizes import Amount, varies
from ..graph.texts import text_of
from ..values.values import Compute
from .numbers import Numbers


def convert(text: str, source: str, target: str) -> str:
    """The expression converted between dtypes, as PyTorch's `to` does."""
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    if is_float(source) and not is_float(target) and target not in ("int64", "int32"):
        # Out of range is undefined in C; going through 64 bits wraps as eager does. The processor
        # converts to 32 bits itself: a GPU gives the nearest number and 0 for NaN.
        return f"({text}).to(tl.int64).to({TRITON_DTYPE[target]})"
    return f"({text}).to({TRITON_DTYPE[target]})"


def literal(number: Arg, dtype: str | None, numbers: Numbers) -> str:
    """A Python number, or the name of a dtype, as it stands in an expression evaluated in
    `dtype`."""
    if number is None:
        return "None"
    if isinstance(number, Symbol):
        return TRITON_DTYPE[number.name]
    if not isinstance(number, (bool, int, float)):
        raise TypeError(f"{number!r} is no number")
    if varies(number) and (text := _argument(number, dtype, numbers)):
        return text
    if dtype is not None and is_float(dtype):
        return _float(float(number), dtype)
    if dtype == "bool":
        return str(bool(number))
    if isinstance(number, float):
        return repr(number)
    if dtype in BOUNDS:
        number = wrapped(int(number), dtype)
        # Beside an element of fewer than 32 bits Triton takes a plain number for 32.
        return _typed(str(number), dtype) if itemsize(dtype) < 4 else str(number)
    return str(int(number))


def _float(number: float, dtype: str) -> str:
    """Triton takes a plain number for float32 if that has it, and any 0 for the positive one."""
    if number == 0.0 and math.copysign(1.0, number) < 0:
        bits = "int64" if dtype == "float64" else "int32"
        return f"tl.cast({_typed(str(BOUNDS[bits][0]), bits)}, {TRITON_DTYPE[dtype]}, bitcast=True)"
    if dtype == "float32":
        number = number if number == 0.0 else single(number)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    is_plain = dtype != "float64" and (number == 0.0 or not abs(number) < _LEAST_NORMAL)
    return text if is_plain else _typed(text, dtype)


def _typed(number: str, dtype: str) -> str:
    return f"tl.full([], {number}, {TRITON_DTYPE[dtype]})"


def _argument(number: float, dtype: str | None, numbers: Numbers) -> str:
    """A varying number as an argument of the kernel; "" where it has to be a literal."""
    if isinstance(number, Amount):
        return numbers.text(number) if dtype == "float32" else ""
    if dtype is None or dtype == "bool":
        return ""
    return f"{numbers.text(number)}.to({TRITON_DTYPE[dtype]})"


_LEAST_NORMAL = 2.0**-126  # of float32


def expression(
    compute: Compute, names: dict[int, str], dtypes: dict[int, str], numbers: Numbers
) -> str:
    """The operation over its operands' names, each converted to the working dtype."""
    fields = {}
    for name, operand in compute.operands:
        if not isinstance(operand, Ref):
            fields[name] = literal(operand, compute.working, numbers)
            is_first = name == "self" and isinstance(operand, int) and not varies(operand)
            if is_first and compute.working in INDICES:
                # Functions ask for the type of their first operand.
                fields[name] = _typed(fields[name], compute.working)
            continue
        text = names[operand.node]
        if name == "condition":
            fields[name] = convert(text, dtypes[operand.node], "bool")
        elif compute.working is None:
            fields[name] = text
        else:
            fields[name] = convert(text, dtypes[operand.node], compute.working)
    if compute.accuracy is Accuracy.BY_INVERSE and compute.working is not None:
        number = dict(compute.operands)["other"]
        assert isinstance(number, (int, float))
        fields["other"] = literal(inverse(number, compute.working), compute.working, numbers)
    text = text_of(compute.op, compute.accuracy, compute.working, "alpha" in fields)
    return text.format(**fields)


def identity(identities: dict[str, str], dtype: str) -> str:
    """The neutral element of a monoid for a register dtype."""
    kind = "float" if is_float(dtype) else "int" if "int" in identities else "bool"
    low, high = BOUNDS.get(dtype, (0, 1))
    return identities[kind].format(lowest=low, highest=high)
