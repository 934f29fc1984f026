"""The workloads, as data: which file, how many bytes and operations at least, what is asked of us.

The first six are the repository's examples, the others are in bench/memory_bound.py and, those
around matrix products, in bench/contractions.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..planner.costs.device import DeviceProfile
from ..tuner.capture.capture_model import CallArguments

ROOT = Path(__file__).resolve().parent.parent

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Workload:
    """least_bytes: what must pass between the chip and its memory. flops: of matrix products.

    file: in the repository. model, inputs: the functions in it that make them; where they are
    not named, the file says it in one of the forms that `planner tune` knows.
    kernels: generated kernels that a call may take at most; None: not asked. ahead: a tie with the
    best baseline is not enough. reach: seconds that a call may take on an H200; None: not asked.
    peak_extra: bytes that a call may take at most besides its inputs, its result included.
    eager_extra: bytes that eager takes so, where they are gigabytes.
    rewritten: the function that makes a model which a person rewrote by hand for a special library;
    it is measured too, but is no baseline.
    """

    name: str
    what: str
    file: str
    least_bytes: int
    flops: float = 0.0
    model: str = ""
    inputs: str = ""
    kernels: int | None = 1
    ahead: bool = False
    reach: float | None = None
    peak_extra: int | None = None
    eager_extra: int = 0
    rewritten: str = ""

    @property
    def arguments(self) -> list[str]:
        """What names it to `planner tune`."""
        path = str(ROOT / self.file)
        return (
            [f"{path}:{self.model}", "--inputs", f"{path}:{self.inputs}"] if self.model else [path]
        )

    def floor_s(self, device: DeviceProfile) -> float:
        """Seconds below which the device does not compute it: by the rate of its largest copies, or
        by that of the vendor's best product."""
        return max(self.least_bytes / device.bandwidth, self.flops / device.tensor_flops)


def _more(
    name: str,
    what: str,
    least_bytes: int,
    model: str,
    inputs: str,
    kernels: int | None,
    reach_ms: float | None,
    ahead: bool = False,
) -> Workload:
    return Workload(
        name,
        what,
        "bench/memory_bound.py",
        least_bytes,
        model=model,
        inputs=inputs,
        kernels=kernels,
        ahead=ahead,
        reach=None if reach_ms is None else reach_ms / 1e3,
    )


def _contraction(
    name: str,
    what: str,
    model: str,
    *,
    least_bytes: int,
    flops: float,
    peak_extra: int,
    reach_ms: float | None = None,
    eager_extra: int = 0,
    rewritten: str = "",
) -> Workload:
    return Workload(
        name,
        what,
        "bench/contractions.py",
        least_bytes,
        flops,
        model,
        f"{name}_inputs",
        kernels=None,  # The vendor's product may be the better half of a plan.
        reach=None if reach_ms is None else reach_ms / 1e3,
        peak_extra=peak_extra,
        eager_extra=eager_extra,
        rewritten=rewritten,
    )


_SQUARE = 8192 * 8192
_LONG = 2048 * 65536
_IMAGES = 64 * 256 * 56 * 56

EXAMPLES = (
    Workload(
        "log_relu_add",
        "log(relu(x + b)), x [8192, 8192] bf16, b [8192]",
        "examples/log_relu_add.py",
        2 * (2 * _SQUARE + 8192),
        ahead=True,
    ),
    Workload(
        "sigmoid_tanh",
        "sigmoid(x) * tanh(x + 1), x [8192, 8192] bf16",
        "examples/sigmoid_tanh.py",
        2 * 2 * _SQUARE,
        ahead=True,
    ),
    Workload(
        "article_chain",
        "relu((x + 1) * 2) ** 2, x [8192, 8192] fp32",
        "examples/article_chain.py",
        4 * 2 * _SQUARE,
    ),
    Workload(
        "layernorm_residual",
        "layer_norm(x + r), [16384, 4096] bf16, affine",
        "examples/layernorm_residual.py",
        2 * (3 * 16384 * 4096 + 2 * 4096),
    ),
    Workload(
        "softmax_rows",
        "softmax of rows, [4096, 32768] bf16",
        "examples/softmax_rows.py",
        2 * 2 * 4096 * 32768,
        reach=0.160e-3,
    ),
    Workload(
        "rotary",
        "q * cos + rotate_half(q) * sin, q [8, 32, 4096, 128] bf16",
        "examples/rotary.py",
        2 * (2 * 8 * 32 * 4096 * 128 + 2 * 4096 * 128),
    ),
)

MORE = (
    _more(
        "rmsnorm_long_row",
        "RMS norm in fp32 of rows, [2048, 65536] bf16, weight",
        2 * (2 * _LONG + 65536),
        "RMSNormLongRow",
        "rmsnorm_long_row_inputs",
        1,
        0.150,
    ),
    # Few rows on many processors: the parts of a row are combined by another kernel.
    _more(
        "softmax_few_rows_1m",
        "softmax of rows, [8, 4194304] bf16",
        2 * 2 * 8 * 4194304,
        "SoftmaxFewRows",
        "softmax_few_rows_inputs",
        None,
        0.050,
    ),
    # No cache holds the batch, so it is read for its statistics and once more.
    _more(
        "batchnorm_train_relu",
        "relu(batch_norm in training), [64, 256, 56, 56] bf16, fp32 affine",
        2 * 3 * _IMAGES + 4 * 2 * 256,
        "BatchNormReLU",
        "batchnorm_train_relu_inputs",
        None,
        0.090,
    ),
    _more(
        "groupnorm_silu",
        "silu(group_norm 32), [32, 320, 64, 64] bf16",
        2 * (2 * 32 * 320 * 64 * 64 + 2 * 320),
        "GroupNormSiLU",
        "groupnorm_silu_inputs",
        None,
        0.060,
    ),
    _more(
        "cross_entropy_128k",
        "cross_entropy(logits [8192, 131072] bf16, labels)",
        2 * 8192 * 131072 + 8 * 8192 + 2,
        "CrossEntropy",
        "cross_entropy_128k_inputs",
        None,
        0.60,
    ),
    _more(
        "custom_loss_many_small_ops",
        "huber + focal + regularisers over [4096, 1024] fp32 to a scalar",
        4 * (2 * 4096 * 1024 + 1),
        "CustomLoss",
        "custom_loss_inputs",
        None,
        0.020,
    ),
    _more(
        "layernorm_backward",
        "gradients of layer_norm, [16384, 4096] bf16, affine",
        2 * (3 * 16384 * 4096 + 4 * 4096) + 4 * 2 * 16384,
        "LayerNormBackward",
        "layernorm_backward_inputs",
        None,
        None,
        ahead=True,
    ),
)

_SLACK = 2 * MIB
"""What a call may take besides what it must, where the result alone is allowed: workspace, and what
the allocator adds to a tensor."""
_HEAD = 32 * 4096 * 128
_SCORES = 32 * 4096 * 4096

CONTRACTIONS = (
    _contraction(
        "linear_smallk_gelu",
        "gelu(linear), [65536, 128] x [2048, 128] bf16",
        "LinearGELU",
        least_bytes=2 * (65536 * 128 + 2048 * 128 + 2048 + 65536 * 2048),
        flops=2 * 65536 * 128 * 2048,
        reach_ms=0.17,
        peak_extra=2 * 65536 * 2048 + _SLACK,
    ),
    _contraction(
        "linear_relu",
        "relu(linear), [16384, 1024] x [4096, 1024] bf16",
        "LinearReLU",
        least_bytes=2 * (16384 * 1024 + 4096 * 1024 + 4096 + 16384 * 4096),
        flops=2 * 16384 * 1024 * 4096,
        reach_ms=0.23,
        peak_extra=2 * 16384 * 4096 + _SLACK,
    ),
    _contraction(
        "matmul_rowmax",
        "(x @ y^T).amax(-1), [16384, 256] x [32768, 256] bf16",
        "MatmulRowMax",
        least_bytes=2 * (16384 * 256 + 32768 * 256 + 16384),
        flops=2 * 16384 * 256 * 32768,
        reach_ms=0.42,
        peak_extra=4 * MIB,
    ),
    _contraction(
        "splade_head",
        "max over s of log1p(relu(h @ E^T + b)) * mask, h [32, 512, 768], E [30522, 768] bf16",
        "SpladeHead",
        least_bytes=2 * (32 * 512 * 768 + 30522 * 768 + 30522 + 32 * 30522) + 8 * 32 * 512,
        flops=2 * 32 * 512 * 768 * 30522,
        reach_ms=1.30,
        peak_extra=16 * MIB,
    ),
    _contraction(
        "linear_cross_entropy",
        "cross_entropy(linear(h [8192, 2048], E [131072, 2048] bf16).float(), labels)",
        "LinearCrossEntropy",
        least_bytes=2 * (8192 * 2048 + 131072 * 2048) + 8 * 8192 + 4,
        flops=2 * 8192 * 2048 * 131072,
        reach_ms=6.6,
        peak_extra=64 * MIB,
        eager_extra=8224 * MIB,
    ),
    # A causal mask needs half of the scores.
    _contraction(
        "attn_naive_softcap_alibi_causal",
        "attention, fp32 scores, tanh soft cap 30, ALiBi, causal, B2 H32 S4096 D128 bf16",
        "AttentionSoftcap",
        least_bytes=2 * 4 * 2 * _HEAD + 4 * 32,
        flops=2 * 2 * 2 * _SCORES * 128 / 2,
        reach_ms=1.20,
        peak_extra=256 * MIB,
        eager_extra=12288 * MIB,
        rewritten="AttentionSoftcapFlex",
    ),
    # Beside the result, the statistics: one float32 of each row of scores.
    _contraction(
        "attn_naive",
        "softmax(q @ k^T * scale) @ v, B4 H32 S4096 D128 bf16",
        "Attention",
        least_bytes=2 * 4 * 4 * _HEAD,
        flops=2 * 2 * 4 * _SCORES * 128,
        reach_ms=1.82,
        peak_extra=2 * 4 * _HEAD + 4 * 4 * 32 * 4096 + _SLACK,
        eager_extra=8320 * MIB,
        rewritten="AttentionFlex",
    ),
    # Beside the result, what the parts of the keys come to.
    _contraction(
        "decode_attention",
        "attention of one query, 64 sequences of 4096 keys, 32 heads that share 8, D128 bf16",
        "DecodeAttention",
        least_bytes=2 * (2 * 64 * 8 * 4096 * 128 + 2 * 64 * 32 * 128),
        flops=2 * 2 * 64 * 32 * 4096 * 128,
        reach_ms=0.34,
        peak_extra=2 * 64 * 32 * 128 + 16 * MIB,
    ),
    _contraction(
        "attn_out_residual_ln",
        "layer_norm(weights @ v + residual), [64, 1024, 1024] x [64, 1024, 128] bf16",
        "AttentionOutput",
        least_bytes=2 * (64 * 1024 * 1024 + 3 * 64 * 1024 * 128 + 2 * 128),
        flops=2 * 64 * 1024 * 1024 * 128,
        reach_ms=0.052,
        peak_extra=2 * 64 * 1024 * 128 + _SLACK,
    ),
    # The hidden values once, and the result.
    _contraction(
        "swiglu_mlp",
        "(silu(x @ a) * (x @ b)) @ c, x [8192, 4096], hidden 11008, bf16",
        "SwiGLU",
        least_bytes=2 * (2 * 8192 * 4096 + 3 * 4096 * 11008),
        flops=3 * 2 * 8192 * 4096 * 11008,
        reach_ms=3.30,
        peak_extra=2 * 8192 * (11008 + 4096) + _SLACK,
    ),
    _contraction(
        "colbert_maxsim",
        "sum over s of max over t of q @ d^T, q [32, 32, 128], d [4096, 256, 128] bf16",
        "ColBERTMaxSim",
        least_bytes=2 * (32 * 32 * 128 + 4096 * 256 * 128 + 32 * 4096),
        flops=2 * 32 * 32 * 128 * 4096 * 256,
        peak_extra=4 * MIB,
    ),
    # The two normalised inputs, each perhaps scaled as well.
    _contraction(
        "contrastive_loss",
        "InfoNCE in both directions of normalised a, b [16384, 512] bf16",
        "ContrastiveLoss",
        least_bytes=2 * 2 * 16384 * 512 + 4 + 4,
        flops=2 * 2 * 16384 * 512 * 16384,
        peak_extra=2 * 4 * 16384 * 512 + _SLACK,
    ),
    _contraction(
        "rbf_matvec",
        "exp(-gamma |x_i - y_j|^2) @ v by xx + yy - 2 x @ y^T, x, y, v [32768, 64] bf16",
        "RBFProduct",
        least_bytes=2 * 4 * 32768 * 64,
        flops=2 * 2 * 32768 * 32768 * 64,
        peak_extra=16 * MIB,
        eager_extra=12320 * MIB,
    ),
)

WORKLOADS = {workload.name: workload for workload in (*EXAMPLES, *MORE, *CONTRACTIONS)}


def make(workload: Workload, device: str, **scale: int) -> tuple[Callable[..., Any], CallArguments]:
    """The model on the device and a call of it. `scale` is for those that are no examples."""
    module = _module(ROOT / workload.file)
    place = torch.device(device)
    model: Any
    with place:  # Weights of a gigabyte are slow to make elsewhere.
        if workload.model:
            model = getattr(module, workload.model)(**scale)
        elif hasattr(module, "get_model"):
            model = module.get_model()
        else:
            model = module.Model(*module.get_init_inputs())
    inputs = getattr(module, workload.inputs or "get_inputs")(device=device, **scale)
    return model.to(place), CallArguments.of(inputs)


def make_rewritten(workload: Workload, device: str, **scale: int) -> Callable[..., Any]:
    """The model rewritten by hand, on the device: it takes the same call."""
    place = torch.device(device)
    with place:
        model: Any = getattr(_module(ROOT / workload.file), workload.rewritten)(**scale)
    rewritten: Callable[..., Any] = model.to(place)
    return rewritten


def _module(file: Path) -> ModuleType:
    """The file as a module, once: torch.compile looks its functions up by the module's name."""
    name = f"fusionplan_workload_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
