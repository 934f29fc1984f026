"""Reductions, scans, sorts and reads by index that are odd."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hostile.cases import Family

INF = float("inf")

# --- folds --------------------------------------------------------------------------------------

folds = Family("folds")
folds(
    "std_of_one_element",
    "f32[5,1]",
    lambda x: (x.std(1), x.var(1), torch.var_mean(x, 1), x.std(1, correction=0)),
)
folds("std_of_a_scalar", "f32[]", lambda x: (x.var(), x.std(correction=0)), ours=False)
folds(
    "var_correction_beyond",
    "f32[5,3]",
    lambda x: (x.var(1, correction=3), x.var(1, correction=5), x.var(1, correction=2)),
)
folds("var_of_empty", "f32[5,0] f32[5,3]", lambda x, y: (x.var(1), y.var(1) + 1))
folds(
    "std_mean_over_two",
    "f32[3,5,7]",
    lambda x: torch.std_mean(x, (0, 2), correction=0, keepdim=True),
)
folds("var_of_half", "f16[5,301]!100", lambda x: (x.var(1), x.std(1)))
folds("var_of_bfloat_offset", "bf16[5,301]", lambda x: (x + 100).var(1))
folds("var_of_double", "f64[5,301]", lambda x: ((x + 100).var(1), (x * 1e-8).std(0)))
folds("var_of_equal", "f32[5,301]!zero", lambda x: (x + 0.1).var(1))
for p in (0, 1, 2, 3, 0.5, -1, -2, INF, -INF):
    folds(
        f"norm_{p}",
        "f32[5,37]!ties",
        lambda x, p=p: (torch.linalg.vector_norm(x, p, 1), x.norm(p, 0)),
    )
folds("norm_of_empty", "f32[5,0] f32[5,3]", lambda x, y: (x.norm(dim=1), y.norm(dim=1) * 2))
folds("norm_of_half", "f16[5,301]!100", lambda x: (x.norm(dim=1), x.norm(1, 1)))
folds(
    "norm_with_dtype", "f16[5,37]", lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=torch.float64)
)
folds("norm_of_special", "f32[4,26]!special", lambda x: [x.norm(p, 1) for p in (0, 1, 2, INF)])
folds(
    "frobenius",
    "f32[3,5,7]",
    lambda x: (
        torch.linalg.matrix_norm(x),
        torch.linalg.matrix_norm(x, 1),
        torch.linalg.matrix_norm(x, INF),
    ),
)
folds("dist", "f32[5,7] f32[5,7]", lambda x, y: [torch.dist(x, y, p) for p in (0, 1, 2, INF)])
folds("renorm", "f32[5,7]", lambda x: x.renorm(2, 0, 1.0) * 2)
folds("median_even", "f32[5,8]!ties", lambda x: ((x * 2).median(1)[0], (x + 1).median()))
folds(
    "median_of_nan", "f32[4,26]!special", lambda x: ((x * 2).median(1)[0], (x * 2).nanmedian(1)[0])
)
folds("mode", "i64[5,9]!<3", lambda x: (x + 1).mode(1)[0], ours=True)
folds(
    "quantile",
    "f32[5,9]",
    lambda x: torch.quantile(
        x * 2, torch.tensor([0.1, 0.5, 1.0], device=x.device, dtype=x.dtype), dim=1
    ),
)
folds("kthvalue", "f32[5,9]", lambda x: (x * 2).kthvalue(3, 1)[0] + 1)
folds("logsumexp_all_minus_infinity", "f32[5,9]!zero", lambda x: (x - INF).logsumexp(1))
folds(
    "logsumexp_of_infinity",
    "f32[5,9]!zero",
    lambda x: ((x + INF).logsumexp(1), torch.cat((x - INF, x + INF), 1).logsumexp(1)),
)
folds("logsumexp_of_ints", "i64[5,9]", lambda x: x.logsumexp(1), ours=False)
folds(
    "logsumexp_two_dimensions",
    "f32[3,5,7]",
    lambda x: (x.logsumexp((0, 2)), x.logsumexp((1, 2), keepdim=True)),
)
folds(
    "softmax_of_minus_infinity_rows",
    "f32[5,9] bool[5,1]",
    lambda x, m: (x.masked_fill(m, -INF).softmax(1), x.masked_fill(m, -INF).log_softmax(1)),
)
folds(
    "softmax_of_one", "f32[5,1]", lambda x: (x.softmax(1), x.log_softmax(1), (x * INF).softmax(1))
)
folds(
    "softmax_of_nan_row",
    "f32[5,9] bool[5,1]",
    lambda x, m: (x.masked_fill(m, float("nan")) * 2).softmax(1),
)
folds("softmax_of_huge_spread", "f32[5,9]!1e30", lambda x: (x.softmax(1), x.softmax(0)))
folds("softmax_of_double", "f64[5,301]!100", lambda x: (x.softmax(1), x.log_softmax(1)))
folds("softmax_of_half_limits", "f16[5,37]!3e4", lambda x: (x * 2).softmax(1))
folds(
    "argmax_of_all_equal",
    "f32[5,301]!zero",
    lambda x: (x.argmax(1), x.argmin(0), (x + 1).argmax(), x.max(0)[1]),
)
folds(
    "argmax_of_nan",
    "f32[4,26]!special",
    lambda x: ((x * 1).argmax(1), x.argmin(1), x.argmax(0), x.max(1)[1], x.min(0)[1]),
)
folds("argmax_of_infinities", "f32[5,9]!zero", lambda x: ((x - INF).argmax(1), (x + INF).argmin(1)))
folds("argmax_of_bool", "u8[5,9]!<2", lambda x: ((x + 0).argmax(1), x.argmin(1)))
folds("argmax_of_half", "f16[5,301]!ties", lambda x: ((x * 2).argmax(1), x.argmin(1, keepdim=True)))
folds("argmax_of_long_limits", "i64[5,37]!full", lambda x: (x.argmax(1), x.argmin(0), x.max(1)[1]))
folds("argmax_flat_of_transposed", "f32[5,9]!ties@t", lambda x: (x.argmax(), (x * 2).argmin()))
folds(
    "argmax_of_signed_zeros",
    "f32[5,9]!zero",
    lambda x: (torch.where(torch.arange(9, device=x.device) > 3, -x, x)).argmax(1),
)
folds("max_of_two_values", "f32[5,9]!ties", lambda x: (x.max(1)[0] - x.min(1)[0], x.amax((0, 1))))
folds(
    "any_all_of_empty",
    "f32[0,5] f32[3,5]",
    lambda x, y: (x.any(0), x.all(0), x.any(), x.all(), y.all(1)),
)
folds(
    "any_all_over_two",
    "bool[3,5,7]!0.1",
    lambda x: (x.any((0, 2)), (~x).all((1, 2)), x.any(1, keepdim=True)),
)
folds("any_of_half_subnormals", "f16[5,9]!1e-6", lambda x: (x.any(1), x.all(0), (x != 0).sum()))
folds("any_of_nan", "f32[4,26]!special", lambda x: (x.any(1), x.all(1), x.isnan().any(0)))
folds(
    "prod_of_zeros_and_infinities",
    "f32[4,26]!special",
    lambda x: (x.prod(1), x.nan_to_num(1).clamp(-2, 2).prod(0)),
)
folds("prod_of_ints_wraps", "i64[5,37]!nonzero", lambda x: (x.prod(1), x.prod(dtype=torch.int32)))
folds(
    "sums_and_products_into_flags",
    "f32[5,9]!unit",
    lambda x: [
        result
        for y in (x.detach() * 0.9, (x.detach() - 0.5).relu())
        for result in (
            y.sum(1, dtype=torch.bool),
            y.sum(dtype=torch.bool),
            y.prod(1, dtype=torch.bool),
        )
    ],
)
folds("prod_of_empty", "f32[5,0] f32[3,2]", lambda x, y: (x.prod(1), y.prod(1)))
folds("prod_over_all", "f64[3,5]", lambda x: (x.prod(), x.prod(0, keepdim=True)))
folds("sum_of_opposite_infinities", "f32[5,9]!special", lambda x: (x.sum(1), x.mean(0)))
folds("sum_of_half_beyond", "f16[5,301]!zero", lambda x: ((x + 500).sum(1), (x + 500).mean(1)))
folds(
    "sum_of_bfloat_small_steps",
    "bf16[5,4001]!zero",
    lambda x: ((x + 0.01).sum(1), (x + 1).cumsum(1)[:, -1]),
)
folds(
    "sum_of_cancelling_pairs", "f32[5,500]", lambda x: torch.cat((x * 1e6, -x * 1e6, x), 1).sum(1)
)
folds("sum_of_0d", "f32[]", lambda x: (x.sum() + 1, x.amax(), x.mean(0)))
folds("sum_over_no_dimension", "f32[3,5]", lambda x: (x.sum(()), x.mean((0, 1), keepdim=True)))
folds(
    "sum_over_negative_dimensions", "f32[3,5,7]", lambda x: (x.sum(-1), x.sum((-1, -3)), x.amax(-2))
)
folds(
    "sum_to_size", "f32[3,5,7]", lambda x: ((x * 2).sum_to_size(5, 1), (x * 2).sum_to_size(1, 1, 7))
)
folds("mean_of_empty", "f32[5,0] f32[3,2]", lambda x, y: (x.mean(1), x.sum(1), y.mean(1)))
folds(
    "nanmean_of_all_nan",
    "f32[5,9]!zero",
    lambda x: (torch.nanmean(x * float("nan"), 1), (x / 0).nansum(1)),
)
folds(
    "count_nonzero_of_types",
    "f16[5,9]!ties i8[5,9]",
    lambda x, y: (x.count_nonzero(1), y.count_nonzero(), y.count_nonzero((0, 1))),
)
folds(
    "aminmax_of_nan", "f32[4,26]!special", lambda x: (*torch.aminmax(x, dim=1), *torch.aminmax(x))
)
folds(
    "amax_gradient_of_ties",
    "f32[5,9]!ties",
    lambda x: (x.amax(1), x.amin(0), x.max(1)[0], x.max()),
    grad=True,
)
folds(
    "prod_gradient_one_zero",
    "f32[5,4]",
    lambda x: (torch.cat((x, x[:, :1] * 0), 1)).prod(1),
    grad=True,
)
folds("std_gradient_of_equal", "f32[5,9]!zero", lambda x: (x + 1).var(1), grad=True)
folds(
    "norm_gradient_of_ties",
    "f32[5,9]!ties",
    lambda x: (torch.linalg.vector_norm(x, INF, 1), x.norm(3, 1)),
    grad=True,
)
folds(
    "logsumexp_gradient_masked",
    "f32[5,9] bool[5,1]",
    lambda x, m: x.masked_fill(m, -INF).logsumexp(1),
    grad=True,
)
folds(
    "cumulative_gradients",
    "f32[5,9]",
    lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1), x.cummax(1)[0]),
    grad=True,
)

# --- scans and orders ---------------------------------------------------------------------------

scans = Family("scans")
scans("cumsum_reversed", "f32[5,301]", lambda x: (x * 2).flip(1).cumsum(1).flip(1) + 1)
scans("cumsum_of_columns_reversed", "f32[301,5]", lambda x: (x * 2).flip(0).cumsum(0).flip(0))
scans("cumsum_gradient", "f32[5,301]", lambda x: (x.sin().cumsum(1) * x).sum(1), grad=True)
scans("cumsum_of_half", "f16[5,301]", lambda x: (x * 2).cumsum(1))
scans("cumsum_of_bfloat", "bf16[5,301]", lambda x: (x + 1).cumsum(1))
scans("cumsum_of_double", "f64[5,301]", lambda x: (x * 0.1).cumsum(1) - x)
scans("cumsum_of_bool", "bool[5,301]", lambda x: (x.cumsum(1), (~x).cumsum(0) * 2))
scans(
    "cumsum_of_int_wraps",
    "i32[5,37]!full",
    lambda x: (x.to(torch.int8).cumsum(1, dtype=torch.int8), x.cumsum(1)),
)
scans(
    "cumsum_of_special",
    "f32[4,26]!special",
    lambda x: (x.cumsum(1), x.nan_to_num(0).clamp(-9, 9).cumsum(0)),
)
scans("cumsum_of_0d", "f32[]", lambda x: x.cumsum(0) + 1)
scans("cumsum_of_one", "f32[5,1]", lambda x: (x * 2).cumsum(1))
scans("cumsum_of_empty", "f32[5,0] f32[3,2]", lambda x, y: (x.cumsum(1), (y * 2).cumsum(1)))
scans("cumsum_exclusive", "f32[5,37]", lambda x: x.cumsum(1) - x)
scans("cumsum_middle", "f32[3,37,5]", lambda x: (x * 2).cumsum(1).amax(2))
scans("cumsum_twice", "f32[5,37]", lambda x: x.cumsum(1).cumsum(0))
scans("cumsum_of_transposed", "f32[37,5]@t", lambda x: (x + 1).cumsum(0) * 2)
scans("cumprod_with_zero", "f32[5,9]!ties", lambda x: (x.cumprod(1), (x * 0.5).cumprod(0)))
scans("cumprod_of_ints", "i64[5,9]!nonzero", lambda x: (x * 2).cumprod(1))
scans("cummax_of_nan", "f32[4,26]!special", lambda x: (x.cummax(1)[0], x.cummin(1)[0]), ours=False)
scans("cummax_of_ties", "f32[5,37]!ties", lambda x: ((x * 2).cummax(1), x.cummin(0)), ours=False)
scans(
    "logcumsumexp_of_infinity",
    "f32[5,9]",
    lambda x: (torch.cat((x[:, :3] - INF, x), 1).logcumsumexp(1), x),
    ours=False,
)
scans("running_mean", "f32[5,37]", lambda x: x.cumsum(1) / torch.arange(1, 38, device=x.device))
scans("running_maximum_of_gates", "f32[5,37]", lambda x: (x.sigmoid().log().cumsum(1)).exp() * x)
scans("segment_starts", "i64[50]!<3", lambda x: (x[1:] != x[:-1]).cumsum(0))
scans(
    "reversed_returns",
    "f32[5,37]",
    lambda r: (r * 0.9 ** torch.arange(37, device=r.device)).flip(-1).cumsum(-1).flip(-1),
)
scans("diff_of_cumsum", "f32[5,37]", lambda x: x.cumsum(1).diff(dim=1) - x[:, 1:], by="tensor")
scans(
    "sort_of_nan",
    "f32[4,26]!special",
    lambda x: ((x * 2).sort(1)[0], x.sort(1, descending=True)[0]),
    ours=False,
)
scans("stable_sort_of_ties", "f32[5,37]!ties", lambda x: (x * 2).sort(dim=1, stable=True)[1] + 1)
scans("topk_of_ties", "f32[5,9]!ties", lambda x: (x * 2).topk(4, 1)[0] + 1)
scans(
    "unique_like",
    "i64[20]!<5",
    lambda x: ((s := x.sort()[0]), torch.cat((s.new_ones(1), (s[1:] != s[:-1]).long())).cumsum(0)),
)
scans(
    "bucketize_right",
    "f32[50]!ties",
    lambda x: (
        torch.bucketize(x * 1, b := torch.tensor([-1.5, 0.0, 1.5], device=x.device, dtype=x.dtype))
        + 1,
        torch.bucketize(x, b, right=True),
    ),
)
scans(
    "bucketize_of_nan",
    "f32[4,26]!special",
    lambda x: (
        torch.bucketize(x * 1, torch.tensor([-1.5, 0.0, 1.5], device=x.device, dtype=x.dtype)) + 1
    ),
)
scans(
    "searchsorted_rows",
    "f32[5,9] f32[5,4]",
    lambda x, v: torch.searchsorted(x.sort(1)[0], v * 2) + 1,
)
scans(
    "searchsorted_of_ints",
    "i64[9] i64[5]",
    lambda x, v: torch.searchsorted(x.sort()[0], v + 1, right=True) * 2,
    ours=True,
)
scans("histogram", "f32[50]", lambda x: torch.histc(x * 2, 5, -3, 3) + 1)
scans(
    "bincount_by_scatter",
    "i64[50]!<7 f32[50]",
    lambda i, v: v.new_zeros(7).scatter_add(0, i, v * 2),
)
scans("isin", "i64[50]!<9", lambda x: torch.isin(x + 1, torch.tensor([2, 5], device=x.device)))

# --- reads and writes by index ------------------------------------------------------------------

index = Family("index")
index(
    "negative_and_duplicate",
    "f32[5,9]",
    lambda x: x[torch.tensor([-1, 0, -1, 4, -5], device=x.device)] * 2,
)
index(
    "negative_columns", "f32[5,9]", lambda x: x[:, torch.tensor([-9, -1, 3], device=x.device)] + 1
)
index(
    "put_duplicates_accumulate",
    "f32[5,9] i64[8]!<5 f32[8,9]",
    lambda x, i, v: x.index_put((i,), v * 2, accumulate=True) + 1,
)
index(
    "put_negative",
    "f32[5,9]",
    lambda x: x.index_put((torch.tensor([-1, 0], device=x.device),), x[1:3] * 2) + 1,
)
index(
    "put_at_pairs", "f32[5,9] i64[1]!<5 i64[1]!<9", lambda x, i, j: x.index_put((i, j), x.sum()) * 2
)
index(
    "put_by_mask",
    "f32[5,9] bool[5,9]",
    lambda x, m: x.index_put((m,), torch.zeros((), device=x.device, dtype=x.dtype)) * 2,
)
index(
    "put_bool_values",
    "bool[5,9] i64[2]!<5",
    lambda x, i: x.index_put((i,), torch.ones((), dtype=torch.bool, device=x.device)) | ~x,
)
for how in ("sum", "prod", "mean", "amax", "amin"):
    for include in (True, False):
        index(
            f"scatter_reduce_{how}_{'with' if include else 'without'}_self",
            "f32[5,9] i64[5,20]!<9 f32[5,20]",
            lambda x, i, v, h=how, s=include: x.scatter_reduce(1, i, v * 2, h, include_self=s) + 1,
        )
index(
    "scatter_reduce_of_ints",
    "i64[5,9] i64[5,20]!<9 i64[5,20]",
    lambda x, i, v: (x.scatter_reduce(1, i, v + 1, "amax"), x.scatter_add(1, i, v * 2)),
)
index(
    "scatter_reduce_gradient",
    "f32[5,9] i64[5,4]!<9 f32[5,4]",
    lambda x, i, v: (x.scatter_reduce(1, i, v * 2, "sum"), x.scatter_reduce(1, i, v, "mean")),
    grad=True,
)
index(
    "index_reduce",
    "f32[5,9] i64[7]!<5 f32[7,9]",
    lambda x, i, v: x.index_reduce(0, i, v * 2, "amax") + 1,
)
index(
    "index_add_alpha",
    "f32[5,9] i64[7]!<5 f32[7,9]",
    lambda x, i, v: x.index_add(0, i, v, alpha=-0.5) * 2,
)
index(
    "index_add_of_columns",
    "f16[5,9] i64[7]!<9 f16[5,7]",
    lambda x, i, v: x.index_add(1, i, v * 2) * 2,
)
index(
    "index_add_of_ints", "i64[5,9] i64[7]!<5 i64[7,9]", lambda x, i, v: x.index_add(0, i, v * 2) * 2
)
index(
    "gather_gradient_of_duplicates",
    "f32[5,9] i64[5,20]!<9",
    lambda x, i: x.gather(1, i).sin(),
    grad=True,
)
index(
    "gather_of_bool_and_long",
    "bool[5,9] i64[5,9]!full i64[5,4]!<9",
    lambda x, y, i: (x.gather(1, i) & True, y.gather(1, i) + 1),
)
index("gather_at_one_place", "f32[5,9] i64[1,1]!<5", lambda x, i: x.gather(0, i) * 2)
index("gather_of_nothing", "f32[5,9] i64[5,0]!<9", lambda x, i: (x.gather(1, i), x * 2))
index("embedding_of_nothing", "f32[5,9] i64[0]!<5", lambda w, i: (F.embedding(i, w), w * 2))
index(
    "embedding_scaled_by_frequency",
    "f32[7,5] i64[12]!<7",
    lambda w, i: F.embedding(i, w, scale_grad_by_freq=True) * 2,
    grad=True,
)
index(
    "embedding_padded_negative",
    "f32[7,5] i64[3,4]!<7",
    lambda w, i: F.embedding(i, w, padding_idx=-1) * 2,
    grad=True,
)
index(
    "embedding_tied",
    "f32[7,5] i64[12]!<7",
    lambda w, i: F.embedding(i, w).tanh() @ w.t(),
    grad=True,
)
index(
    "index_broadcast_with_none",
    "f32[5,9] i64[4]!<5",
    lambda x, i: (x[i, None] * 2, x[None, i, 1:3] + 1),
)
index("index_two_around", "f32[3,4,5,6] i64[2]!<3 i64[2]!<5", lambda x, i, j: x[i, :, j] * 2)
index(
    "take_negative",
    "f32[5,9]",
    lambda x: x.take(torch.tensor([-1, -45, 44, 0], device=x.device)) * 2,
)
index(
    "masked_scatter", "f32[5,9] bool[5,9] f32[45]", lambda x, m, v: x.masked_scatter(m, v * 2) + 1
)
index(
    "masked_scatter_gradient",
    "f32[5,9] bool[5,9] f32[45]",
    lambda x, m, v: x.masked_scatter(m, v * 2) + 1,
    grad=True,
)
index(
    "select_scatter",
    "f32[5,9] f32[9]",
    lambda x, v: (x.select_scatter(v * 2, 0, -1) + 1, x[:, :5].diagonal_scatter(v[:5])),
)
index(
    "scatters_into_a_slice",
    "f32[5,9] f32[9]",
    lambda x, v: (
        x[:, 2:7].select_scatter(v[:5], 0, 1),
        x[:, 2:7].slice_scatter(x[:2, :5] * 2, 0, 1, 3),
        x[1:4].slice_scatter(x[:2] * 2, 0, 1, 3),
    ),
)
index(
    "slice_scatter_steps", "f32[9,4] f32[3,4]", lambda x, v: x.slice_scatter(v * 2, 0, 1, 8, 3) + 1
)
index(
    "one_hot_then_product", "i64[7]!<5 f32[5,3]", lambda i, w: F.one_hot(i, 5).to(w.dtype) @ w + 1
)
index("repeat_interleave_counts", "f32[5,3]", lambda x: (x * 2).repeat_interleave(3, 0) + 1)
index("tril_indices", "f32[5,5]", lambda x: x[tuple(torch.tril_indices(5, 5, device=x.device))] * 2)
index("flat_to_grid", "i64[20]!<45 f32[5,9]", lambda i, x: x[i // 9, i % 9] * 2)
index(
    "index_by_int32_pair", "f32[5,9] i32[7]!<5 i32[7]!<9", lambda x, i, j: x[i.long(), j.long()] * 2
)
index(
    "index_by_uint8",
    "f32[5,9]",
    lambda x: x.index_select(0, torch.tensor([0, 3, 3], device=x.device, dtype=torch.int32)) * 2,
)

FAMILIES = (folds, scans, index)
