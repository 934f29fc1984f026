"""Operations on lists of tensors (`torch._foreach_add`), as optimisers use them: one operation for
each tensor. What AOTAutograd makes of their forms in place are these and copies at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_OPERATIONS = (
    *("abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min"),
    *("cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma"),
    *("log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow", "reciprocal"),
    *("round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc"),
)
"""Of lists and of single tensors, by the same name."""

_BY_VALUE = ("addcdiv", "addcmul")
"""Their third operand is a number, which torch takes by its name. Of integers it is cut to one."""

_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Single tensors have these with a number by another name."""


def _of_each(name: str) -> Callable[..., Any]:

    def opened(*operands: Any, **named: Any) -> Any:
        count = next(len(o) for o in operands if isinstance(o, (list, tuple)))

        def at(operand: Any, i: int) -> Any:
            return operand[i] if isinstance(operand, (list, tuple)) else operand

        results = []
        for i in range(count):
            own = [at(o, i) for o in operands]
            more = {key: at(value, i) for key, value in named.items()}
            if name in _BY_VALUE and len(own) > 3:
                more["value"] = own.pop()
            if any(isinstance(v, torch.Tensor) for v in more.values()):
                return NotImplemented
            if "value" in more and not own[0].is_floating_point() and not own[0].is_complex():
                more["value"] = int(more["value"])
            single = name if isinstance(own[-1], torch.Tensor) else _OF_NUMBERS.get(name, name)
            results.append(getattr(torch, single)(*own, **more))
        return results

    return opened


def _norms(tensors: Sequence[torch.Tensor], order: Any = 2, dtype: Any = None) -> Any:
    return [torch.linalg.vector_norm(t, order, dtype=dtype) for t in tensors]


def _forms(name: str) -> list[Any]:
    packet = getattr(aten, f"_foreach_{name}", None)
    return [] if packet is None else [getattr(packet, each) for each in packet.overloads()]


LISTS: dict[Any, Callable[..., Any]] = {
    form: _of_each(name)
    for name in _OPERATIONS
    for form in _forms(name)
    if not form._schema.is_mutable
}
LISTS |= {form: _norms for form in _forms("norm") if not form._schema.is_mutable}
