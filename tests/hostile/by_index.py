"""Lookups and writes by an index of every form; results whose shapes depend on data."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hostile.cases import Family

tables = Family("tables")
for _mode in ("sum", "mean", "max"):
    tables(
        f"embedding_bag_{_mode}",
        "i64[3,4]!<9 f32[9,5]",
        lambda i, w, m=_mode: F.embedding_bag(i, w * 2, mode=m) + 1,
        grad=True,
    )
tables(
    "embedding_bag_offsets",
    "i64[7]!<9 f32[9,5]",
    lambda i, w: (
        F.embedding_bag(i, w * 2, torch.tensor([0, 3, 3], device=w.device), mode="sum") * 2
    ),
    grad=True,
)
tables(
    "embedding_bag_weighted",
    "i64[3,4]!<9 f32[9,5] f32[3,4]",
    lambda i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p.sin()) * 2,
    grad=True,
)
tables(
    "embedding_bag_padding",
    "i64[3,4]!<9 f32[9,5]",
    lambda i, w: F.embedding_bag(i, w * 2, mode="mean", padding_idx=2) * 2,
)
for _kind in ("sum", "prod", "mean", "amax", "amin"):
    for _self in (True, False):
        tables(
            f"scatter_reduce_{_kind}_{_self}",
            "f32[5,7] i64[4,7]!<5 f32[4,7]",
            lambda x, i, s, k=_kind, own=_self: (
                (x * 2).scatter_reduce(0, i, s.sin(), k, include_self=own) + 1
            ),
        )
tables(
    "scatter_add_of_a_number",
    "f32[1] i64[1]!<1 f32[]",
    lambda x, i, s: (x * 2).scatter_add(0, i, s.sin()) * 2,
)
tables(
    "scatter_reduce_grad",
    "f32[5,7] i64[4,7]!<5 f32[4,7]",
    lambda x, i, s: (x * 2).scatter_reduce(0, i, s.sin(), "sum") * 2,
    grad=True,
)
tables(
    "scatter_reduce_amax_grad",
    "f32[5,7] i64[4,7]!<5 f32[4,7]",
    lambda x, i, s: (x * 2).scatter_reduce(0, i, s.sin(), "amax") * 2,
    grad=True,
)
tables(
    "index_put_accumulated",
    "f32[9,5] i64[12]!<9 f32[12,5]",
    lambda x, i, v: (x * 2).index_put((i,), v.exp(), accumulate=True) + 1,
    grad=True,
)
tables(
    "index_put_pairs",
    "f32[5,7] i64[6]!<5 i64[6]!<7 f32[6]",
    lambda x, i, j, v: (x * 2).index_put((i, j), v, accumulate=True) * 2,
    grad=True,
)
tables(
    "index_put_bool",
    "f32[5,7] bool[5,7]",
    lambda x, m: (x * 2).index_put((m,), torch.tensor(3.0, device=x.device, dtype=x.dtype)) + 1,
)
tables(
    "index_put_negative", "f32[9,5] i64[4]!<4", lambda x, i: (x * 2).index_put((i - 9,), x[0]) + 1
)
tables(
    "index_copy",
    "f32[9,5] f32[3,5]",
    lambda x, v: (x * 2).index_copy(0, torch.tensor([7, 0, 3], device=x.device), v.sin()) * 2,
    grad=True,
)
tables(
    "index_reduce",
    "f32[9,5] i64[4]!<9 f32[4,5]",
    lambda x, i, v: (x * 2).index_reduce(0, i, v, "amax") + 1,
)
tables(
    "index_add_scaled",
    "f32[9,5] i64[4]!<9 f32[4,5]",
    lambda x, i, v: (x * 2).index_add(0, i, v, alpha=-2.5) + 1,
    grad=True,
)
tables(
    "index_add_columns_of_half",
    "f16[5,9] i64[4]!<9 f16[5,4]",
    lambda x, i, v: (x * 2).index_add(1, i, v) + 1,
)
tables(
    "put_accumulated",
    "f32[5,7] i64[9]!<35 f32[9]",
    lambda x, i, v: (x * 2).put(i, v, accumulate=True) + 1,
)
tables("take", "f32[5,7] i64[3,4]!<35", lambda x, i: (x * 2).take(i) + 1, grad=True)
tables("take_negative", "f32[5,7] i64[6]!<35", lambda x, i: (x * 2).take(i - 35) + 1)
tables(
    "take_along", "f32[5,7] i64[5,3]!<7", lambda x, i: (x * 2).take_along_dim(i, 1) * 3, grad=True
)
tables(
    "masked_scatter", "f32[5,7] bool[5,7] f32[35]", lambda x, m, s: (x * 2).masked_scatter(m, s) + 1
)
tables(
    "gather_of_expanded",
    "f32[5,1] i64[5,3]!<6",
    lambda x, i: (x * 2).expand(5, 6).gather(1, i) + 1,
    grad=True,
)
tables(
    "gather_shorter_index", "f32[5,7] i64[3,2]!<5", lambda x, i: (x * 2).gather(0, i) + 1, grad=True
)
tables(
    "scatter_add_shorter",
    "f32[5,7] i64[3,2]!<5 f32[4,6]",
    lambda x, i, s: (x * 2).scatter_add(0, i, s) + 1,
)
tables("one_hot_matmul", "i64[9]!<5 f32[5,4]", lambda i, w: F.one_hot(i, 5).to(w.dtype) @ w + 1)
tables(
    "bins_counted",
    "i64[50]!<9",
    lambda i: torch.bincount(i, minlength=12).float() * 2,
    dynamo=True,
    ours=False,
)
tables(
    "bins_weighted",
    "i64[50]!<9 f32[50]",
    lambda i, w: torch.zeros(9, device=w.device, dtype=w.dtype).index_add(0, i, w * 2) + 1,
)
tables(
    "segment_mean",
    "f32[12,3] i64[12]!<4",
    lambda x, s: (
        torch.zeros(4, 3, device=x.device, dtype=x.dtype).index_add(0, s, x * 2)
        / torch.bincount(s, minlength=4).clamp(min=1)[:, None]
    ),
    dynamo=True,
    ours=False,
)


def segment_deviation(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """By squares: 0 of one element, before eps."""

    def mean(of: torch.Tensor) -> torch.Tensor:
        places = s[:, None].expand_as(of)
        return torch.zeros_like(of).scatter_reduce(0, places, of, "mean", include_self=False)

    return (mean(x * x) - mean(x).square()).clamp(min=0).add(1e-5).sqrt()


tables("segment_deviation", "f32[9,4] i64[9]!<9", segment_deviation)
tables(
    "segment_softmax",
    "f32[12] i64[12]!<4",
    lambda x, s: (
        lambda e: e / torch.zeros(4, device=x.device, dtype=x.dtype).index_add(0, s, e)[s]
    )((x - x.max()).exp()),
    grad=True,
)
tables(
    "graph_convolution",
    "f32[6,4] i64[9]!<6 i64[9]!<6 f32[4,4]",
    lambda x, a, b, w: torch.zeros_like(x).index_add(0, b, (x @ w).relu()[a]) + x,
    grad=True,
)
tables(
    "histogram_by_search",
    "f32[40]!unit",
    lambda x: torch.bucketize(x * 2, torch.linspace(0, 2, 9, device=x.device, dtype=x.dtype)) + 1,
    ours=False,
)
tables("sorted_ranks", "f32[5,9]", lambda x: (x * 2).argsort(1).argsort(1).float() / 9)
tables(
    "sort_stable_ties",
    "f32[5,9]!ties",
    lambda x: torch.sort(x * 2, dim=1, descending=True, stable=True),
    ours=True,
)
tables("sort_of_nan", "f32[40]!special", lambda x: torch.sort(x * 2)[0] + 1, by="element")
tables("top_k_of_nan", "f32[40]!special", lambda x: (x * 2).topk(7)[0] + 1, by="element")
tables("kth_value", "f32[5,9]", lambda x: (x * 2).kthvalue(3, 1)[0] + 1, grad=True)
tables("quantile", "f32[5,9]", lambda x: torch.quantile(x * 2, 0.3, 1) + 1, grad=True)
tables("mode", "i64[5,9]!<3", lambda x: torch.mode(x + 1, 1)[0] * 2)
tables(
    "search_sorted_rows",
    "f32[3,9] f32[3,4]",
    lambda x, v: torch.searchsorted(x.sort(1)[0], v * 2) + 1,
)
tables("cummax_with_ties", "f32[5,9]!ties", lambda x: torch.cummax(x * 2, 1), ours=True)
tables(
    "unique_rows", "i64[9,2]!<2", lambda x: torch.unique(x + 1, dim=0) * 2, dynamo=True, ours=False
)
tables(
    "unique_counts",
    "i64[30]!<6",
    lambda x: torch.unique(x + 1, return_counts=True),
    dynamo=True,
    ours=False,
)
tables(
    "consecutive",
    "i64[30]!<2",
    lambda x: torch.unique_consecutive(x + 1) * 2,
    dynamo=True,
    ours=False,
)
tables(
    "nonzero_as_tuple",
    "f32[5,7]!ties",
    lambda x: (x * 2)[(x > 0).nonzero(as_tuple=True)] + 1,
    dynamo=True,
    ours=False,
)
tables(
    "argwhere_then_sum",
    "f32[5,7]!ties",
    lambda x: torch.argwhere(x * 2 > 0).float().sum(0) + x.sum(),
    dynamo=True,
    ours=False,
)
tables(
    "repeat_by_tensor",
    "f32[4,3] i64[4]!<3",
    lambda x, n: (x * 2).repeat_interleave(n, 0) + 1,
    dynamo=True,
    ours=False,
)
tables(
    "padded_to_longest",
    "f32[4,6] i64[4]!<7",
    lambda x, n: (x * 2)[:, : int(n.max())] + 1,
    dynamo=True,
    ours=False,
)

FAMILIES = (tables,)
