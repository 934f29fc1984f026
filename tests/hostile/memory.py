"""Views, writes in place, memory that is shared, extents."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family, Maker

# --- views --------------------------------------------------------------------------------------

views = Family("views", grad=True)
views("as_strided", "f32[6,8]", lambda x: (x * 2).as_strided((3, 4), (16, 2), 1) + 1)
views("as_strided_overlapping", "f32[40]", lambda x: x.as_strided((9, 5), (4, 1)).sin().sum(1))
views("as_strided_of_input", "f32[6,8]", lambda x: x.as_strided((4, 6), (1, 8)) * 3)
views("as_strided_broadcast", "f32[8]", lambda x: x.as_strided((5, 8), (0, 1)) + x)
views("unfold", "f32[5,20]", lambda x: x.unfold(1, 4, 3).exp().sum(-1))
views("unfold_overlapping", "f32[3,17]", lambda x: x.unfold(1, 5, 1).amax(-1) + 1)
views(
    "unfold_images",
    "f32[2,3,9,8]",
    lambda x: F.unfold(x * 2, 3, padding=1, stride=2) + 1,
    ours=False,
)
views("expand_then_sum", "f32[5,1,7]", lambda x: (x.expand(5, 6, 7) * 2).sum(0))
views("expand_new_dimensions", "f32[7]", lambda x: x.expand(3, 4, 7).sin().sum((0, 1)))
views("expanded_input", "f32[5,7]@e", lambda x: torch.softmax(x, 0) + x, grad=False)
views("flip", "f32[5,7]", lambda x: x.flip(0) + x.flip(1) * x.flip(0, 1))
views(
    "flip_then_sum", "f32[5,7]", lambda x: (x.flip(1) * torch.arange(7.0, device=x.device)).sum(1)
)
views("roll", "f32[5,7]", lambda x: x.roll(2, 1) - x)
views("roll_two", "f32[5,7]", lambda x: x.roll((1, -3), (0, 1)) * x + x.roll(9, 0))
views("roll_flat", "f32[5,7]", lambda x: x.roll(3) + x)
views("rot90", "f32[5,7]", lambda x: torch.rot90(x) * 2 + torch.rot90(x, -1).flip(0).flip(1))
views("diagonal", "f32[5,7]", lambda x: x.diagonal() * 2 + x.diagonal(1)[:5])
views("diagonal_offset", "f32[3,5,7]", lambda x: x.diagonal(-2, 1, 2).exp())
views("diag_embed", "f32[3,4]", lambda x: torch.diag_embed(x, 1) + 1)
views("trace", "f32[5,5]", lambda x: (x * x).trace(), ours=False)
views("tril_triu", "f32[5,7]", lambda x: x.tril(-1) + (x * 2).triu(2))
views("movedim", "f32[3,4,5]", lambda x: x.movedim(0, -1).softmax(-1) + 1)
views("swapaxes", "f32[3,4,5]", lambda x: (x.swapaxes(0, 2) * 2).sum(1))
views("permute_and_reshape", "f32[3,4,6]", lambda x: (x.permute(2, 0, 1).reshape(9, 8) * 2).sum(0))
views("reshape_cuts_across", "f32[6,35]", lambda x: x.sin().reshape(10, 21).sum(1) + 1)
views("reshape_of_transposed", "f32[6,35]", lambda x: (x.t().reshape(21, 10) + 1).sum(1))
views("flatten_unflatten", "f32[3,4,6]", lambda x: x.flatten(1).softmax(1).unflatten(1, (8, 3)) * 2)
views(
    "squeeze_unsqueeze", "f32[3,1,5]", lambda x: (x.squeeze(1) * 2).unsqueeze(0).unsqueeze(-1) + 1
)
views("select_negative", "f32[5,7]", lambda x: x[-1] * x[-2] + x[:, -3].sum())
views(
    "slice_with_step", "f32[23,11]", lambda x: x[1::3, ::2] * 2 + x[::3, 1:][:7, ::2][:, :6].sum()
)
views("slice_beyond_the_end", "f32[5,7]", lambda x: x[2:100, -100:3] + 1)
views("slice_of_slice", "f32[31]", lambda x: x[3:][::2][1:-1] * 2)
views("slice_of_computed", "f32[9,13]", lambda x: (x * 2 + 1)[2:7, 3:-1].sum(0))
views("narrow", "f32[9,13]", lambda x: x.narrow(1, 3, 5) * x.narrow(0, 1, 8).sum())
views(
    "ellipsis_and_none",
    "f32[3,4,5]",
    lambda x: x[..., None, 1:3] * x[None, ..., :2, None, :1].sum(),
)
views("chunk_uneven", "f32[10,7]", lambda x: [c * (i + 1) for i, c in enumerate(x.chunk(4))])
views("split_sizes", "f32[10,7]", lambda x: [c.sum(0) for c in x.split([1, 2, 7])])
views("tensor_split", "f32[10,7]", lambda x: [c + 1 for c in x.tensor_split(3, 1)])
views("unbind", "f32[4,7]", lambda x: sum(c * i for i, c in enumerate(x.unbind(0))))
views("cat_of_slices", "f32[6,8]", lambda x: torch.cat((-x[:, 4:], x[:, :4]), 1) * 2 + x)
views("cat_with_itself", "f32[3,8]", lambda x: torch.cat((x, x, x * 2)).sum(0))
views("cat_with_empty", "f32[0,8] f32[3,8]", lambda x, y: torch.cat((x, y * 2, x)) + 1)
views("cat_many", "f32[2,3]", lambda x: torch.cat([x * i for i in range(9)], 1) + 1)
views("stack_and_sum", "f32[5,7] f32[5,7]", lambda x, y: torch.stack((x, y, x * y), -1).sum(-1))
views(
    "stack_new_dimension",
    "f32[5] f32[5]",
    lambda x, y: torch.stack((x.sin(), y.cos()), 0).softmax(0),
)
views("repeat", "f32[3,5]", lambda x: x.repeat(2, 1, 3) * 2)
views("repeat_interleave", "f32[3,5]", lambda x: x.repeat_interleave(3, 1) + 1)
views("tile", "f32[3,5]", lambda x: x.tile(2, 2).sum(0))
views("kron", "f32[2,3] f32[4,2]", lambda x, y: torch.kron(x, y) + 1)
views("meshgrid", "f32[5] f32[7]", lambda x, y: sum(torch.meshgrid(x * 2, y, indexing="ij")))
views("outer_differences", "f32[17]", lambda x: (x[:, None] - x[None, :]).abs().mean())
views("block_diag", "f32[2,3] f32[4,2]", lambda x, y: torch.block_diag(x, y * 2) + 1)
views("pixel_shuffle", "f32[1,8,3,5]", lambda x: F.pixel_shuffle(x * 2, 2) + 1)
views("pixel_unshuffle", "f32[1,2,6,4]", lambda x: F.pixel_unshuffle(x * 2, 2) + 1)
views("channel_shuffle", "f32[2,6,3,3]", lambda x: F.channel_shuffle(x * 2, 3) + 1)
views("pad_constant", "f32[3,5]", lambda x: F.pad(x * 2, (1, 2, 3, 0)) + 1)
views("pad_negative", "f32[5,7]", lambda x: F.pad(x * 2, (-1, 2, 0, -2)) + 1)
views("pad_reflect", "f32[1,2,5,7]", lambda x: F.pad(x * 2, (2, 1, 1, 3), mode="reflect") + 1)
views("pad_replicate", "f32[1,2,5,7]", lambda x: F.pad(x * 2, (2, 1, 1, 3), mode="replicate") + 1)
views("pad_circular", "f32[1,2,5,7]", lambda x: F.pad(x * 2, (2, 1, 1, 3), mode="circular") + 1)
views("transposed_input", "f32[33,17]@t", lambda x: torch.softmax(x, 1) + x.sum(0))
views("strided_input", "f32[33,17]@s", lambda x: x.sin().sum(0) * x)
views("offset_input", "f32[33,17]@o", lambda x: F.layer_norm(x, (17,)))
views("reversed_input", "f32[3,4,5]@r", lambda x: x.softmax(1) * x)
views("many_layouts", "f32[9,8]@t f32[9,8]@s f32[9,8]@o f32[9,8]", lambda a, b, c, d: a * b + c * d)
views("transposed_meets_itself", "f32[9,9]", lambda x: (x * 2 + (x * 2).t()) / 2)
views("symmetrise_and_sum", "f32[9,9]", lambda x: (x + x.t()).exp().sum(0))
views("transposed_softmax_twice", "f32[9,9]", lambda x: x.softmax(0) @ x.softmax(1).t())
views("view_of_a_view_of_a_sum", "f32[4,6,5]", lambda x: x.sum(1).view(2, 10).t()[3:7] * 2)
views(
    "contiguous_of_permuted",
    "f32[3,4,5]",
    lambda x: x.permute(2, 1, 0).contiguous().view(20, 3) * 2,
)
views(
    "channels_last",
    "f32[2,3,5,4]",
    lambda x: x.contiguous(memory_format=torch.channels_last).relu() + 1,
)
views("view_as_real_free", "f32[5,8]", lambda x: x.view(5, 4, 2).flip(-1).reshape(5, 8) * x)
views("rotate_half", "f32[2,3,8]", lambda x: torch.cat((-x[..., 1::2], x[..., ::2]), -1) * x)
views("interleave", "f32[5,8] f32[5,8]", lambda x, y: torch.stack((x, y), -1).flatten(-2) * 2)
views(
    "windows_of_four",
    "f32[1,8,8]",
    lambda x: x.view(1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(16, 4).softmax(-1),
)
views("shifted_differences", "f32[9,13]", lambda x: (x[1:, :-1] - x[:-1, 1:]).square().mean())
views(
    "laplacian",
    "f32[9,13]",
    lambda x: x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2] - 4 * x[1:-1, 1:-1],
)
views("pooling_by_reshape", "f32[3,8,12]", lambda x: x.view(3, 4, 2, 6, 2).amax((2, 4)) + 1)
views("diff", "f32[5,9]", lambda x: (torch.diff(x), torch.diff(x, n=2, dim=0)))
views("broadcast_tensors", "f32[5,1] f32[7]", lambda x, y: sum(torch.broadcast_tensors(x, y * 2)))
views(
    "view_dtype_of_input",
    "f32[5,8]",
    lambda x: x.detach().float().view(torch.int32).bitwise_and(0x7FFFFFFF) > 5,
    grad=False,
)
views(
    "seven_dimensions",
    "f32[2,1,3,2,1,2,2]",
    lambda x: x.sum((1, 3, 5)) * x.amax((0, 2, 4, 6)).sum(),
)
views("select_then_broadcast", "f32[5,7]", lambda x: x[2] + x[:, 3:4] * x)
views(
    "scatter_of_views",
    "f32[5,7] f32[7]",
    lambda x, y: torch.select_scatter(x * 2, y, 0, 3).slice_scatter(x[:2] * 0, 0, 0, 2),
)
views("diagonal_scatter", "f32[5,5] f32[5]", lambda x, y: torch.diagonal_scatter(x * 2, y) + 1)
views("glu", "f32[5,8]", lambda x: F.glu(x, 1) + F.glu(x, -1))
views("cumsum_behind_a_view", "f32[5,8]", lambda x: (x.t() * 2).cumsum(0) + 1)

# --- writes in place ----------------------------------------------------------------------------

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

FAMILIES = (views, writes, shared, extents)
