"""The workloads, as data: which file, how many bytes and operations at least, what is asked of us.

The first six are the repository's examples, the others are in bench/models.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..tuner.capture_model import Call

ROOT = Path(__file__).resolve().parent.parent

HBM = 4.3e12
"""Bytes a second that one H200 reads and writes at best, measured with copies of 1 to 4 GB."""
TENSOR = 790e12
"""bfloat16 operations a second of the vendor's best matrix product on one H200."""


@dataclass(frozen=True, slots=True)
class Workload:
    """least_bytes: what must pass between the chip and its memory. flops: of matrix products.

    file: in the repository. model, inputs: the functions in it that make them; where they are
    not named, the file says it in one of the forms that `planner tune` knows.
    kernels: generated kernels that a call may take at most; None: not asked. ahead: a tie with the
    best peer is not enough.
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

    @property
    def arguments(self) -> list[str]:
        """What names it to `planner tune`."""
        path = str(ROOT / self.file)
        return (
            [f"{path}:{self.model}", "--inputs", f"{path}:{self.inputs}"] if self.model else [path]
        )

    @property
    def floor_s(self) -> float:
        """Seconds below which no H200 computes it."""
        return max(self.least_bytes / HBM, self.flops / TENSOR)


def _more(
    name: str, what: str, least_bytes: int, model: str, inputs: str, kernels: int | None
) -> Workload:
    file = "bench/models.py"
    return Workload(name, what, file, least_bytes, model=model, inputs=inputs, kernels=kernels)


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
    ),
    # Few rows on many processors: the parts of a row are combined by another kernel.
    _more(
        "softmax_few_rows_1m",
        "softmax of rows, [8, 4194304] bf16",
        2 * 2 * 8 * 4194304,
        "SoftmaxFewRows",
        "softmax_few_rows_inputs",
        None,
    ),
    # No cache holds the batch, so it is read for its statistics and once more.
    _more(
        "batchnorm_train_relu",
        "relu(batch_norm in training), [64, 256, 56, 56] bf16, fp32 affine",
        2 * 3 * _IMAGES + 4 * 2 * 256,
        "BatchNormReLU",
        "batchnorm_train_relu_inputs",
        None,
    ),
    _more(
        "groupnorm_silu",
        "silu(group_norm 32), [32, 320, 64, 64] bf16",
        2 * (2 * 32 * 320 * 64 * 64 + 2 * 320),
        "GroupNormSiLU",
        "groupnorm_silu_inputs",
        None,
    ),
    _more(
        "cross_entropy_128k",
        "cross_entropy(logits [8192, 131072] bf16, labels)",
        2 * 8192 * 131072 + 8 * 8192 + 2,
        "CrossEntropy",
        "cross_entropy_128k_inputs",
        None,
    ),
    _more(
        "custom_loss_many_small_ops",
        "huber + focal + regularisers over [4096, 1024] fp32 to a scalar",
        4 * (2 * 4096 * 1024 + 1),
        "CustomLoss",
        "custom_loss_inputs",
        None,
    ),
)

WORKLOADS = {workload.name: workload for workload in (*EXAMPLES, *MORE)}


def make(workload: Workload, device: str, **scale: int) -> tuple[Callable[..., Any], Call]:
    """The model on the device and a call of it. `scale` is for those of bench/models.py."""
    module = _module(ROOT / workload.file)
    model: Any
    if workload.model:
        model = getattr(module, workload.model)(**scale)
    elif hasattr(module, "get_model"):
        model = module.get_model()
    else:
        model = module.Model(*module.get_init_inputs())
    inputs = getattr(module, workload.inputs or "get_inputs")(device=device, **scale)
    return model.to(torch.device(device)), Call.of(inputs)


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fusionplan_workload_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
