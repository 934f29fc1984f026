"""Sums of products that compilers know by sight, writes that meet views, sizes of 0 and 1, and
numbers at which types meet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

# --- sums of products: a compiler may take them for products of matrices --------------------------

outer = Family("outer", grad=True)
PAIR = "f32[16,16] f32[16,16]"
for _axis in (0, 1, 2):
    outer(f"turned_{_axis}", PAIR, lambda x, y, a=_axis: (y[None, :, :] * x[:, :, None]).sum(a) * 2)
    outer(
        f"half_{_axis}",
        "bf16[16,16] bf16[16,16]",
        lambda x, y, a=_axis: (x[:, :, None] * y[None, :, :]).sum(a) * 2,
    )
    outer(
        f"of_functions_{_axis}",
        PAIR,
        lambda x, y, a=_axis: (x.sin()[:, :, None] * y.exp()[None, :, :]).sum(a),
    )
    outer(
        f"of_thirty_two_{_axis}",
        "f32[32,16] f32[16,32]",
        lambda x, y, a=_axis: (x[:, :, None] * y[None, :, :]).sum(a) + 1,
    )
    outer(
        f"mean_{_axis}",
        PAIR,
        lambda x, y, a=_axis: (x[:, :, None] * y[None, :, :]).mean(a) + 1,
    )
outer("repeated_by_both", "f32[12]", lambda x: x.expand(12, 12) @ x.expand(12, 12) + 1)
outer(
    "computed_and_repeated_by_both",
    "f32[12] f32[12,12]",
    lambda x, y: y - (x * 2).expand(12, 12) @ (x * 2).expand(12, 12),
)
outer(
    "least_of_parts_of_rows",
    "f16[33,16]",
    lambda x: (x * x.mean(0)).reshape(3, 11, 16).amin(1),
)
for _axis in (1, 3):
    outer(
        f"of_four_dimensions_{_axis}",
        "f32[16,4,16] f32[4,16,16]",
        lambda x, y, a=_axis: (x[:, :, None, :] * y[None, :, :, :]).sum(a) * 2,
    )
outer("of_a_vector", "f32[16] f32[16,16]", lambda x, y: (x[None, :, None] * y[None] * 1).sum(1))
outer("of_three", PAIR + " f32[16]", lambda x, y, z: (x[:, :, None] * y[None] * z).sum(1) + z)
outer("both_axes", PAIR, lambda x, y: (x[:, :, None] * y[None]).sum((0, 2)) * 2)
outer("largest", PAIR, lambda x, y: (x[:, :, None] * y[None]).amax(1) + 1)
outer("product", PAIR, lambda x, y: (x[:, :, None] * y[None]).prod(2) + 1, grad=False)
outer("squared_distance", PAIR, lambda x, y: (x[:, :, None] - y[None]).square().sum(1).sqrt())
outer("of_ints", "i32[16,16] i32[16,16]", lambda x, y: (x[:, :, None] * y[None]).sum(2) + 1)
outer("of_double", "f64[16,16] f64[16,16]", lambda x, y: (x[:, :, None] * y[None]).sum(2) + 1)
outer(
    "bilinear",
    "f32[16,6] f32[6,16,5] f32[16,5]",
    lambda x, w, y: torch.einsum("bi,iok,bk->bo", x, w, y).relu(),
)
outer("kronecker_summed", "f32[16,4] f32[4,16]", lambda x, y: torch.kron(x, y).sum(0) * 2)
outer(
    "weighted_pairs",
    "f32[16,16] f32[16,16] f32[16,16]",
    lambda x, y, w: ((x[:, :, None] * y[None]).tanh() * w[:, None, :]).sum(2),
)
outer(
    "in_and_out_of_a_tile",
    "f32[16,8] f32[8,16] f32[16,16]",
    lambda x, w, u: (lambda h: (F.softmax(h, 1) @ u, h.sum(0), h.amax(1)))(
        F.layer_norm(x, (8,)) @ w
    ),
)

# --- writes that meet views -----------------------------------------------------------------------

meets = Family("meets")


def steps_of_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[::2].mul_(3)
    y.t()[1:3].add_(1)
    y.view(-1)[5] = 7
    return y, y[::2] + 1, y.t() * 2


def diagonals(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    y.diagonal().fill_(0.5)
    y.diagonal(1).add_(y.diagonal(-1))
    return y, y.sum(0)


def written_twice(x: Tensor) -> Tensor:
    y = x.clone()
    a, b = y.chunk(2)
    a.add_(b)
    b.mul_(a)
    return torch.cat((y, a * 2, b + 1))


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.detach()
    z.add_(1)
    return y * 3, z


def rounded_on_the_way(x: Tensor) -> Tensor:
    y = torch.empty_like(x, dtype=torch.int32)
    y.copy_(x * 3)
    y.add_(1)
    return y.to(x.dtype) / 2


def moved_up(x: Tensor) -> Tensor:
    y = x * 1
    y[1:] = y[:-1].clone()
    y[0] = 0
    return y + x


def folded_in(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.t().index_add_(1, i, x[: i.shape[0]].t() + 1)
    y[:, 1:3].masked_fill_(x[:, :2] > 0, -1)
    return y.sum(1), y.sum(0)  # of y itself torch's own tracing changes the strides


def shared_rows(x: Tensor) -> Tensor:
    y = x[:1].expand(3, x.shape[1]).contiguous()
    y[1] += 1
    return y * x[:3]


meets("steps_of_views", "f32[6,5]", steps_of_views)
meets("diagonals", "f32[5,5]", diagonals)
meets("written_twice", "f32[6,5]", written_twice)
meets("written_twice_gradient", "f32[6,5]", written_twice, grad=True, fails=True)
meets("steps_of_views_gradient", "f32[6,5]", steps_of_views, grad=True)
meets("diagonals_gradient", "f32[5,5]", diagonals, grad=True)
meets("detached", "f32[6,5]", detached)
meets("rounded_on_the_way", "f32[6,5]", rounded_on_the_way)
meets("moved_up", "f32[6,5]", moved_up)
meets("moved_up_gradient", "f32[6,5]", moved_up, grad=True)
meets("folded_in", "f32[6,5] i64[4]!<6", folded_in)
meets("folded_in_of_half", "f16[6,5] i64[4]!<6", folded_in)
meets("shared_rows", "f32[6,5]", shared_rows)
meets("an_input_through_a_view", "f32[6,5]", lambda x: (x.t()[1:].add_(1) * 2, x.sum(1)))
meets("an_input_of_steps", "f32[6,5]@s", lambda x: (x.mul_(2).sum(0), x[::2] + 1))
meets("of_another_type", "f32[6]", lambda x: (x * 2).to(torch.int64).add_(1.5), fails=True)
meets("an_int_divided", "i64[6]", lambda x: (x * 2).div_(2), fails=True)
meets(
    "expanded_is_no_place",
    "f32[1,5]",
    lambda x: (x * 2).expand(3, 5).add_(1),
    fails=True,
    dynamo=True,
)
meets("larger_than_its_place", "f32[5] f32[3,5]", lambda x, y: (x * 2).add_(y), fails=True)

# --- sizes of 0 and 1 that vary -------------------------------------------------------------------

few = Family("few", dynamo=True, dynamic=True)
FEW = ("f32[5,6]", "f32[1,6]", "f32[3,6]", "f32[0,6]")
few("rows_softmax", FEW, lambda x: x.softmax(-1) * 2)
few("rows_summed", FEW, lambda x: (x.sum(0) + 1, x.exp().sum()))
few("columns_of_norm", FEW, lambda x: F.layer_norm(x, (6,)) + x.sum(1, keepdim=True))
few("half_and_half", FEW[:3], lambda x: torch.cat((x[: x.shape[0] // 2], x * 2)))
few(
    "spread",
    ("f32[5,6] f32[1,6]", "f32[1,6] f32[4,6]", "f32[7,6] f32[7,6]"),
    lambda x, y: x + y * 2,
)
few(
    "of_products",
    ("f32[5,6] f32[6,4]", "f32[1,6] f32[6,4]", "f32[3,1] f32[1,4]"),
    lambda x, y: (x @ y).relu(),
)
few(
    "variance_of_one",
    ("f32[5,6]", "f32[2,6]", "f32[1,6]"),
    lambda x: x.var(0, correction=0) + x.sum(0),
)
few("counted", FEW[:3], lambda x: (x > 0).sum(0) * x.shape[0])
few("turned_back", FEW[:3], lambda x: x.flip(0).roll(1, 0) + x)
few("gradient_of_few", FEW[:3], lambda x: (x.sin() * x.mean(0)).sum(1), grad=True)

FAMILIES = (outer, meets, few)
