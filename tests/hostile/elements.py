"""Reads and writes at a place that a tensor of one number names, and graphs that are cut in parts
because they ask tensors for numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

elements = Family("elements", dynamo=True)

ALL = slice(None)


def place(items: tuple[Any, ...], p: Tensor) -> tuple[Any, ...]:
    return tuple(p if item == "p" else item for item in items)


def put(*items: Any) -> Callable[..., Tensor]:
    def function(x: Tensor, v: Any, p: Tensor) -> Tensor:
        x[place(items, p)] = v
        return x * 2

    return function


def get(*items: Any) -> Callable[..., Tensor]:
    return lambda x, p: x[place(items, p)].exp() + 1


elements("put_in_the_middle", "f32[2,3,8,4] f32[2,3,4] i64[]!<8", put(ALL, ALL, "p"))
elements("put_last", "f32[5,8] f32[5] i64[]!<8", put(..., "p"))
elements("put_around", "f32[4,8,6] f32[2,3] i64[]!<8", put(slice(1, 3), "p", slice(0, 6, 2)))
elements("put_with_new", "f32[4,8,6] f32[1,4,6] i64[]!<8", put(None, ALL, "p"))
elements("put_int_behind", "f32[4,8,6] f32[4] i64[]!<8", put(ALL, "p", -1))
elements("put_of_another_type", "f32[4,8] bf16[4] i64[]!<8", put(ALL, "p"))
elements("put_wide_into_half", "f16[4,8] f32[4] i64[]!<8", put(ALL, "p"))
elements("put_ones_in_front", "f32[4,8] f32[1,1,4] i64[]!<8", put(ALL, "p"))
elements("put_broadcast", "f32[4,8,3] f32[3] i64[]!<8", put(ALL, "p"))
elements("put_by_int32", "f32[4,8] f32[4] i32[]!<8", put(ALL, "p"))
elements("put_by_int8", "f32[4,8] f32[4] i8[]!<8", put(ALL, "p"))
elements("put_transposed", "f32[4,8,3]@r f32[4,3] i64[]!<8", put(ALL, "p"))
elements("put_number", "f32[4,8] i64[]!<8", lambda x, p: put(ALL, "p")(x, 2.5, p))
elements("put_number_in_ints", "i32[4,8] i64[]!<8", lambda x, p: put(ALL, "p")(x, 7, p))
elements("put_too_many_is_refused", "f32[4,8] f32[3] i64[]!<8", put(ALL, "p"), fails=True)
elements("get_in_the_middle", "f32[4,8,3] i64[]!<8", get(ALL, "p"), grad=True)
elements("get_around", "f32[4,8,6] i64[]!<8", get(slice(1, 3), "p", None, slice(0, 6, 2)))
elements("get_two", "f32[4,5,8] i64[]!<4 i64[]!<8", lambda x, p, q: x[p, :, q].softmax(0))
elements("schedule_by_step", "f32[50] f32[4,3] i64[]!<50", lambda a, x, t: a[t].sqrt() * x)


def put_into_a_view(x: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(4, 2, 4)
    y[:, 1, p] = v
    return x.exp(), y


elements(put_into_a_view.__name__, "f32[4,8] f32[4] i64[]!<4", put_into_a_view)


def added_in_place(x: Tensor, v: Tensor, p: Tensor) -> Tensor:
    x[:, p] += v
    return x * 2


elements(added_in_place.__name__, "f32[4,8] f32[4] i64[]!<8", added_in_place)


def masked_at(x: Tensor, p: Tensor) -> Tensor:
    y = x.clone()
    y[:, p] = -1e9
    return y.softmax(-1)


elements(masked_at.__name__, "f32[4,8] i64[]!<8", masked_at, grad=True)


def decode_step(keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Tensor:
    keys[:, :, p] = k
    values[:, :, p] = v
    mask = torch.arange(8, device=q.device) <= p
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None])


elements(
    decode_step.__name__,
    "f32[2,2,8,4] f32[2,2,8,4] f32[2,2,1,4] f32[2,2,4] f32[2,2,4] i64[]!<8",
    decode_step,
)


def of_sizes(x: Tensor, v: Tensor, p: Tensor) -> Tensor:
    x[p] = v
    return x.exp()


elements(
    of_sizes.__name__,
    ["f32[6,4] f32[4] i64[]!<6", "f32[9,5] f32[5] i64[]!<6", "f32[3,7] f32[7] i64[]!<3"],
    of_sizes,
    dynamic=True,
)


def returned(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    return x[p], x * 2


elements(returned.__name__, "f32[8,4] i64[]!<8", returned)


def view_written(x: Tensor, p: Tensor) -> Tensor:
    x[p].mul_(2)
    return x + 1


elements(view_written.__name__, "f32[8,4] i64[]!<8", view_written)


def source_written_later(x: Tensor, p: Tensor) -> Tensor:
    row = x[p]
    x.add_(1)
    return row * 2


elements(source_written_later.__name__, "f32[8,4] i64[]!<8", source_written_later)


def cut_in_three(x: Tensor, p: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y[p].add_(1.0)
    z = y.exp() * 0.5
    z[p].mul_(2)
    return (y + z).sum(0)


elements(cut_in_three.__name__, "f32[8,4] i64[]!<8 f32[4,4]", cut_in_three, grad=True)
