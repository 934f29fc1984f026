"""Views that overlap, are turned or have gaps, and writes through them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hostile.cases import Family

turned = Family("turned")


def written(x: Tensor, *writes: Any) -> Tensor:
    """A copy of x after each of the writes."""
    y = x * 1
    for write in writes:
        write(y)
    return y + x


turned("flip_of_flip_written", "f32[5,7]", lambda x: written(x, lambda y: y.flip(0).mul_(3)))
turned("diagonal_written", "f32[5,7]", lambda x: written(x, lambda y: y.diagonal(1).add_(2)))
eagerly = Family("aliased", dynamo=True, ours=False)
"""Writes that AOTAutograd gets wrong."""
eagerly(
    "gaps_between_windows", "f32[20]", lambda x: written(x, lambda y: y.unfold(0, 4, 5).mul_(2))
)
eagerly(
    "windows_left_over",
    "f32[3,10]",
    lambda x: written(x, lambda y: y.unfold(1, 4, 4)[:, 1].add_(2)),
)
eagerly("expand_filled", "f32[4,1]", lambda x: written(x, lambda y: y.expand(4, 5).fill_(3)))
eagerly("expand_zeroed", "f32[4,1]", lambda x: written(x, lambda y: y.expand(4, 5)[1:3].zero_()))
eagerly("expand_is_refused", "f32[4,1]", lambda x: (x * 1).expand(4, 5).add_(1), fails=True)
eagerly(
    "expand_set_is_refused",
    "f32[4,1]",
    lambda x: written(x, lambda y: y.expand(4, 5).__setitem__(1, x[0])),
    fails=True,
)
turned(
    "windows_written",
    "f32[20]",
    lambda x: written(x, lambda y: y.unfold(0, 4, 4).mul_(2)),
    dynamo=True,
)
turned(
    "expanded_operand_of_a_write",
    "f32[4,6]",
    lambda x: written(x, lambda y: y.add_(x[:, :1].expand(4, 6))),
    dynamo=True,
)
turned("strided_column_written", "f32[6,8]", lambda x: written(x, lambda y: y[:, ::3].sub_(1)))
turned(
    "view_of_view_written",
    "f32[4,6]",
    lambda x: written(x, lambda y: y.view(6, 4)[1:3].t()[2].zero_()),
)
turned("transposed_written", "f32[4,6]", lambda x: written(x, lambda y: y.t()[1:3].add_(x.t()[:2])))
turned("transposed_row_written", "f32[4,6]", lambda x: written(x, lambda y: y.t()[2].add_(x[:, 0])))
turned(
    "transposed_steps_written",
    "f32[4,6]",
    lambda x: written(x, lambda y: y.t()[1::2].add_(x.t()[:3])),
)
turned(
    "transposed_diagonal_written",
    "f32[4,6]",
    lambda x: written(x, lambda y: y.t().diagonal().add_(x[0, :4])),
)
turned(
    "permuted_slice_written",
    "f32[3,4,5]",
    lambda x: written(x, lambda y: y.permute(2, 0, 1)[1:3, :, 2:].mul_(2)),
)
turned(
    "channels_last_slice_written",
    "f32[2,3,4,5]",
    lambda x: (lambda y: (y[:, 1:].add_(1), y * 2, y))(x.to(memory_format=torch.channels_last) * 1)[
        1:
    ],
)
turned(
    "channels_last_row_written",
    "f32[2,3,4,5]",
    lambda x: (lambda y: (y[:, 1].add_(1), y[:, :, 2].mul_(2), y * 2, y))(
        x.to(memory_format=torch.channels_last) * 1
    )[2:],
)
turned("expand_as_source", "f32[4,6]", lambda x: written(x, lambda y: y.copy_(x[:1].expand(4, 6))))
turned("self_overlap_copied", "f32[9]", lambda x: written(x, lambda y: y[1:].copy_(y[:-1].clone())))
turned("row_into_all", "f32[4,6]", lambda x: written(x, lambda y: y.add_(y[0].clone())))
turned(
    "narrow_then_squeeze",
    "f32[4,1,6]",
    lambda x: written(x, lambda y: y.squeeze(1).narrow(0, 1, 2).exp_()),
)
turned(
    "select_of_select",
    "f32[3,4,5]",
    lambda x: written(x, lambda y: y[1][2].mul_(5), lambda y: y[:, 2].add_(1)),
)
turned(
    "unflatten_written",
    "f32[4,6]",
    lambda x: written(x, lambda y: y.unflatten(1, (2, 3))[:, 1].neg_()),
)
turned(
    "as_strided_written_gap",
    "f32[40]",
    lambda x: written(x, lambda y: y.as_strided((3, 4), (10, 2), 1).fill_(7)),
)
turned("movedim_written", "f32[3,4,5]", lambda x: written(x, lambda y: y.movedim(0, 2)[1].mul_(2)))
turned(
    "split_written",
    "f32[6,4]",
    lambda x: written(x, lambda y: [p.mul_(i) for i, p in enumerate(y.split(2))]),
)
turned(
    "unbind_written",
    "f32[3,4]",
    lambda x: written(x, lambda y: [p.add_(i) for i, p in enumerate(y.unbind(1))]),
)
turned(
    "chunk_read_after",
    "f32[6,4]",
    lambda x: (lambda y: (y.chunk(2)[0].mul_(2), y.chunk(2)[1] + y[0])[1])(x * 1),
)
turned(
    "real_view_written",
    "f32[4,6]",
    lambda x: torch.view_as_complex((x * 2).view(4, 3, 2)).real + 1,
    ours=True,
)
turned("flip_all_of_reversed", "f32[3,4,5]@r", lambda x: x.flip(0, 2) * x.flip(1) + x)
turned("flip_of_diagonal", "f32[6,6]", lambda x: x.diagonal().flip(0) * x.flip(1).diagonal() + 1)
turned("unfold_of_unfold", "f32[8,9]", lambda x: x.unfold(0, 3, 2).unfold(1, 4, 3).sum((2, 3)) * 2)
turned(
    "unfold_softmax_back",
    "f32[3,16]",
    lambda x: x.unfold(1, 4, 4).softmax(-1).flatten(1) + x,
    grad=True,
)
turned(
    "as_strided_of_sum",
    "f32[5,12]",
    lambda x: x.sum(0).as_strided((3, 4), (4, 1)) + x[:3, :4],
    grad=True,
)
turned(
    "as_strided_gradient_overlap",
    "f32[12]",
    lambda x: (x * 2).as_strided((5, 4), (2, 1)).tanh(),
    grad=True,
)
turned(
    "diagonal_gradient", "f32[4,5,5]", lambda x: (x.exp().diagonal(0, 1, 2) * 2).sum(1), grad=True
)
turned(
    "repeat_and_reduce",
    "f32[3,4]",
    lambda x: x.repeat(2, 3).view(2, 3, 3, 4).sum((0, 2)) * x,
    grad=True,
)
turned(
    "expand_reduce_expand",
    "f32[1,7]",
    lambda x: x.expand(5, 7).softmax(0).sum(0).expand(3, 7) * 2,
    grad=True,
)
turned(
    "tensor_of_transposed_pairs",
    "f32[4,4,4]",
    lambda x: x + x.transpose(0, 1) + x.transpose(1, 2) + x.permute(2, 0, 1),
)
turned("roll_flip_transposed", "f32[6,6]", lambda x: x.roll((2, -1), (0, 1)).flip(1).t() - x)
turned(
    "negative_steps_by_index", "f32[9,5]", lambda x: x[torch.arange(8, -1, -2, device=x.device)] * 2
)
turned("reshape_across_a_flip", "f32[4,6]", lambda x: x.flip(1).reshape(8, 3).sum(1) + 1)
turned(
    "window_partition",
    "f32[2,8,8,3]",
    lambda x: x.view(2, 2, 4, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 3).softmax(1) * 2,
    grad=True,
)
turned(
    "window_reverse",
    "f32[8,16,3]",
    lambda x: (
        (x * 2)
        .view(2, 2, 2, 4, 4, 3)
        .permute(0, 1, 3, 2, 4, 5)
        .reshape(2, 8, 8, 3)
        .roll((-2, -2), (1, 2))
        + 1
    ),
    grad=True,
)
turned(
    "cyclic_shift_of_windows",
    "f32[1,8,8,2]",
    lambda x: (x.roll((-3, -3), (1, 2)) * 2).roll((3, 3), (1, 2)) - x,
)
turned("hankel", "f32[9]", lambda x: x.as_strided((5, 5), (1, 1)).sin() @ x[:5])
turned("toeplitz", "f32[9]", lambda x: x.flip(0).unfold(0, 5, 1).flip(0) * 2, ours=False)

FAMILIES = (turned, eagerly)
