"""torch's global settings that change a kernel's speed or a model's numbers.

A setting at its default is not written down. So a plan made under the defaults keeps its key when
another setting is listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_cuda: Any = torch.backends.cuda
_cudnn: Any = torch.backends.cudnn


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "no"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "yes"


def _attention() -> str:
    enabled = {
        "flash": _cuda.flash_sdp_enabled,
        "efficient": _cuda.mem_efficient_sdp_enabled,
        "math": _cuda.math_sdp_enabled,
        "cudnn": _cuda.cudnn_sdp_enabled,
    }
    return " ".join(name for name, is_enabled in enabled.items() if is_enabled())


def _precision(of: Any) -> Callable[[], str]:
    """Reads tf32 or ieee; unset, which torch calls none, is the latter."""
    return lambda: "tf32" if of.fp32_precision == "tf32" else "ieee"


_SETTINGS: dict[str, tuple[Callable[[], object], object]] = {
    "float32 matmul precision": (_precision(_cuda.matmul), "ieee"),
    "cudnn.conv.fp32_precision": (_precision(_cudnn.conv), "tf32"),
    "cudnn.rnn.fp32_precision": (_precision(_cudnn.rnn), "tf32"),
    "allow_fp16_reduced_precision_reduction": (
        lambda: _cuda.matmul.allow_fp16_reduced_precision_reduction,
        True,
    ),
    "allow_bf16_reduced_precision_reduction": (
        lambda: _cuda.matmul.allow_bf16_reduced_precision_reduction,
        True,
    ),
    "allow_fp16_accumulation": (lambda: _cuda.matmul.allow_fp16_accumulation, False),
    "deterministic algorithms": (_deterministic, "no"),
    "cudnn.enabled": (lambda: _cudnn.enabled, True),
    "cudnn.benchmark": (lambda: _cudnn.benchmark, False),
    "cudnn.deterministic": (lambda: _cudnn.deterministic, False),
    "attention kernels": (_attention, "flash efficient math cudnn"),
}
"""By name, how a setting is read and what it is by default."""


def settings() -> dict[str, str]:
    """The settings that are not at their defaults, by name; part of the key of every plan. A change
    of autocast or of a tensor's dtype shows in the captured graph and is not listed."""
    found = ((name, read(), usual) for name, (read, usual) in _SETTINGS.items())
    return {name: str(value) for name, value, usual in found if value != usual}


def default_of(name: str) -> str | None:
    """What a setting is by default; None of what is no setting."""
    return str(_SETTINGS[name][1]) if name in _SETTINGS else None
