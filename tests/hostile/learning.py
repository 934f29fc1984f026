"""Sums, norms and products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hostile.cases import Family

# --- sums and norms -----------------------------------------------------------------------------

sums = Family("sums", grad=True)
sums(
    "large_offset_variance",
    "f32[5,1001]",
    lambda x: ((x + 1000).var(1), (x + 1000).std(1)),
    grad=False,
)
sums("large_offset_layer_norm", "f32[5,301]", lambda x: F.layer_norm(x + 1000, (301,)), grad=False)
sums("tall_columns", "f32[4097,3]", lambda x: (x.sum(0), x.mean(0)))
sums("alternating", "f32[5,1000]", lambda x: (x * 1e4 - x * 1e4 + x).sum(1), grad=False)
sums("expanded_bfloat", "bf16[5,1]", lambda x: x.expand(5, 999).sum(1), grad=False)
sums("expanded_half", "f16[1,7]", lambda x: (x.expand(513, 7) * 0.1).sum(0), grad=False)
sums(
    "half_overflow",
    "f16[5,999]!100",
    lambda x: ((x.abs() * 10).sum(1), x.abs().mean(1)),
    grad=False,
)
sums("bfloat_of_ones", "bf16[5,999]!zero", lambda x: ((x + 1).sum(1), (x + 1).mean(1)), grad=False)
sums("double", "f64[5,999]", lambda x: (x.sum(1), x.var(1), x.logsumexp(1), x.mean()))
sums(
    "all_at_once",
    "f32[5,37]",
    lambda x: (x.sum(), x.mean(), x.amax(), x.var(), x.norm(), x.prod(1)),
)
sums(
    "over_every_dimension",
    "f32[3,5,7]",
    lambda x: [x.sum(d) for d in (0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2))],
)
sums(
    "keepdim_mix",
    "f32[3,5,7]",
    lambda x: x - x.mean((0, 2), keepdim=True) + x.amax(1, keepdim=True),
)
sums(
    "norms",
    "f32[5,37]",
    lambda x: [x.norm(p, 1) for p in (1, 2, 3, 0.5, float("inf"), -float("inf"))],
    grad=False,
)
# What is left where a gradient cancels shows whether a mean is that of the numbers beside it.
sums(
    "gradient_that_cancels_of_what_is_stored",
    "bf16[6,128] bf16[6,128] f32[6,128]",
    lambda x, y, w: (F.layer_norm((x + y).float(), (128,)) * (1 + 1e-3 * w.detach())).sum(),
)
sums(
    "gradient_that_cancels_of_what_is_computed_again",
    "bf16[6,64] f32[6,64]",
    lambda x, w: (F.layer_norm(F.gelu(x).float(), (64,)) * (1 + 1e-4 * w.detach())).sum(),
)
sums("norm_gradient", "f32[5,37]", lambda x: (x.norm(1, 1), x.norm(2, 1), x.norm(3, 1)))
sums("normalize", "f32[5,37]", lambda x: F.normalize(x, dim=1) * 2)
sums("std_correction", "f32[5,37]", lambda x: (x.std(1, correction=0), x.var(0, correction=2)))
sums("var_mean", "f32[5,37]", lambda x: torch.var_mean(x, 1))
sums("aminmax", "f32[5,37]!ties", lambda x: torch.aminmax(x, dim=1), grad=False)
sums(
    "arg_of_ties",
    "f32[9,37]!ties",
    lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.max(1)[1]),
    grad=False,
)
sums("median_and_sort", "f32[5,9]", lambda x: (x * 2).median(1)[0] + 1)
sums(
    "count_nonzero",
    "f32[5,37]!ties",
    lambda x: (x.count_nonzero(1), (x > 0).sum(0), (x == 0).any(1)),
    grad=False,
)
sums("cumulative", "f32[5,37]", lambda x: (x * 2).cumsum(1) + x.cumsum(0))
sums("cumulative_product", "f32[5,9]", lambda x: (1 - x.sigmoid()).cumprod(1) * x)
sums("logcumsumexp", "f32[5,9]", lambda x: x.logcumsumexp(1) * 2)
sums(
    "softmax_every_dimension",
    "f32[3,5,7]",
    lambda x: [x.softmax(d) for d in (0, 1, 2)] + [x.log_softmax(0)],
)
sums("softmax_of_large", "f32[5,37]!1e4", lambda x: (x.softmax(1), x.log_softmax(1)))
sums("softmax_twice", "f32[5,37]", lambda x: x.softmax(1).softmax(0))
sums("softmax_temperature", "f32[5,37] f32[5,1]!pos", lambda x, t: (x / t).softmax(1))
sums("softmin", "f32[5,37]", lambda x: F.softmin(x, 1) * 2)
sums("gumbel_free", "f32[5,37] f32[5,37]!pos", lambda x, u: (x - u.log()).softmax(1))
sums("layer_norm", "f32[5,37] f32[37] f32[37]", lambda x, w, b: F.layer_norm(x, (37,), w, b))
sums("layer_norm_two_dimensions", "f32[3,5,7]", lambda x: F.layer_norm(x, (5, 7)))
sums("layer_norm_half", "f16[5,37] f16[37]", lambda x, w: F.layer_norm(x, (37,), w))
sums("layer_norm_of_constant", "f32[5,37]!zero", lambda x: F.layer_norm(x + 3, (37,)), grad=False)
sums("rms_norm", "bf16[5,37] bf16[37]", lambda x, w: F.rms_norm(x, (37,), w))
sums("group_norm", "f32[2,6,5,3] f32[6] f32[6]", lambda x, w, b: F.group_norm(x, 3, w, b))
sums(
    "batch_norm_of_two_types",
    "bf16[6,5,9] f32[5] f32[5]",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
)
sums(
    "group_norm_of_two_types",  # which eager's kernel for a GPU refuses
    "bf16[2,6,5] f32[6]",
    lambda x, w: F.group_norm(x, 3, w.to(x.dtype) if x.is_cuda else w).float(),
)
sums("instance_norm", "f32[2,6,5,3]", lambda x: F.instance_norm(x))
sums(
    "batch_norm_training",
    "f32[7,5] f32[5] f32[5]",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
)
sums(
    "batch_norm_images", "f32[3,4,5,2]", lambda x: F.batch_norm(x, None, None, training=True).relu()
)
sums(
    "batch_norm_running",
    "f32[7,5] f32[5] f32[5]!pos",
    lambda x, m, v: (F.batch_norm(x, m, v, training=True), m + v),
    grad=False,
)
sums(
    "batch_norm_running_double",
    "f64[7,5] f64[5] f64[5]!pos",
    lambda x, m, v: (F.batch_norm(x, m, v, training=True), m + v),
    grad=False,
)
sums(
    "batch_norm_inference",
    "f32[7,5] f32[5] f32[5]!pos",
    lambda x, m, v: F.batch_norm(x, m.detach(), v.detach()),
)
sums("weight_norm", "f32[5,9] f32[5,1]", lambda v, g: torch._weight_norm(v, g, 0) * 2)
sums(
    "cosine_similarity",
    "f32[5,9] f32[7,9]",
    lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=-1),
)
sums(
    "pairwise_distances",
    "f32[5,9] f32[7,9]",
    lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(),
)
sums("standardise_columns", "f32[37,5]", lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5))
sums("sum_of_products_of_halves", "f16[5,999] f16[5,999]", lambda x, y: (x * y).sum(1))
sums(
    "nan_aware",
    "f32[5,9]!special",
    lambda x: (x.nansum(1), torch.nan_to_num(x).mean(1)),
    grad=False,
)
sums("product_of_many", "f64[5,37]", lambda x: (1 + x * 0.01).prod(1))
sums(
    "any_and_all",
    "f32[5,37]!ties",
    lambda x: ((x > 1).any(0), (x < 3).all(1), x.any(), x.all()),
    grad=False,
)
sums(
    "soft_argmax", "f32[5,37]", lambda x: (x.softmax(1) * torch.arange(37, device=x.device)).sum(1)
)
sums("entropy", "f32[5,37]", lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1))
sums("streamed_moments", "f32[5,37]", lambda x: ((x**3).mean(1) / x.std(1) ** 3, (x**4).mean(1)))
sums("split_and_joined", "f32[5,40]", lambda x: sum(c.softmax(1).amax(1) for c in x.split(8, 1)))

# --- products -----------------------------------------------------------------------------------

products = Family("products", grad=True)
for each in ("f32", "f64", "f16", "bf16"):
    products(
        f"linear_gelu_{each}",
        f"{each}[9,16] {each}[24,16] {each}[24]",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
    )
products(
    "every_transposition",
    "f32[9,9] f32[9,9]",
    lambda x, y: x @ y + x.t() @ y + x @ y.t() + (x @ y).t(),
)
for _axis in range(3):
    # Triton takes some sums of products for products of matrices, in TF32 and along its own axis.
    products(
        f"outer_summed_along_{_axis}",
        "f32[16,16] f32[16,16]",
        lambda x, y, axis=_axis: (x[:, :, None] * y[None, :, :]).sum(axis) + 1,
    )
products(
    "products_in_one_tile",
    "f32[16,8] f32[8,16] f32[16,8]",
    lambda x, y, z: (lambda h: (h.relu() @ z, h.sum(0)))((x - x.sum(1, keepdim=True)) @ y),
)
products("strided_operands", "f32[9,16]@s f32[16,7]@t", lambda x, y: x @ y * 2, grad=False)
products("offset_operands", "f32[9,16]@o f32[16,7]@o", lambda x, y: (x @ y).relu(), grad=False)
products("expanded_operand", "f32[9,16]@e f32[16,7]", lambda x, y: (x @ y).relu(), grad=False)
products(
    "addmm_numbers",
    "f32[9,7] f32[9,16] f32[16,7]",
    lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2) + 1,
)
products(
    "addmm_beta_zero_hides_nan",
    "f32[9,7]!special f32[9,16] f32[16,7]",
    lambda c, x, y: torch.addmm(c, x, y, beta=0) + 1,
    grad=False,
)
products(
    "baddbmm",
    "f32[2,9,7] f32[2,9,16] f32[2,16,7]",
    lambda c, x, y: torch.baddbmm(c, x, y, beta=0.1, alpha=0.3) * 2,
)
products("batch_broadcast", "f32[3,1,5,8] f32[2,8,7]", lambda x, y: (x @ y).sin())
products(
    "vector_products",
    "f32[16] f32[16,7] f32[16]",
    lambda v, w, u: (v @ w, torch.dot(v, u) + 1, torch.outer(v, u).sum(0)),
)
products("matrix_vector", "f32[9,16] f32[16]", lambda x, v: torch.mv(x * 2, v) + 1)
products(
    "einsum_attention",
    "f32[2,5,3,8] f32[2,5,3,8]",
    lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1),
)
products(
    "einsum_three",
    "f32[5,6] f32[6,7] f32[7,3]",
    lambda x, y, z: torch.einsum("ij,jk,kl->il", x, y, z) + 1,
)
products("einsum_diagonal", "f32[5,5] f32[5]", lambda x, y: torch.einsum("ii,i->i", x, y) * 2)
products("einsum_traces", "f32[3,5,5]", lambda x: torch.einsum("bii->b", x * 2) + 1)
products(
    "chain_of_three", "f32[9,8] f32[8,7] f32[7,6]", lambda x, y, z: ((x @ y).relu() @ z).softmax(1)
)
products(
    "gated", "f32[9,8] f32[16,8] f32[16,8]", lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u)
)
products(
    "norm_before", "f32[9,8] f32[16,8]", lambda x, w: F.linear(F.layer_norm(x, (8,)), w).relu()
)
products(
    "norm_after",
    "f32[9,8] f32[16,8] f32[9,16]",
    lambda x, w, r: F.layer_norm(F.linear(x, w) + r, (16,)),
)
products("row_maximum", "f32[9,8] f32[16,8]", lambda x, w: (x @ w.t()).amax(1), grad=False)
products("nan_in_one_row", "f32[9,8]!special f32[8,7]!zero", lambda x, w: x @ w + 1, grad=False)
products(
    "attention",
    "f32[2,2,9,8] f32[2,2,9,8] f32[2,2,9,8]",
    lambda q, k, v: ((q @ k.mT) * 8**-0.5).softmax(-1) @ v,
)
products(
    "attention_half",
    "f16[2,2,9,8] f16[2,2,9,8] f16[2,2,9,8]",
    lambda q, k, v: ((q @ k.mT) * 8**-0.5).softmax(-1) @ v,
    grad=False,
)
products(
    "attention_grouped_heads",
    "f32[1,4,5,8] f32[1,2,5,8] f32[1,2,5,8]",
    lambda q, k, v: (q @ k.repeat_interleave(2, 1).mT).softmax(-1) @ v.repeat_interleave(2, 1),
)
products(
    "attention_soft_cap",
    "f32[1,2,9,8] f32[1,2,9,8] f32[1,2,9,8]",
    lambda q, k, v: ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v,
)
products(
    "linear_attention",
    "f32[2,9,8] f32[2,9,8] f32[2,9,8]",
    lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v),
)
products(
    "conv1d",
    "f32[2,3,17] f32[4,3,3] f32[4]",
    lambda x, w, b: F.conv1d(x * 2, w, b, padding=1).relu(),
)
products(
    "conv2d",
    "f32[2,3,7,9] f32[4,3,3,3]",
    lambda x, w: F.conv2d(x * 2, w, stride=2, padding=1).relu(),
)
products(
    "conv2d_depthwise",
    "f32[2,3,7,9] f32[3,1,3,3]",
    lambda x, w: F.conv2d(x * 2, w, groups=3).relu(),
)
products("conv2d_pointwise", "f32[2,3,7,9] f32[5,3,1,1]", lambda x, w: F.gelu(F.conv2d(x, w)))
products(
    "conv2d_dilated", "f32[1,2,11,11] f32[3,2,3,3]", lambda x, w: F.conv2d(x, w, dilation=2) + 1
)
products(
    "conv_transpose",
    "f32[1,3,5,5] f32[3,2,3,3]",
    lambda x, w: F.conv_transpose2d(x, w, stride=2).relu(),
)
products(
    "average_pool",
    "f32[1,2,9,7]",
    lambda x: F.avg_pool2d(x * 2, 3, 2, 1, count_include_pad=False) + 1,
)
products("max_pool", "f32[1,2,9,7]!ties", lambda x: F.max_pool2d(x * 2, 3, 2, 1) + 1)
products("adaptive_pool", "f32[1,2,8,6]", lambda x: F.adaptive_avg_pool2d(x * 2, (4, 3)) + 1)
products("interpolate_nearest", "f32[1,2,5,7]", lambda x: F.interpolate(x * 2, scale_factor=2) + 1)
products(
    "interpolate_bilinear",
    "f32[1,2,5,7]",
    lambda x: F.interpolate(x * 2, size=(9, 4), mode="bilinear") + 1,
)
for _mode in ("nearest", "bilinear", "bicubic"):
    products(
        f"interpolate_{_mode}_to_the_same_size",
        "f32[1,2,3,4]",
        lambda x, mode=_mode: [
            F.interpolate(x * 2, scale_factor=by, mode=mode) + 1 for by in (1.2, 1.5, 2.2)
        ],
    )
products(
    "interpolate_bytes",
    "u8[1,2,5,7]!full",
    lambda x: F.interpolate(x, size=(9, 4), mode="bilinear"),
    grad=False,
    ours=False,
    cpu=True,
)
products(
    "lstm_cell",
    "f32[3,5] f32[3,4] f32[3,4] f32[16,5] f32[16,4]",
    lambda x, h, c, w, u: _lstm(F.linear(x, w) + F.linear(h, u), c),
)
products(
    "low_rank",
    "f32[9,8] f32[2,8] f32[16,2] f32[16,8]",
    lambda x, a, b, w: F.linear(x, w) + 0.5 * F.linear(F.linear(x, a), b),
)
products(
    "dequantised_weight",
    "f32[9,8] i8[16,8]!full f32[16,1]!pos",
    lambda x, q, s: F.linear(x, q.to(x.dtype) * s),
    grad=False,
)
products(
    "determinant_free_inverse",
    "f32[5,2,2]",
    lambda m: (
        torch.stack((m[:, 1, 1], -m[:, 0, 1], -m[:, 1, 0], m[:, 0, 0]), 1).view(5, 2, 2)
        / (m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0] + 3)[:, None, None]
    ),
)
products("wrong_inner_is_refused", "f32[9,8] f32[7,9]", lambda x, y: x @ y + 1, fails=True)
products("two_types_are_refused", "f32[9,8] f16[8,9]", lambda x, y: x @ y + 1, fails=True)


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


FAMILIES = (sums, products)
