"""Memory that several inputs share, and extents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family, Maker

# --- memory that is shared ----------------------------------------------------------------------

shared = Family("aliasing")


def twice(m: Maker) -> tuple[Tensor, ...]:
    x = m("f32[6,9]")
    return x, x


def overlapping(m: Maker) -> tuple[Tensor, ...]:
    x = m("f32[60]")
    return x[:40].view(5, 8), x[11:51].view(5, 8)


def halves(m: Maker) -> tuple[Tensor, ...]:
    x = m("f32[6,9]")
    return x[:3], x[3:]


def transposes(m: Maker) -> tuple[Tensor, ...]:
    x = m("f32[7,7]")
    return x, x.t()


def rows(m: Maker) -> tuple[Tensor, ...]:
    return m("f32[6,9]").unbind(0)[:3]


def write_first(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    return x * y, y + 1


def write_second(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    before = x * 2
    y.mul_(3)
    return before, x + y


def write_both(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    x.sub_(y.sum())
    return x + 1


for each, make in (
    ("twice", twice),
    ("overlapping", overlapping),
    ("halves", halves),
    ("transposes", transposes),
):
    shared(f"{each}_read", make, lambda x, y: (x * y + 1, (x - y).sum()))
    # AOTAutograd by itself leaves it to Dynamo to see that two inputs are one tensor.
    shared(f"{each}_first_written", make, write_first, dynamo=True)
    shared(f"{each}_second_written", make, write_second, dynamo=True)
    shared(f"{each}_both_written", make, write_both, dynamo=True)
shared("three_rows_of_one", rows, lambda a, b, c: a * b + c)
shared(
    "three_rows_written", rows, lambda a, b, c: (a.add_(1), b.mul_(2), a * b + c)[2], dynamo=True
)
shared("input_returned", "f32[5,7]", lambda x: (x, x + 1))
shared("view_of_input_returned", "f32[5,7]", lambda x: (x.t(), x[1:], x.view(-1), x * 2))
shared("written_input_returned", "f32[5,7]", lambda x: (x.add_(1), x.t(), x * 2))
shared("result_twice", "f32[5,7]", lambda x: ((y := x * 2), y, y.t()))
shared("views_of_a_result", "f32[5,7]", lambda x: ((y := x * 2)[1:], y[:2], y.view(-1)[3:9]))
shared("expanded_result", "f32[5,1]", lambda x: ((x * 2).expand(5, 4), x + 1))
shared("contiguous_is_no_copy", "f32[5,7]", lambda x: (x.contiguous(), x + 1))
shared("contiguous_is_a_copy", "f32[5,7]@t", lambda x: (x.contiguous(), x + 1))
shared("to_the_same_type", "f32[5,7]", lambda x: (x.to(x.dtype), x + 1))
shared("clone_is_a_copy", "f32[5,7]", lambda x: (x.clone(), x + 1), ours=False)
shared(
    "copied_into_a_new_one",
    "f32[5,7]",
    lambda x: (torch.empty_like(x).copy_(x), torch.zeros_like(x)[1:].copy_(x[1:]), x.sin()),
)
shared(
    "computed_and_copied",
    "f32[5,7]",
    lambda x: ((y := x.sin()), torch.empty_like(y).copy_(y), y.new_empty(7, 5).t().copy_(y)),
)
shared(
    "written_after_it_was_copied",
    "f32[5,7]",
    lambda x: ((y := torch.empty_like(x).copy_(x)), x.mul_(2), y.view(-1)[3:])[::2],
)
shared(
    "copied_and_back",
    "f32[5,7] f32[5,7]",
    lambda x, y: ((z := torch.empty_like(y).copy_(y)), x.copy_(z), y.zero_(), z + 1)[::3],
)
shared(
    "gradient_of_a_copy",
    "f32[5,7]",
    lambda x: (torch.empty_like(x).copy_(x), torch.empty_like(x).copy_(x * 2)),
    grad=True,
    ours=False,
)
shared("detach_shares", "f32[5,7]", lambda x: (x.detach(), (x * 2).detach()))
shared("reshape_shares_or_not", "f32[5,7]@t", lambda x: (x.reshape(35), x.reshape(5, 7, 1), x + 1))
shared("zero_added_is_a_copy", "f32[5,7]", lambda x: (x + 0, x * 1, x - 0))
shared("select_of_written", "f32[5,7]", lambda x: ((y := x * 2).mul_(3), y[0], y[1].add_(1)))
shared(
    "gradient_of_a_returned_view", "f32[5,7]", lambda x: ((y := x * 2).t(), y[1:] * 3, y), grad=True
)
shared("gradient_of_the_input_itself", "f32[5,7]", lambda x: (x.sum(), x.view(-1) * 2), grad=True)
shared("gradient_of_one_result_twice", "f32[5,7]", lambda x: ((y := x.sin()), y, y * 2), grad=True)
shared(
    "gradient_not_needed",
    "f32[5,7] f32[5,7]",
    lambda x, y: (x * y.detach(), y.detach() * 2),
    grad=True,
)
shared("gradient_of_an_unused", "f32[5,7] f32[5,7]", lambda x, y: x * 2, grad=True)
shared("gradient_is_none_for_ints", "f32[5,7] i64[5,7]", lambda x, y: (x * y, y + 1), grad=True)
shared("gradient_of_a_comparison", "f32[5,7]", lambda x: (x > 0, (x > 0) * x), grad=True)
shared("dynamo_views_returned", "f32[5,7]", lambda x: (x.t(), x[1:], x * 2), dynamo=True)
shared("dynamo_result_twice", "f32[5,7]", lambda x: ((y := x * 2), y, y.t()), dynamo=True)
shared("dynamo_written_returned", "f32[5,7]", lambda x: (x.add_(1), x.t(), x * 2), dynamo=True)

# --- extents ------------------------------------------------------------------------------------

extents = Family("extents")


def usual(x: Tensor) -> list[Tensor]:
    return [
        x.sin() * 2,
        x.sum(-1),
        torch.softmax(x, -1),
        F.layer_norm(x, x.shape[-1:]),
        x.mean(),
        x > 0,
    ]


for each in (
    "1",
    "1,1",
    "1,1,1",
    "2",
    "3,1",
    "1,3",
    "127",
    "257,3",
    "3,257",
    "1021",
    "2,1,131",
    "1,1,1,1,1,7",
    "64,64",
    "13,17,19",
    "5,1025",
):
    extents(f"usual_{each.replace(',', 'x')}", f"f32[{each}]", usual, grad=True)
for each in ("0", "0,5", "5,0", "3,0,7", "0,0"):
    name = each.replace(",", "x")
    extents(
        f"empty_{name}",
        f"f32[{each}]",
        lambda x: (x * 2, x.sum(), x.sum(-1), x.mean(0), x.sin().prod(-1)),
        ours=False,
    )
    extents(
        f"empty_gradient_{name}", f"f32[{each}]", lambda x: (x * 2).sum(), ours=False, grad=True
    )
    extents(
        f"empty_beside_others_{name}",
        f"f32[{each}] f32[5]",
        lambda x, y: (x * 2, y * 2, torch.cat((x.reshape(-1), y)) + 1),
    )
extents("empty_extremum_is_refused", "f32[5,0]", lambda x: (x * 2).amax(1), fails=True)
extents("empty_argmax_is_refused", "f32[0]", lambda x: (x * 2).argmax(), fails=True)
extents("empty_any_all", "bool[5,0]", lambda x: (x.any(1), x.all(1), x.sum()), ours=False)
extents("empty_softmax", "f32[5,0]", lambda x: torch.softmax(x * 2, 1), ours=False)
extents("empty_product", "f32[5,0] f32[0,7]", lambda x, y: x @ y + 1)
extents("empty_batch_of_products", "f32[0,5,3] f32[0,3,7]", lambda x, y: x @ y * 2, ours=False)
extents("empty_slice_joined", "f32[5,7]", lambda x: torch.cat((x[:0] * 2, x * 3)) + 1, grad=True)
extents(
    "empty_part_of_a_row",
    "f32[8,8]@t",
    lambda x: (x[:, None].masked_fill(x[:, None] > 0, 2)[2].narrow(0, 1, 0).sum(), x + 1),
)
extents("empty_gather", "f32[5,7] i64[0]", lambda x, i: x[i] * 2, ours=False)
extents("scalar", "f32[]", lambda x: (x * 2, x.sum(), x.exp() + 1, x.expand(5) * 2), grad=True)
extents("scalar_folds", "f32[]", lambda x: (x.amax(), x.mean() * 2, x.softmax(0), x.argmax()))
extents(
    "scalars_of_types", "i64[] bool[] f16[] f64[]", lambda a, b, c, d: (a + b, c * a, d * c, a * d)
)
extents("one_element_variance", "f32[5,1]", lambda x: (x.var(1), x.std(1), x.var(1, correction=0)))
extents("one_element_norm", "f32[5,1]", lambda x: F.layer_norm(x, (1,)), grad=True)
extents(
    "one_row_batch_norm",
    "f32[2,5]",
    lambda x: F.batch_norm(x, None, None, training=True),
    grad=True,
)
extents("long_row", "f32[2,20011]", lambda x: (torch.softmax(x, 1), x.sum(1), x.amax(1)))
extents("tall_column", "f32[20011,2]", lambda x: (x.sum(0), x.amax(0), x.mean(0)))
extents("tall_gradient", "f32[4099,3]", lambda x: torch.softmax(x, 0), grad=True)
extents("prime_product", "f32[31,37] f32[37,41]", lambda x, y: (x @ y).relu() + 1, grad=True)
extents("inner_of_one", "f32[31,1] f32[1,41]", lambda x, y: (x @ y).relu() + 1, grad=True)
extents("huge_expanded_corner", "f32[1,1]", lambda x: x.expand(2**16, 2**16 + 1)[-3:, -5:] * 2)
extents("huge_expanded_steps", "f32[3,1]", lambda x: x.expand(3, 2**33)[:, :: 2**30] * 2)
extents(
    "huge_positions", "i64[3]", lambda x: torch.arange(2**40, 2**40 + 3, device=x.device) * 3 + x
)


def far_apart(m: Maker) -> tuple[Tensor, ...]:
    """Elements more than 2^31 apart, in memory that is not touched in between."""
    dtype = torch.int8
    whole = torch.empty(2**31 + 4096, dtype=dtype, device=m.device)
    x = whole.as_strided((3, 5), (2**30, 1))
    x.copy_(m("i8[3,5]"))
    return (x,)


extents("elements_2_to_31_apart", far_apart, lambda x: (x + 1, x.sum(1)))

FAMILIES = (shared, extents)
