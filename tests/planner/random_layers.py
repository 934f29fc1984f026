"""Steps of random programs that are functions of torch.nn.functional: layers and losses."""

from __future__ import annotations

from collections.abc import Callable

from random_programs import Writer

LAYERS: tuple[tuple[str, Callable[[tuple[int, ...]], bool]], ...] = (
    ("F.group_norm({v}, {half}, eps=0.1)", lambda s: len(s) > 1 and s[1] % 2 == 0),
    ("F.batch_norm({v}, None, None, training=True, eps=0.1)", lambda s: len(s) > 1),
    ("F.instance_norm({v}, eps=0.1)", lambda s: len(s) == 3 and s[2] > 1),
    ("F.avg_pool1d({v}, 2)", lambda s: len(s) in (2, 3)),
    ("F.avg_pool2d({v}, 2, 1, padding=1)", lambda s: len(s) in (3, 4)),
    ("F.glu({v}, -1)", bool),
    ("F.normalize({v}, dim=-1, eps=0.1)", bool),
    ("F.interpolate({v}, scale_factor=2)", lambda s: len(s) == 3),
    ("F.interpolate({v}, scale_factor=2, mode='linear')", lambda s: len(s) == 3),
    ("F.pixel_shuffle({v}, 2)", lambda s: len(s) == 4),
    ("F.pad({v}, (1, 1), mode='reflect')", lambda s: len(s) in (2, 3)),
    ("F.pad({v}, (2, 1), mode='circular')", lambda s: len(s) in (2, 3)),
    ("F.pad({v}, (2, 1), mode='replicate')", lambda s: len(s) in (2, 3)),
    ("F.scaled_dot_product_attention({v}, {v} * 0.5, {v})", lambda s: len(s) in (3, 4)),
    (
        "F.scaled_dot_product_attention({v}, {v}, {v}, is_causal=True)",
        lambda s: len(s) in (3, 4),
    ),
    ("F.softmin({v}, -1)", bool),
    ("torch.var_mean({v}, -1)[0]", lambda s: bool(s) and s[-1] > 1),
    ("torch.einsum('...i,...j->...ij', {v}, {v})", bool),
    ("torch.outer({v}, {v})", lambda s: len(s) == 1),
    ("{v}.mT @ {v} * 0.1", lambda s: len(s) > 1),
    ("{v}.logcumsumexp(-1)", bool),
    ("F.local_response_norm({v}, 2)", lambda s: len(s) == 3),
    ("{v}.renorm(2, 0, 1.0)", lambda s: len(s) > 1),
    ("torch.cdist({v}, {v} + 1)", lambda s: len(s) == 2),
    ("F.cross_entropy({v}, {i} % {v}.shape[1])", lambda s: len(s) == 2),
    ("F.nll_loss({v}, {i} % {v}.shape[1], reduction='sum')", lambda s: len(s) == 2),
    (
        "F.cross_entropy({v}, {i} % {v}.shape[1], reduction='none', label_smoothing=0.1)",
        lambda s: len(s) == 2,
    ),
)
"""Functions of one value, {v}, and for which shapes they are. {i}: an integer for each row."""


def layer(w: Writer) -> None:
    v = w.floating()
    fit = [text for text, fits in LAYERS if fits(v.shape)]
    if not fit:
        return
    text, reads = w.pick(fit), [v]
    if "{i}" in text:
        reads.append(w.input("int64", v.shape[:1]))
    half = v.shape[1] // 2 if len(v.shape) > 1 else 0
    w.add(text.format(v=v.name, i=reads[-1].name, half=half), *reads)


LOSSES = (
    "F.mse_loss({}, {}, reduction={})",
    "F.smooth_l1_loss({}, {}, reduction={})",
    "F.huber_loss({}, {}, reduction={}, delta=0.7)",
    "F.l1_loss({}, {}, reduction={})",
    "F.soft_margin_loss({}, {}, reduction={})",
    "F.poisson_nll_loss({}, {}, reduction={})",
    "F.binary_cross_entropy_with_logits({}, {}, reduction={})",
)


def loss(w: Writer) -> None:
    a = w.floating()
    b = w.value(lambda v: v.dtype == a.dtype and v.shape == a.shape) or w.input(a.dtype, a.shape)
    how = w.pick(("'mean'", "'sum'", "'none'"))
    w.add(w.pick(LOSSES).format(a.name, b.name, how), a, b)
