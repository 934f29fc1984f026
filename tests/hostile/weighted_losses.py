"""Losses with all that they can be given: weights, smoothing, what is ignored, every reduction."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hostile.cases import Family

given = Family("given_losses", grad=True)
C = "f32[6,11] i64[6]!<11"
for _reduction in ("mean", "sum", "none"):
    given(
        f"smoothed_weighted_ignored_{_reduction}",
        f"{C} f32[11]!pos",
        lambda x, t, w, r=_reduction: F.cross_entropy(
            x * 2, t, w.detach(), ignore_index=3, label_smoothing=0.15, reduction=r
        ),
    )
    given(
        f"soft_targets_smoothed_weighted_{_reduction}",
        "f32[6,11] f32[6,11] f32[11]!pos",
        lambda x, t, w, r=_reduction: F.cross_entropy(
            x * 2, t.softmax(1), w.detach(), label_smoothing=0.2, reduction=r
        ),
    )
    given(
        f"nll_weighted_{_reduction}",
        f"{C} f32[11]!pos",
        lambda x, t, w, r=_reduction: F.nll_loss(
            x.log_softmax(1), t, w.detach(), ignore_index=2, reduction=r
        ),
    )
    given(
        f"kl_log_target_{_reduction}",
        "f32[6,11] f32[6,11]",
        lambda x, y, r=_reduction: F.kl_div(
            x.log_softmax(1), y.log_softmax(1), log_target=True, reduction=r
        ),
    )
    given(
        f"bce_weighted_{_reduction}",
        "f32[6,11] f32[6,11]!unit f32[11]!pos f32[6,11]!pos",
        lambda x, t, p, w, r=_reduction: F.binary_cross_entropy_with_logits(
            x * 2, t.detach(), w.detach(), pos_weight=p.detach(), reduction=r
        ),
    )
    given(
        f"bce_of_probabilities_{_reduction}",
        "f32[6,11] f32[6,11]!unit",
        lambda x, t, r=_reduction: F.binary_cross_entropy(x.sigmoid(), t.detach(), reduction=r),
    )
    given(
        f"gaussian_nll_{_reduction}",
        "f32[6,11] f32[6,11] f32[6,11]!pos",
        lambda x, t, v, r=_reduction: F.gaussian_nll_loss(x, t.detach(), v, full=True, reduction=r),
        dynamo=True,
        ours=False,
    )
    given(
        f"poisson_full_{_reduction}",
        "f32[6,11] f32[6,11]!pos",
        lambda x, t, r=_reduction: F.poisson_nll_loss(
            x, t.detach() * 3, full=True, log_input=True, reduction=r
        ),
    )
    given(
        f"margins_{_reduction}",
        "f32[6] f32[6] f32[6]",
        lambda a, b, s, r=_reduction: F.margin_ranking_loss(
            a * 2, b, s.detach().sign(), 0.3, reduction=r
        ),
    )
    given(
        f"multilabel_soft_{_reduction}",
        "f32[6,11] f32[6,11]!unit",
        lambda x, t, r=_reduction: F.multilabel_soft_margin_loss(
            x * 2, t.detach().round(), reduction=r
        ),
    )
for _x, _t, _w in (("f64", "f32", "f32"), ("bf16", "bf16", "f32"), ("f32", "f64", "bf16")):
    given(
        f"bce_of_{_x}_{_t}_{_w}",
        f"{_x}[6,11] {_t}[6,11]!unit {_w}[11]!pos",
        lambda x, t, w: F.binary_cross_entropy_with_logits(
            x, t.detach(), w.detach(), pos_weight=w.detach()
        ),
    )
given("all_ignored", "f32[6,11] i64[6]!zero", lambda x, t: F.cross_entropy(x * 2, t - 100))
given(
    "ignored_in_images",
    "f32[2,5,3,4] i64[2,3,4]!<5",
    lambda x, t: F.cross_entropy(x * 2, t, ignore_index=0, label_smoothing=0.1),
)
given(
    "soft_targets_of_images",
    "f32[2,5,3,4] f32[2,5,3,4]",
    lambda x, t: F.cross_entropy(x * 2, t.softmax(1)),
)
given(
    "shifted_tokens",
    "f32[2,7,11] i64[2,7]!<11",
    lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 11), t[:, 1:].reshape(-1)),
)
given(
    "shifted_tokens_padded",
    "f32[2,7,11] i64[2,7]!<11",
    lambda x, t: (
        F.cross_entropy(
            x.float().view(-1, 11),
            F.pad(t, (0, 1), value=-100)[:, 1:].reshape(-1),
            ignore_index=-100,
            reduction="sum",
        )
        / 5
    ),
)
given(
    "focal",
    "f32[6,11] i64[6]!<11",
    lambda x, t: (lambda ce: ((1 - (-ce).exp()) ** 2 * ce).mean())(
        F.cross_entropy(x, t, reduction="none")
    ),
)
given(
    "sigmoid_focal",
    "f32[6,11] f32[6,11]!unit",
    lambda x, t: (
        lambda p, ce, y: (
            (0.25 * y + 0.75 * (1 - y)) * (1 - (p * y + (1 - p) * (1 - y))) ** 2 * ce
        ).sum()
    )(
        x.sigmoid(),
        F.binary_cross_entropy_with_logits(x, t.detach().round(), reduction="none"),
        t.detach().round(),
    ),
)
given(
    "distillation",
    "f32[6,11] f32[6,11]",
    lambda s, t: F.kl_div((s / 3).log_softmax(1), (t / 3).softmax(1), reduction="batchmean") * 9,
)
given(
    "contrastive",
    "f32[6,9] f32[6,9]",
    lambda a, b: (
        lambda z: (
            (
                F.cross_entropy(z, torch.arange(6, device=a.device))
                + F.cross_entropy(z.t(), torch.arange(6, device=a.device))
            )
            / 2
        )
    )(F.normalize(a, dim=1) @ F.normalize(b, dim=1).t() * 14.3),
)
given(
    "contrastive_sigmoid",
    "f32[6,9] f32[6,9]",
    lambda a, b: (
        -F.logsigmoid(
            (2 * torch.eye(6, device=a.device) - 1)
            * (F.normalize(a, dim=1) @ F.normalize(b, dim=1).t() * 10 - 2)
        ).sum()
        / 6
    ),
)
given(
    "dice",
    "f32[2,4,5,5] i64[2,5,5]!<4",
    lambda x, t: (
        1
        - (
            lambda p, h: (
                (2 * (p * h).sum((2, 3)) + 1) / (p.sum((2, 3)) + h.sum((2, 3)) + 1)
            ).mean()
        )(x.softmax(1), F.one_hot(t, 4).permute(0, 3, 1, 2))
    ),
)
given(
    "supervised_contrastive",
    "f32[7,5] i64[7]!<3",
    lambda x, y: (
        lambda z, same: (
            -((z - z.logsumexp(1, keepdim=True)) * same).sum(1) / same.sum(1).clamp(min=1)
        )
    )(
        F.normalize(x, dim=1) @ F.normalize(x, dim=1).t() / 0.1
        + torch.eye(7, device=x.device) * -1e4,
        (y[:, None] == y[None, :]).float() - torch.eye(7, device=x.device),
    ).mean(),
)
given(
    "z_loss",
    "f32[6,11] i64[6]!<11",
    lambda x, t: F.cross_entropy(x, t) + 1e-3 * x.logsumexp(1).square().mean(),
)
given(
    "triplet_with_swap",
    "f32[6,9] f32[6,9] f32[6,9]",
    lambda a, p, n: F.triplet_margin_loss(a * 2, p, n, margin=0.5, swap=True, reduction="none"),
)
given(
    "cosine_embedding",
    "f32[6,9] f32[6,9] f32[6]",
    lambda a, b, y: F.cosine_embedding_loss(a * 2, b, y.detach().sign(), margin=0.2),
)
given(
    "hinge_embedding",
    "f32[6,9] f32[6,9]",
    lambda a, y: F.hinge_embedding_loss(a * 2, y.detach().sign(), margin=1.5),
)
given("soft_margin", "f32[6,9] f32[6,9]", lambda a, y: F.soft_margin_loss(a * 2, y.detach().sign()))
given(
    "multi_margin_weighted",
    "f32[6,11] i64[6]!<11 f32[11]!pos",
    lambda x, t, w: F.multi_margin_loss(x * 2, t, p=2, margin=0.7, weight=w.detach()),
)
given(
    "margins_of_no_number",
    "f32[6,9]!special i64[6]!<9",
    lambda x, t: [F.multi_margin_loss(x, t, p=p, margin=0.0, reduction="none") for p in (1, 2)],
)
given(
    "multilabel_margin_of_short_lists",
    "f32[6,5] i64[6,5]!<5",
    lambda x, t: F.multilabel_margin_loss(x * 2, t.where(t < 4, -1), reduction="none"),
)
given(
    "ctc",
    "f32[9,2,5] i64[2,3]!<4",
    lambda x, t: F.ctc_loss(x.log_softmax(2), t + 1, torch.tensor([9, 8]), torch.tensor([3, 2])),
    dynamo=True,
)
given(
    "huber_none",
    "f32[6,11] f32[6,11]",
    lambda x, y: F.huber_loss(x * 3, y, reduction="none", delta=0.5),
)
given(
    "smooth_l1_of_zero_beta",
    "f32[6,11] f32[6,11]",
    lambda x, y: F.smooth_l1_loss(x * 3, y, beta=0.0),
)
given(
    "mse_broadcast_weights",
    "f32[6,11] f32[6,11] f32[6,1]!pos",
    lambda x, y, w: ((x - y) ** 2 * w).mean(),
)
given(
    "bce_at_the_ends",
    "f32[16]!zero",
    lambda x: F.binary_cross_entropy(
        (x + torch.arange(16, device=x.device) % 2).clamp(0, 1),
        torch.ones(16, device=x.device, dtype=x.dtype),
    ),
)
given(
    "kl_of_zero_targets",
    "f32[6,11] f32[6,11]!zero",
    lambda x, t: F.kl_div(x.log_softmax(1), t.detach(), reduction="batchmean"),
)
given("xlogy_entropy", "f32[6,11]", lambda x: -torch.special.xlogy(x.relu(), x.relu()).sum(1))

FAMILIES = (given,)
