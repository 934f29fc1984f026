"""Functions of rows and columns whose lengths are no multiples of anything, for `bench.real`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from .real_models import RealCase, case_of, kl_divergence, standardised
from .row_lengths import js_divergence

_in_float32 = partial(case_of, dtype=torch.float32)


def _entropy(a: torch.Tensor) -> torch.Tensor:
    logarithms = a.log_softmax(-1)
    return -(logarithms.exp() * logarithms).sum(-1)


def _masked_mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mask = (b > 0).to(a.dtype)[..., None]
    return (a * mask).sum(1) / mask.sum(1).clamp(min=1)


def _between_0_and_1(a: torch.Tensor) -> torch.Tensor:
    least, most = a.amin(-1, keepdim=True), a.amax(-1, keepdim=True)
    return (a - least) / (most - least + 1e-6)


def _cross_entropy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(a, (b.abs() * 1000).long() % a.shape[-1])


ODD_ROWS: dict[str, Callable[[], RealCase]] = {
    "softmax, 2048 x 65537": case_of(lambda a: a.softmax(-1), (2048, 65537)),
    "layer norm, 16384 x 3001, float32": _in_float32(
        lambda a, b, c: F.layer_norm(a, (3001,), b, c), (16384, 3001), (3001,), (3001,)
    ),
    "rms norm, 131072 x 777": case_of(
        lambda a, b: F.rms_norm(a, (777,), b, 1e-6), (131072, 777), (777,)
    ),
    "log softmax, 8192 x 10007": case_of(lambda a: a.log_softmax(-1), (8192, 10007)),
    "log-sum-exp, 512 x 100003, float32": _in_float32(lambda a: a.logsumexp(-1), (512, 100003)),
    "variance, 2000003 x 33, float32": _in_float32(lambda a: a.var(-1), (2000003, 33)),
    "deviation of columns, 65536 x 777": case_of(lambda a: a.std(0), (65536, 777)),
    "sum of dimension 1, 64 x 1003 x 777": case_of(lambda a: a.sum(1), (64, 1003, 777)),
    "normalize, 8000003 x 7": case_of(F.normalize, (8000003, 7)),
    "cosine, 16384 x 3001": case_of(F.cosine_similarity, (16384, 3001), (16384, 3001)),
    "Kullback-Leibler, 4096 x 10007, float32": _in_float32(
        kl_divergence, (4096, 10007), (4096, 10007)
    ),
    "group norm and silu, 32 x 96 x 57 x 57": case_of(
        lambda a, b, c: F.silu(F.group_norm(a, 32, b, c)), (32, 96, 57, 57), (96,), (96,)
    ),
    "instance norm and relu, 64 x 64 x 113 x 113": case_of(
        lambda a: F.relu(F.instance_norm(a)), (64, 64, 113, 113)
    ),
    "batch norm of training and relu, 64 x 96 x 55 x 55": case_of(
        lambda a, b, c: F.relu(F.batch_norm(a, None, None, b, c, training=True)),
        (64, 96, 55, 55), (96,), (96,),
    ),
    "softmax of 10007 columns of 8192 x 12001": case_of(
        lambda a: a[:, :10007].softmax(-1), (8192, 12001)
    ),
    "softmax of dimension 1, 64 x 1003 x 777": case_of(lambda a: a.softmax(1), (64, 1003, 777)),
    "softmax, 7 x 3000017, float32": _in_float32(lambda a: a.softmax(-1), (7, 3000017)),
    "layer norm, 24 x 1000003, float32": _in_float32(
        lambda a: F.layer_norm(a, (1000003,)), (24, 1000003)
    ),
    "standardised columns, 4099 x 16384, float32": _in_float32(standardised, (4099, 16384)),
    "entropy of a softmax, 2048 x 50257": case_of(_entropy, (2048, 50257)),
    "normalize, 2000003 x 33, float32": _in_float32(F.normalize, (2000003, 33)),
    "softmax, 2000003 x 33": case_of(lambda a: a.softmax(-1), (2000003, 33)),
    "masked mean, 256 x 777 x 768": case_of(_masked_mean, (256, 777, 768), (256, 777)),
    "cross-entropy, 4096 x 32003": case_of(_cross_entropy, (4096, 32003), (4096,)),
    "rows between 0 and 1, 8192 x 5003, float32": _in_float32(_between_0_and_1, (8192, 5003)),
    "sum of squares, 777 x 100003": case_of(lambda a: a.square().sum(-1), (777, 100003)),
    "residual and layer norm, 4096 x 10007": case_of(
        lambda a, b, c, d: F.layer_norm(a + b, (10007,), c, d),
        (4096, 10007), (4096, 10007), (10007,), (10007,),
    ),
    "Jensen-Shannon, 4096 x 10007": case_of(js_divergence, (4096, 10007), (4096, 10007)),
}  # fmt: skip
