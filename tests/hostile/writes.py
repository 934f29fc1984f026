"""Writes in place, into tensors and into views of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

writes = Family("in-place")
Any_ = Any


def on(function: Any_) -> Any_:
    """Writes, then gives what it wrote to, and work on it."""

    def case(*given: Tensor) -> Any:
        result = function(*given)
        return result if result is not None else given[0] * 2 + 1

    return case


def setting(index: Any, value: Any) -> Any:
    def function(x: Tensor) -> Tensor:
        x[index] = value
        return x * 2 + 1

    return function


class Slices:
    def __getitem__(self, index: Any) -> Any:
        return index


S = Slices()
INDICES = {
    "row": S[2],
    "last_row": S[-1],
    "column": S[:, 1],
    "block": S[1:4, 2:5],
    "steps": S[::2, 1::3],
    "beyond": S[3:99],
    "nothing": S[2:2],
    "ellipsis": S[..., -1],
    "element": S[0, 0],
    "all": S[:],
}
for each, index in INDICES.items():
    writes(f"set_{each}", "f32[6,9]", setting(index, 0.5))
    writes(f"set_{each}_of_computed", "f32[6,9]", lambda x, f=setting(index, 0.5): f(x.sin()))
for each, dtype in (
    ("long", "i64"),
    ("byte", "u8"),
    ("bool", "bool"),
    ("half", "f16"),
    ("double", "f64"),
):
    writes(f"set_block_of_{each}", f"{dtype}[6,9]", setting(S[1:4, 2:5], 1))
writes("set_float_in_long", "i64[6,9]", setting(S[1:4], 2.7))
writes("set_large_in_long", "i64[6,9]", setting(S[1:4], 2**40))
writes("set_double_constant", "f64[6,9]", setting(S[1:4], 0.1))
writes("set_infinity", "f32[6,9]", setting(S[1:4], float("-inf")))


def several(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    x[0] = 3.0
    x[:, 1].sigmoid_()
    x.t()[2].zero_()
    return x.exp()


def chain(x: Tensor) -> Tensor:
    y = x * 1.5
    y[1:3] += x[2:4]
    y[2:4] *= y[0:2].clone()
    y[:, ::2] -= 1
    return y.sum(0)


def alias_read(x: Tensor) -> tuple[Tensor, ...]:
    y = x.view(-1)
    before = y.sum()
    x[0].fill_(7)
    return before, y.sum(), y * 2


def shift(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x + 1


def swap(x: Tensor) -> Tensor:
    first = x[0].clone()
    x[0] = x[1]
    x[1] = first
    return x * 2


def by_strided(x: Tensor) -> Tensor:
    x.as_strided((3,), (10,)).add_(100)
    return x * 2


def two_views(x: Tensor) -> Tensor:
    a, b = x[:4], x[2:]
    a.add_(1)
    b.mul_(2)
    return a.sum() + b.sum() + x


def diagonal(x: Tensor) -> Tensor:
    x.diagonal().fill_(0)
    x.fill_diagonal_(5)
    return x * 2


def dtype_kept(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    return x + 1


def resized(x: Tensor) -> Tensor:
    x.unsqueeze_(0).transpose_(1, 2)
    return x * 2


def running(x: Tensor, mean: Tensor) -> Tensor:
    mean.lerp_(x.mean(0), 0.1)
    return (x - mean) * 2


def written_twice(x: Tensor) -> Tensor:
    y = x.clone()
    x.copy_(y * 2)
    z = x + 1
    x.copy_(y * 3)
    return z + x


def set_by_mask(x: Tensor, m: Tensor) -> Tensor:
    x[m] = 0.25
    return x * 2


def add_at(x: Tensor, i: Tensor) -> Tensor:
    x[i] += 1
    return x * 2


def add_more(x: Tensor, i: Tensor) -> Tensor:
    x.index_add_(0, i, torch.ones(len(i), x.shape[1], device=x.device, dtype=x.dtype))
    return x * 2


def scattered(x: Tensor, i: Tensor) -> Tensor:
    x.scatter_(1, i, 9.0)
    return x * 2


def in_a_loop(x: Tensor) -> Tensor:
    for i in range(x.shape[0] - 1):
        x[i + 1] += x[i] * 0.5
    return x + 1


def out_argument(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.exp(x * 0.5, out=y)
    torch.add(y, 1, out=x)
    return y * x


writes("several", "f32[4,6]", several)
writes("chain", "f32[6,9]", chain)
writes("alias_read", "f32[4,6]", alias_read)
writes("shift_by_one", "f32[6,9]", shift)
writes("swap_rows", "f32[6,9]", swap)
writes("by_as_strided", "f32[40]", by_strided)
writes("two_overlapping_views", "f32[6,9]", two_views)
writes("diagonal", "f32[5,5]", diagonal)
writes("half_by_float", "f16[5,5] f32[5,5]", dtype_kept)
writes("float_by_double_scalar", "f32[5,5] f64[]", dtype_kept)
writes("int_by_bool", "i64[5,5] bool[5,5]", dtype_kept)
writes("metadata", "f32[5,7]", resized)
writes("running_mean", "f32[9,5] f32[5]", running)
writes("written_twice", "f32[5,7]", written_twice)
writes("by_mask", "f32[5,7] bool[5,7]", set_by_mask)
writes("by_row_mask", "f32[5,7] bool[5]", set_by_mask)
writes("long_by_mask", "i64[5,7] bool[5,7]", lambda x, m: (x.masked_fill_(m, -(2**40)), x + 1)[1])
writes("add_at_duplicates", "f32[5,7] i64[9]!<5", add_at)
writes("index_add_duplicates", "f32[5,7] i64[9]!<5", add_more)
writes("scatter", "f32[5,7] i64[5,3]!<7", scattered)
writes("loop_of_rows", "f32[9,7]", in_a_loop)
writes("out_argument", "f32[5,7]", out_argument)
writes("relu_and_friends", "f32[5,7]", lambda x: (F.relu_(x), F.elu_(x), x.clamp_(0, 1), x + 1)[-1])
writes("zero", "f32[5,7]", lambda x: (x.zero_(), x + 1)[1])
writes("copy_broadcast", "f32[5,7] f32[7]", lambda x, y: (x.copy_(y), x * 2)[1])
writes("copy_of_another_type", "f16[5,7] f64[5,7]!100", lambda x, y: (x.copy_(y), x * 2)[1])
writes("copy_long_from_float", "i64[5,7] f32[5,7]!10", lambda x, y: (x.copy_(y), x * 2)[1])
writes("copy_transposed", "f32[5,7] f32[7,5]", lambda x, y: (x.copy_(y.t()), x * 2)[1])
writes("transposed_input", "f32[5,7]@t", lambda x: (x.add_(1), x * 2)[1])
writes("strided_input", "f32[5,7]@s", lambda x: (x.mul_(3), x + 2)[1])
writes("offset_input", "f32[5,7]@o", lambda x: (x.sub_(3), x + 2)[1])
writes("expanded_is_refused", "f32[5,7]@e", lambda x: x.add_(1), fails=True)
writes("wrong_size_is_refused", "f32[6,9] f32[4,9]", lambda x, y: setting(S[1:4], y)(x), fails=True)
writes("wrong_width_is_refused", "f32[6,9] f32[8]", lambda x, y: setting(S[1:4], y)(x), fails=True)
writes("add_of_a_larger_is_refused", "f32[9] f32[6,9]", lambda x, y: x.add_(y), fails=True)
writes("copy_of_a_larger_is_refused", "f32[3] f32[4]", lambda x, y: (x * 1).copy_(y), fails=True)
writes(
    "bool_in_place",
    "bool[5,7] bool[5,7]",
    lambda x, y: (x.logical_and_(y), x.logical_not_(), x ^ y)[2],
)
writes("uint8_wraps", "u8[5,7]!full", lambda x: (x.add_(200), x.mul_(3), x + 1)[2])
writes("int8_shifts", "i8[5,7]!full", lambda x: (x.bitwise_left_shift_(1), x + 1)[1])
writes("cumulative", "f32[5,7]", lambda x: (x.cumsum_(1), x * 2)[1])
writes(
    "adam_step",
    "f32[33] f32[33] f32[33] f32[33]!pos",
    lambda p, g, m, v: (
        (
            m.lerp_(g, 0.1),
            v.mul_(0.99).addcmul_(g, g, value=0.01),
            p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.01),
        )[0]
        * 1
    ),
)
writes(
    "foreach_step",
    "f32[33] f32[5,7] f32[33] f32[5,7]",
    lambda a, b, c, d: (
        torch._foreach_mul_([a, b], 0.9),
        torch._foreach_add_([a, b], [c, d], alpha=-0.1),
        a.sum() + b.sum(),
    )[2],
)
writes("gradient_of_a_written_copy", "f32[6,9]", lambda x: chain(x), grad=True)
writes(
    "gradient_of_set_block",
    "f32[6,9] f32[3,3]",
    lambda x, y: setting(S[1:4, 2:5], y)(x * 1),
    grad=True,
)
writes(
    "gradient_of_masked_write", "f32[5,7] bool[5,7]", lambda x, m: set_by_mask(x * 1, m), grad=True
)
writes("gradient_of_relu_in_place", "f32[5,7]", lambda x: F.relu_(x * 2) + 1, grad=True)
writes("gradient_of_two_views", "f32[6,9]", lambda x: two_views(x * 1), grad=True)
writes("dynamo_several", "f32[4,6]", several, dynamo=True)
writes("dynamo_alias_read", "f32[4,6]", alias_read, dynamo=True)
writes("dynamo_resized", "f32[5,7]", resized, dynamo=True)
writes("dynamo_loop", "f32[4,7]", in_a_loop, dynamo=True)
writes("dynamo_out", "f32[5,7]", out_argument, dynamo=True)
writes(
    "dynamo_wrong_size_is_refused",
    "f32[6,9] f32[4,9]",
    lambda x, y: setting(S[1:4], y)(x),
    fails=True,
    dynamo=True,
)

FAMILIES = (writes,)
