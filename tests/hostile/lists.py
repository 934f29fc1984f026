"""The same done to each of many tensors, of all types, layouts and places in memory: what is alike
becomes one launch. And tensors that lie in memory negated or conjugated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hostile.cases import DTYPES, Family, Maker

lists = Family("lists")

EVERY = " ".join(f"{dtype}[5]" for dtype in DTYPES)
NUMBERS = " ".join(f"{dtype}[]!nonzero" if dtype[0] in "iu" else f"{dtype}[]" for dtype in DTYPES)
FLOATS = " ".join(f"{dtype}[6]" for dtype in ("f32", "bf16", "f16", "f64", "bf16", "f16") * 2)


def each(function: Callable[[Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    return lambda *given: [function(x) for x in given]


def pairs(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    """Of some of the first ten with the others, or with all."""
    return lambda *given: [function(a, b) for a in given[1:10:4] for b in given[10:] or given]


lists("doubled", EVERY, each(lambda x: x * 2))
lists("scaled_by_a_float", EVERY, each(lambda x: x * 1.5))
lists("compared_and_chosen", EVERY, each(lambda x: torch.where(x > 0, x, x * 0)))
lists("widened", EVERY, each(lambda x: x.to(torch.float32) + 1))
lists("as_bytes", EVERY, each(lambda x: x.to(torch.int8)))
lists("summed", " ".join(f"{dtype}[9,3]" for dtype in DTYPES), each(lambda x: x.sum(0)))
lists("any_and_all", EVERY, lambda *given: [f(x) for x in given for f in (torch.any, torch.all)])
lists("times_numbers", f"{EVERY} {NUMBERS}", pairs(lambda a, b: a * b + b))
lists("over_numbers", f"{EVERY} {NUMBERS}", pairs(lambda a, b: torch.where(a > 0, a, b)))
lists("products_of_pairs", EVERY, pairs(lambda a, b: a * b))
lists("larger_of_pairs", EVERY, pairs(torch.maximum))
lists("joined_pairs", EVERY, pairs(lambda a, b: torch.cat((a, b))))
lists(
    "of_all_layouts",
    "f32[8,24] f32[8,24]@t f32[8,24]@s f32[8,24]@o f32[8,24]@e f32[2,4,24]@r f32[24] f32[1] f32[]",
    each(lambda x: torch.tanh(x) * 2),
)
lists("gradients", FLOATS, each(lambda x: torch.sin(x) * x), grad=True)


def written(*given: Tensor) -> list[Tensor]:
    for x in given:
        x.mul_(2)
    for x in given:
        x.add_(1)
    return [x.sum() for x in given]


def rows_of_one(maker: Maker) -> list[Tensor]:
    base = maker("f32[8,12]")
    return [base[:2], base[2:4], base[4:6], base[6:], maker("f32[12,8]").mT[:2]]


lists("written", EVERY.removesuffix("bool[5]"), written)
lists("parts_written", rows_of_one, written)


def momentum(*given: Tensor) -> list[Tensor]:
    values, moments = list(given[:6]), list(given[6:])
    torch._foreach_mul_(moments, 0.9)
    torch._foreach_add_(moments, values, alpha=0.1)
    torch._foreach_addcdiv_(values, moments, torch._foreach_abs(moments), value=-0.01)
    return torch._foreach_norm(values)


def copied(*given: Tensor) -> list[Tensor]:
    torch._foreach_copy_(list(given[:6]), list(given[6:]))
    return torch._foreach_norm(list(given[:6]))


lists("momentum", FLOATS, momentum)
lists(
    "copied_into_other_types",
    "f32[5] f16[5] bf16[5] f64[5] f32[5] f16[5] f16[5] f64[5] f32[5] bf16[5] f64[5] bf16[5]",
    copied,
)


def waves(maker: Maker) -> list[Tensor]:
    wave = torch.complex(maker("f32[4,6]"), maker("f32[4,6]"))
    negated = torch._neg_view(maker("f32[4,6]"))
    return [wave.conj().imag, wave.real, negated, negated.mT]


lists("negated_in_memory", waves, each(lambda x: torch.where(x > 0, x, x * 3).sum(0)))

FAMILIES = (lists,)
