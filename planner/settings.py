"""torch's global settings that change a kernel's speed or a model's numbers.

A setting at its default is not written down. So a plan made under the defaults keeps its key when
another setting is listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_cuda: Any = torch.backends.cuda
_cudnn: Any = torch.backends.cudnn


@dataclass(frozen=True, slots=True)
class _Setting:
    """read: its value now. write: sets it to what `read` gave, as text. usual: its default."""

    read: Callable[[], object]
    write: Callable[[str], object]
    usual: object


def _flag(of: Any, name: str, usual: bool) -> _Setting:
    return _Setting(
        lambda: getattr(of, name), lambda text: setattr(of, name, text == "True"), usual
    )


def _precision(of: Any, usual: str) -> _Setting:
    """tf32 or ieee; unset, which torch calls none, is the latter."""
    return _Setting(
        lambda: "tf32" if of.fp32_precision == "tf32" else "ieee",
        lambda text: setattr(of, "fp32_precision", text),
        usual,
    )


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "no"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "yes"


def _set_deterministic(text: str) -> None:
    torch.use_deterministic_algorithms(text != "no", warn_only=text == "warn only")


_ATTENTION = {
    "flash": (_cuda.flash_sdp_enabled, _cuda.enable_flash_sdp),
    "efficient": (_cuda.mem_efficient_sdp_enabled, _cuda.enable_mem_efficient_sdp),
    "math": (_cuda.math_sdp_enabled, _cuda.enable_math_sdp),
    "cudnn": (_cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp),
}
"""By name, whether torch may choose the kernels, and what says so."""


def _attention() -> str:
    return " ".join(name for name, (is_enabled, _) in _ATTENTION.items() if is_enabled())


def _set_attention(text: str) -> None:
    for name, (_, enable) in _ATTENTION.items():
        enable(name in text.split())


_SETTINGS = {
    "float32 matmul precision": _precision(_cuda.matmul, "ieee"),
    "cudnn.conv.fp32_precision": _precision(_cudnn.conv, "tf32"),
    "cudnn.rnn.fp32_precision": _precision(_cudnn.rnn, "tf32"),
    "allow_fp16_reduced_precision_reduction": _flag(
        _cuda.matmul, "allow_fp16_reduced_precision_reduction", True
    ),
    "allow_bf16_reduced_precision_reduction": _flag(
        _cuda.matmul, "allow_bf16_reduced_precision_reduction", True
    ),
    "allow_fp16_accumulation": _flag(_cuda.matmul, "allow_fp16_accumulation", False),
    "deterministic algorithms": _Setting(_deterministic, _set_deterministic, "no"),
    "cudnn.enabled": _flag(_cudnn, "enabled", True),
    "cudnn.benchmark": _flag(_cudnn, "benchmark", False),
    "cudnn.deterministic": _flag(_cudnn, "deterministic", False),
    "attention kernels": _Setting(_attention, _set_attention, "flash efficient math cudnn"),
}


def settings() -> dict[str, str]:
    """The settings that are not at their defaults, by name; part of the key of every plan. A change
    of autocast or of a tensor's dtype shows in the captured graph and is not listed."""
    found = ((name, each.read(), each.usual) for name, each in _SETTINGS.items())
    return {name: str(value) for name, value, usual in found if value != usual}


def adopt(given: Mapping[str, str]) -> None:
    """Sets what `settings` gave in another process; what it left out stays as it is. Raises
    KeyError for a name that is no setting."""
    for name, text in given.items():
        _SETTINGS[name].write(text)


def default_of(name: str) -> str | None:
    """The default of a setting; None if there is no such setting."""
    return str(_SETTINGS[name].usual) if name in _SETTINGS else None
