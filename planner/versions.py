"""The versions and settings that a plan's speed and numbers depend on, besides the graph and the
device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
import triton

from .settings import default_of, settings

CODEGEN = "61"
"""Counts up whenever the same plan would give other kernels."""


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("torch", str(torch.__version__)),
        ("triton", str(triton.__version__)),
        ("cuda", torch.version.cuda or "none"),
        ("codegen", CODEGEN),
    )


def installed() -> dict[str, str]:
    """Name to version of what is installed, without settings."""
    return dict(_versions())


def versions(*, portable: bool = False) -> dict[str, str]:
    """Name to version, and the settings of torch that are not at their defaults; part of the key of
    every plan. portable: of a plan made where its device is not at hand: torch's release without
    the build, which names another CUDA there, or none."""
    found = dict(_versions())
    if portable:
        found = {name: v.split("+")[0] for name, v in found.items() if name != "cuda"}
    return found | settings()


def differences(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The differences between the versions of a plan and those that are installed, a sentence
    each."""
    names = sorted({name for name, _ in {*stored.items()} ^ {*current.items()}})
    return [
        f"its {name} is {_value(stored, name)}, here it is {_value(current, name)}"
        for name in names
    ]


def _value(among: Mapping[str, str], name: str) -> str:
    return among.get(name) or default_of(name) or "unknown"
