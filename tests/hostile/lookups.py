"""Gathers, scatters, masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

# --- gathers and scatters -----------------------------------------------------------------------

lookups = Family("lookups", grad=True)
lookups("embedding", "f32[11,7] i64[5,3]!<11", lambda w, i: F.embedding(i, w) * 2)
lookups(
    "embedding_padded",
    "f32[11,7] i64[5,3]!<11",
    lambda w, i: F.embedding(i, w, padding_idx=2).sum(1),
)
lookups("embedding_int32", "f32[11,7] i32[5]!<11", lambda w, i: F.embedding(i, w) + 1)
lookups("embedding_of_one_row", "f32[1,7] i64[5]!<1", lambda w, i: F.embedding(i, w) + 1)
lookups(
    "embedding_bag",
    "f32[11,7] i64[5,3]!<11",
    lambda w, i: F.embedding_bag(i, w, mode="mean") * 2,
    ours=False,
)
lookups(
    "two_embeddings",
    "f32[11,7] f32[9,7] i64[5]!<9",
    lambda v, w, i: F.layer_norm(v[i] + w[i], (7,)),
)
lookups("gather", "f32[5,9] i64[5,4]!<9", lambda x, i: x.gather(1, i) * 2)
lookups("gather_fewer_rows", "f32[5,9] i64[3,4]!<9", lambda x, i: x.gather(1, i) * 2)
lookups("gather_rows", "f32[5,9] i64[7,4]!<5", lambda x, i: x.gather(0, i).sin())
lookups("gather_of_expanded", "f32[1,9] i64[5,4]!<9", lambda x, i: x.expand(5, 9).gather(1, i) + 1)
lookups("gather_of_transposed", "f32[9,5] i64[5,4]!<9", lambda x, i: x.t().gather(1, i) + 1)
lookups("gather_of_computed", "f32[5,9] i64[5,4]!<9", lambda x, i: x.softmax(1).gather(1, i).log())
lookups("gather_by_argmax", "f32[5,9]", lambda x: x.gather(1, x.argmax(1, keepdim=True)) * 2)
lookups("take_along_dim", "f32[5,9] i64[5,1]!<9", lambda x, i: torch.take_along_dim(x, i, 1) + x)
lookups("take_flat", "f32[5,9] i64[7]!<45", lambda x, i: x.take(i) * 2)
lookups("index_select", "f32[5,9] i64[7]!<9", lambda x, i: x.index_select(1, i) * 2)
lookups("index_of_expanded", "f32[5,1] i64[7]!<6", lambda x, i: x.expand(5, 6)[:, i] * 2)
lookups("index_rows", "f32[5,9] i64[7]!<5", lambda x, i: x[i] * 2)
lookups("index_columns", "f32[5,9] i64[7]!<9", lambda x, i: x[:, i].sum(0))
lookups("index_pairs", "f32[5,9] i64[7]!<5 i64[7]!<9", lambda x, i, j: x[i, j] * 2)
lookups("index_outer", "f32[5,9] i64[3]!<5 i64[4]!<9", lambda x, i, j: x[i[:, None], j] * 2)
lookups("index_around_a_slice", "f32[5,6,7] i64[4]!<5 i64[4]!<7", lambda x, i, j: x[i, :, j] * 2)
lookups("index_negative", "f32[5,9] i64[7]!<5", lambda x, i: x[i - 5] * 2)
lookups("index_small_types", "f32[5,9] i32[7]!<5", lambda x, i: x[i.long()] + x[i])
lookups("index_of_index", "f32[5,9] i64[8]!<5 i64[6]!<8", lambda x, i, j: x[i[j]] * 2)
lookups("index_by_computed", "f32[9] i64[7]!<20", lambda x, i: x[(i * 3 + 1) % 9] * 2)
lookups(
    "index_by_float", "f32[9] f32[7]!unit", lambda x, u: x[(u.detach() * 9).long().clamp(0, 8)] * 2
)
lookups("index_of_ints", "i64[9]!full i64[7]!<9", lambda x, i: x[i] + 1, grad=False)
lookups("index_of_bools", "bool[9] i64[7]!<9", lambda x, i: ~x[i], grad=False)
lookups("index_of_halves", "f16[9,5] i64[7]!<9", lambda x, i: x[i].float().sum(1))
lookups("index_of_doubles", "f64[9,5] i64[7]!<9", lambda x, i: x[i] * 0.1)
lookups("index_of_a_strided", "f32[9,5]@s i64[7]!<9", lambda x, i: x[i] * 2, grad=False)
lookups("index_of_an_offset", "f32[9,5]@o i64[7]!<9", lambda x, i: x[i] * 2, grad=False)
lookups(
    "index_put",
    "f32[5,9] f32[7] i64[7]!<5",
    lambda x, v, i: x.index_put((i,), v[:, None], accumulate=True) * 2,
)
lookups("index_add", "f32[5,9] f32[7,9] i64[7]!<5", lambda x, v, i: x.index_add(0, i, v * 2) + 1)
lookups(
    "index_copy",
    "f32[5,9] f32[3,9]",
    lambda x, v: x.index_copy(0, torch.tensor([4, 0, 2], device=x.device), v * 2) + 1,
)
lookups(
    "index_fill_ways",
    "f32[5,9]@t i64[3]!<5 f32[] f32[]",
    lambda x, i, v, z: (
        (x * 2).index_fill(0, i - 5, v) + 1,
        x.index_fill(1, i[0], float("inf")) * 2,
        z.index_fill(0, i[:1] * 0, 7.0) * 2,
        x.to(torch.int32).index_fill(-1, i, -3.7) + 1,
    ),
    grad=False,  # torch's formula of the number's gradient asks for the unique indices.
)
lookups("index_fill", "f32[5,9] i64[3]!<5", lambda x, i: x.index_fill(0, i, 0.5) * 2)
lookups("scatter_value", "f32[5,9] i64[5,2]!<9", lambda x, i: x.scatter(1, i, 0.5) * 2)
lookups(
    "scatter_add", "f32[5,9] i64[5,7]!<9 f32[5,7]", lambda x, i, v: x.scatter_add(1, i, v * 2) + 1
)
lookups(
    "scatter_reduce_amax",
    "f32[5,9] i64[5,7]!<9 f32[5,7]",
    lambda x, i, v: x.scatter_reduce(1, i, v, "amax") * 2,
    grad=False,
)
lookups("one_hot", "i64[5,3]!<7", lambda i: F.one_hot(i, 7).float() * 2, grad=False)
lookups(
    "one_hot_by_comparison",
    "i64[5,3]!<7",
    lambda i: (i[..., None] == torch.arange(7, device=i.device)).float().sum(1),
    grad=False,
)
lookups(
    "histogram_by_comparison",
    "i64[50]!<7",
    lambda i: (i[:, None] == torch.arange(7, device=i.device)).sum(0),
    grad=False,
)
lookups(
    "bucketize",
    "f32[50]",
    lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)) * 2,
    grad=False,
)
lookups(
    "segment_sum", "f32[50,3] i64[50]!<7", lambda x, i: x.new_zeros(7, 3).index_add(0, i, x) / 2
)
lookups(
    "nested_where_index",
    "f32[9,5] i64[7]!<9 bool[7]",
    lambda x, i, m: x[torch.where(m, i, 0)] * m[:, None],
)
lookups(
    "cross_of_rows",
    "f32[9,5] i64[4]!<9 i64[6]!<9",
    lambda x, i, j: (x[i][:, None] - x[j][None]).square().sum(-1),
)
lookups("bilinear_sampling", "f32[8,8] f32[5,2]!unit", lambda x, p: _bilinear(x, p))
lookups(
    "rope_tables",
    "f32[2,5,8] f32[16,8] i64[5]!<16",
    lambda x, t, p: x * t[p].cos() + x.flip(-1) * t[p].sin(),
)
lookups(
    "relative_positions",
    "f32[15,3]",
    lambda b: (
        b[torch.arange(8, device=b.device)[:, None] - torch.arange(8, device=b.device) + 7] * 2
    ),
)
lookups("sorted_then_gathered", "f32[5,9]", lambda x: x.gather(1, x.argsort(1)) * 2)
lookups("top_k", "f32[5,9]", lambda x: x.topk(3, 1)[0] * 2)
lookups("masked_select_by_sort", "f32[9]", lambda x: x.sort()[0].flip(0) + 1)
lookups("wrong_index_type_is_refused", "f32[5,9] f32[7]", lambda x, i: x[i], fails=True)
lookups(
    "wrong_gather_shape_is_refused", "f32[5,9] i64[5]!<9", lambda x, i: x.gather(1, i), fails=True
)


def _bilinear(image: Tensor, places: Tensor) -> Tensor:
    p = places * 7
    low = p.detach().floor().long().clamp(0, 6)
    w = p - low
    rows, columns = low.unbind(1)
    a, b = image[rows, columns], image[rows, columns + 1]
    c, d = image[rows + 1, columns], image[rows + 1, columns + 1]
    return torch.lerp(torch.lerp(a, b, w[:, 1]), torch.lerp(c, d, w[:, 1]), w[:, 0])


# --- masks --------------------------------------------------------------------------------------

masks = Family("masks", grad=True)
INF = float("inf")


def positions(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    p = torch.arange(n, device=device)
    return p[:, None], p[None, :]


def causal(x: Tensor) -> Tensor:
    i, j = positions(x.shape[-1], x.device)
    return x.masked_fill(j > i, -INF)


masks("causal_softmax", "f32[3,9,9]", lambda x: torch.softmax(causal(x), -1))
masks(
    "causal_by_tril",
    "f32[9,9]",
    lambda x: torch.softmax(x.masked_fill(torch.ones_like(x).tril() == 0, -INF), -1),
)
masks(
    "causal_mean",
    "f32[9,9]",
    lambda x: torch.where(causal(x).isinf(), 0.0, x).sum(-1) / torch.arange(1, 10, device=x.device),
)
masks(
    "window",
    "f32[9,9]",
    lambda x: torch.softmax(
        torch.where((positions(9, x.device)[0] - positions(9, x.device)[1]).abs() <= 2, x, -INF), -1
    ),
)
masks(
    "lengths",
    "f32[5,9] i64[5]!<10",
    lambda x, n: torch.softmax(
        x.masked_fill(torch.arange(9, device=x.device) > n[:, None], -1e9), 1
    ),
)
masks("masked_mean", "f32[5,9] bool[5,9]", lambda x, m: (x * m).sum(1) / m.sum(1).clamp(min=1))
masks(
    "masked_mean_of_nothing",
    "f32[5,9] bool[5,9]!0",
    lambda x, m: (x * m).sum(1) / m.sum(1),
    grad=False,
)
masks(
    "masked_variance",
    "f32[5,9] bool[5,9]!0.8",
    lambda x, m: ((x - (x * m).sum(1, keepdim=True) / 9).square() * m).sum(1),
)
masks(
    "masked_softmax_all",
    "f32[5,9] bool[5,9]!1",
    lambda x, m: torch.softmax(x.masked_fill(m, -INF), 1),
    grad=False,
)
masks(
    "safe_softmax",
    "f32[5,9] bool[5,9]",
    lambda x, m: torch.softmax(x.masked_fill(m, -INF), 1).nan_to_num(0.0),
)
masks("masked_amax", "f32[5,9] bool[5,9]", lambda x, m: torch.where(m, x, -INF).amax(1))
masks(
    "masked_argmax",
    "f32[5,9] bool[5,9]",
    lambda x, m: torch.where(m, x, -INF).argmax(1),
    grad=False,
)
masks(
    "masked_logsumexp", "f32[5,9] bool[5,9]!0.9", lambda x, m: torch.where(m, x, -INF).logsumexp(1)
)
masks(
    "two_masks",
    "f32[5,9] bool[9] bool[5]",
    lambda x, m, n: torch.softmax(x.masked_fill((m & ~n[:, None]), -1e4), 1),
)
masks("mask_of_rows", "f32[5,9] bool[5,1]", lambda x, m: (x * m).exp().sum(0))
masks("mask_by_value", "f32[5,9]", lambda x: torch.where(x > 0, x.log1p(), -x) * (x.abs() < 1))
masks(
    "mask_keeps_infinity",
    "f32[5,9]!special bool[5,9]",
    lambda x, m: (x * m, torch.where(m, x, 0)),
    grad=False,
)
masks(
    "fill_by_scalar_tensor",
    "f32[5,9] bool[5,9] f32[]",
    lambda x, m, v: x.masked_fill(m, v) * 2,
    grad=False,
)
masks("fill_of_half", "f16[5,9] bool[5,9]", lambda x, m: x.masked_fill(m, -65504.0) * 0.5)
masks(
    "fill_of_long",
    "i64[5,9] bool[5,9]",
    lambda x, m: x.masked_fill(m, -(2**63)).amax(1),
    grad=False,
)
masks(
    "where_scalars",
    "bool[5,9]",
    lambda m: (torch.where(m, 1.0, 0.0) * 2, torch.where(m, 3, 4) + 1),
    grad=False,
)
masks("where_promotes", "bool[5,9] i64[5,9] f32[5,9]", lambda m, i, x: torch.where(m, i, x) * 2)
masks("where_broadcasts", "bool[5,1] f32[9] f32[]", lambda m, x, y: torch.where(m, x, y) * 2)
masks(
    "nested_where",
    "f32[5,9]",
    lambda x: torch.where(x > 1, 1, torch.where(x < -1, -1, torch.where(x > 0, x, x * 0.1))),
)
masks(
    "masked_scatter_by_cumsum",
    "f32[9] bool[9]",
    lambda x, m: torch.where(m, x[(m.cumsum(0) - 1).clamp(0)], 0.0) * 2,
)
masks(
    "checkerboard",
    "f32[9,9]",
    lambda x: torch.where(
        (positions(9, x.device)[0] + positions(9, x.device)[1]) % 2 == 0, x, -x
    ).sum(0),
)
masks("band_of_integers", "i64[9,9]", lambda x: x.tril(1).triu(-1).sum(0), grad=False)
masks("tril_of_bool", "bool[9,9]", lambda x: (x.tril() & ~x.t().triu(1)).sum(1), grad=False)
masks(
    "alibi",
    "f32[2,9,9]",
    lambda x: torch.softmax(
        causal(x - 0.5 * (positions(9, x.device)[0] - positions(9, x.device)[1]).abs()), -1
    ),
)
masks("dropout_of_all", "f32[5,9]", lambda x: F.dropout(x * 2, 1.0) + 1)
masks(
    "packed_sequences",
    "f32[9,9] i64[9]!<3",
    lambda x, s: torch.softmax(x.masked_fill(s[:, None] != s[None, :], -INF), -1),
)
masks(
    "attention_with_padding",
    "f32[2,5,8] f32[2,5,8] f32[2,5,8] bool[2,5]!0.9",
    lambda q, k, v, m: torch.softmax((q @ k.mT / 8**0.5).masked_fill(~m[:, None], -1e9), -1) @ v,
)
masks(
    "sdpa_causal",
    "f32[1,2,9,8] f32[1,2,9,8] f32[1,2,9,8]",
    lambda q, k, v: F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1,
)
masks(
    "sdpa_bool_mask",
    "f32[1,2,9,8] f32[1,2,9,8] f32[1,2,9,8] bool[9,9]!0.8",
    lambda q, k, v, m: F.scaled_dot_product_attention(q * 2, k, v, m) + 1,
    grad=False,
)


FAMILIES = (lookups, masks)
