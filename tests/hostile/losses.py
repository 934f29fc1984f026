"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hostile.cases import Family

losses = Family("losses", grad=True)
C = "f32[6,11] i64[6]!<11"
losses("cross_entropy", C, lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_none", C, lambda x, t: F.cross_entropy(x * 2, t, reduction="none"))
losses("cross_entropy_sum", C, lambda x, t: F.cross_entropy(x, t, reduction="sum") * 0.1)
losses("cross_entropy_smoothed", C, lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
losses("cross_entropy_ignored", C, lambda x, t: F.cross_entropy(x, t, ignore_index=3))
losses(
    "cross_entropy_all_ignored",
    "f32[6,11] i64[6]!<1",
    lambda x, t: F.cross_entropy(x, t, ignore_index=0),
)
losses(
    "cross_entropy_weighted",
    "f32[6,11] i64[6]!<11 f32[11]!pos",
    lambda x, t, w: F.cross_entropy(x, t, w.detach()),
)
losses(
    "cross_entropy_weighted_smoothed_ignored",
    "f32[6,11] i64[6]!<11 f32[11]!pos",
    lambda x, t, w: F.cross_entropy(x, t, w.detach(), ignore_index=2, label_smoothing=0.2),
)
losses(
    "cross_entropy_probabilities",
    "f32[6,11] f32[6,11]",
    lambda x, t: F.cross_entropy(x, t.softmax(1)),
)
losses("cross_entropy_images", "f32[2,5,3,4] i64[2,3,4]!<5", lambda x, t: F.cross_entropy(x, t))
losses(
    "cross_entropy_images_none",
    "f32[2,5,3,4] i64[2,3,4]!<5",
    lambda x, t: F.cross_entropy(x, t, reduction="none").mean(),
)
losses("cross_entropy_one_sample", "f32[11] i64[]!<11", lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_batch_of_one", "f32[1,11] i64[1]!<11", lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_one_class", "f32[6,1] i64[6]!<1", lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_half", "f16[6,11] i64[6]!<11", lambda x, t: F.cross_entropy(x.float(), t))
losses("cross_entropy_bfloat", "bf16[6,11] i64[6]!<11", lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_double", "f64[6,11] i64[6]!<11", lambda x, t: F.cross_entropy(x, t))
losses("cross_entropy_large_logits", "f32[6,11]!1e4 i64[6]!<11", lambda x, t: F.cross_entropy(x, t))
losses(
    "cross_entropy_shifted_tokens",
    "f32[2,7,11] i64[2,7]!<11",
    lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 11), t[:, 1:].reshape(-1)),
)
losses(
    "cross_entropy_after_a_product",
    "f32[6,5] f32[11,5] i64[6]!<11",
    lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
)
losses(
    "cross_entropy_twice",
    "f32[6,11] i64[6]!<11 i64[6]!<11",
    lambda x, t, u: F.cross_entropy(x, t) + 0.5 * F.cross_entropy(x, u),
)
losses(
    "cross_entropy_with_z",
    C,
    lambda x, t: F.cross_entropy(x, t) + 1e-2 * x.logsumexp(1).square().mean(),
)
losses("nll_other_dimension", "f32[5,5] i64[5]!<5", lambda x, t: F.nll_loss(x.log_softmax(0), t))
losses("nll_batch_of_one", "f32[1,5] i64[1]!<5", lambda x, t: F.nll_loss(x.log_softmax(1), t))
losses(
    "nll_batch_of_one_other_dimension",
    "f32[1,5] i64[1]!<5",
    lambda x, t: F.nll_loss(x.log_softmax(0), t),
)
losses("nll_of_log", C, lambda x, t: F.nll_loss(x.softmax(1).log(), t))
losses("nll_and_its_logits", C, lambda x, t: ((y := x.log_softmax(1)), F.nll_loss(y, t)))
losses(
    "nll_two_targets",
    "f32[6,11] i64[6]!<11 i64[6]!<11",
    lambda x, t, u: F.nll_loss((y := x.log_softmax(1)), t) - F.nll_loss(y, u),
)
losses("nll_scaled_logits", C, lambda x, t: F.nll_loss(x.log_softmax(1) * 2 + 1, t))
losses("nll_transposed", "f32[11,6] i64[6]!<11", lambda x, t: F.nll_loss(x.t().log_softmax(1), t))
losses("by_gather", C, lambda x, t: -x.log_softmax(1).gather(1, t[:, None]).mean())
losses("by_one_hot", C, lambda x, t: -(F.one_hot(t, 11) * x.log_softmax(1)).sum(1).mean())
losses("by_index", C, lambda x, t: (x.logsumexp(1) - x[torch.arange(6, device=x.device), t]).mean())
losses(
    "focal",
    C,
    lambda x, t: (p := x.softmax(1).gather(1, t[:, None])).log().mul((1 - p) ** 2).mean(),
)
losses("mse", "f32[6,11] f32[6,11]", F.mse_loss)
losses("mse_of_half", "f16[6,11] f16[6,11]", F.mse_loss)
losses("l1", "f32[6,11]!ties f32[6,11]!ties", F.l1_loss)
losses("smooth_l1", "f32[6,11] f32[6,11]", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5))
losses("huber", "f32[6,11] f32[6,11]", lambda x, y: F.huber_loss(x, y, delta=0.7))
losses(
    "bce", "f32[6,11] f32[6,11]!unit", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.detach())
)
losses(
    "bce_at_the_ends",
    "f32[6]!zero f32[6]!unit",
    lambda x, y: F.binary_cross_entropy(x, y.detach()),
    grad=False,
)
losses(
    "bce_with_logits",
    "f32[6,11] f32[6,11]!unit",
    lambda x, y: F.binary_cross_entropy_with_logits(x * 9, y.detach()),
)
losses(
    "bce_with_pos_weight",
    "f32[6,11] f32[6,11]!unit f32[11]!pos",
    lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.detach(), pos_weight=w.detach()),
)
losses(
    "kl_div",
    "f32[6,11] f32[6,11]",
    lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
)
losses(
    "kl_div_log_target",
    "f32[6,11] f32[6,11]",
    lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="sum"),
)
losses(
    "distillation",
    "f32[6,11] f32[6,11] i64[6]!<11",
    lambda s, t, y: (
        F.kl_div((s / 2).log_softmax(1), (t.detach() / 2).softmax(1), reduction="batchmean") * 4
        + F.cross_entropy(s, y)
    ),
)
losses("hinge", "f32[6,11]!ties", lambda x: F.relu(1 - x).mean())
losses(
    "hinge_embedding",
    "f32[6,11] bool[6,11]",
    lambda x, m: F.hinge_embedding_loss(x, torch.where(m, 1.0, -1.0)),
)
losses(
    "soft_margin",
    "f32[6,11] bool[6,11]",
    lambda x, m: F.soft_margin_loss(x, torch.where(m, 1.0, -1.0)),
)
losses(
    "margin_ranking",
    "f32[6] f32[6] bool[6]",
    lambda x, y, m: F.margin_ranking_loss(x, y, torch.where(m, 1.0, -1.0), 0.1),
)
losses(
    "cosine_embedding",
    "f32[6,11] f32[6,11] bool[6]",
    lambda x, y, m: F.cosine_embedding_loss(x, y, torch.where(m, 1.0, -1.0)),
)
losses("triplet", "f32[6,11] f32[6,11] f32[6,11]", F.triplet_margin_loss)
losses("poisson", "f32[6,11] f32[6,11]!pos", lambda x, y: F.poisson_nll_loss(x, y.detach()))
losses(
    "gaussian",
    "f32[6,11] f32[6,11] f32[6,11]!pos",
    lambda x, y, v: 0.5 * (v.log() + (x - y).square() / v).mean(),
)
losses(
    "multi_label_soft_margin",
    "f32[6,11] f32[6,11]!unit",
    lambda x, y: F.multilabel_soft_margin_loss(x, y.detach().round()),
)
losses("multi_margin", C, lambda x, t: F.multi_margin_loss(x, t), ours=False)
losses(
    "dice",
    "f32[6,11] f32[6,11]!unit",
    lambda x, y: 1 - 2 * (x.sigmoid() * y).sum() / (x.sigmoid().sum() + y.sum() + 1),
)
losses(
    "contrastive_eye",
    "f32[6,8]",
    lambda x: (
        lambda n: F.cross_entropy(
            (n @ n.t()).masked_fill(torch.eye(6, dtype=torch.bool, device=x.device), -1e9) / 0.1,
            (torch.arange(6, device=x.device) + 3) % 6,
        )
    )(F.normalize(x, dim=1)),
)
losses(
    "clip",
    "f32[6,8] f32[6,8]",
    lambda x, y: (
        lambda s: (
            (
                F.cross_entropy(s, torch.arange(6, device=x.device))
                + F.cross_entropy(s.t(), torch.arange(6, device=x.device))
            )
            / 2
        )
    )(F.normalize(x, dim=1) @ F.normalize(y, dim=1).t() * 5),
)
losses(
    "barlow_twins",
    "f32[9,5] f32[9,5]",
    lambda x, y: (lambda c: ((c - torch.eye(5, device=x.device)) ** 2).sum())(
        (x - x.mean(0)).t() @ (y - y.mean(0)) / 9
    ),
)
losses("vicreg_variance", "f32[9,5]", lambda x: F.relu(1 - (x.var(0) + 1e-4).sqrt()).mean())
losses(
    "kl_of_gaussians",
    "f32[6,8] f32[6,8]",
    lambda m, v: -0.5 * (1 + v - m.square() - v.exp()).sum(1).mean(),
)
losses(
    "policy_gradient",
    "f32[6,5] i64[6]!<5 f32[6]",
    lambda x, a, r: (
        -(x.log_softmax(1).gather(1, a[:, None])[:, 0] * r.detach()).mean()
        - 0.01 * (x.softmax(1) * x.log_softmax(1)).sum(1).mean()
    ),
)
losses(
    "ppo_clip",
    "f32[9] f32[9] f32[9]",
    lambda n, o, a: (
        -torch.min((n - o.detach()).exp() * a, (n - o.detach()).exp().clamp(0.8, 1.2) * a).mean()
    ),
)
losses("dpo", "f32[6] f32[6]", lambda c, r: -F.logsigmoid(0.1 * (c - r)).mean())
losses(
    "total_variation",
    "f32[2,7,9]",
    lambda x: (x[:, 1:] - x[:, :-1]).abs().mean() + (x[:, :, 1:] - x[:, :, :-1]).abs().mean(),
)
losses(
    "quantile", "f32[9] f32[9]", lambda x, y: torch.maximum(0.9 * (y - x), -0.1 * (y - x)).mean()
)
losses("log_cosh", "f32[9]!10", lambda x: (x + F.softplus(-2 * x) - 0.6931471805599453).mean())
losses(
    "wrong_target_is_refused",
    "f32[6,11] i64[5]!<11",
    lambda x, t: F.cross_entropy(x, t),
    fails=True,
)
losses(
    "dynamo_cross_entropy", C, lambda x, t: F.cross_entropy(x * 2, t, ignore_index=1), dynamo=True
)
losses(
    "dynamo_eye",
    "f32[6,6]",
    lambda x: (x * torch.eye(6, device=x.device)).sum() + x.logsumexp(0).sum(),
    dynamo=True,
)

FAMILIES = (losses,)
