"""Views: slices, transposes, windows, and what is computed of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hostile.cases import Family

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
views("tile_of_transposed", "f32[5,7]@t", lambda x: (x * 2).tile(2))
views("tile_of_a_column", "f32[5,7]@t", lambda x: (x * 2).amax(1, keepdim=True).tile(3))
views(
    "select_scatter_into_permuted",
    "f32[2,3,4]@r f32[2,3]",
    lambda x, y: (x * 2).select_scatter(y.sin(), -1, 0),
)
views(
    "pools_of_permuted",
    "f32[1,3,6,7]@r",
    lambda x: (
        F.max_pool2d(x * 2, 2, 1, return_indices=True),
        F.avg_pool2d(x * 2, 2, 1),
        F.adaptive_avg_pool2d(x * 2, (3, 1)),
        F.max_pool2d((x * 2)[0].mT, 3, 2, padding=1),
    ),
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
views(
    "pad_replicate_and_cut",
    "f32[1,2,5,3]",
    lambda x: (
        F.pad(x, (2, 1, 0, -2), mode="replicate"),
        F.pad(x, (-3, 4, 0, 0), mode="replicate"),
    ),
    grad=True,
)
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

FAMILIES = (views,)
