"""What the generated code and its speed depend on, besides the graph and the device."""

from __future__ import annotations

from functools import cache

import torch
import triton

CODEGEN = "14"
"""Counts up whenever the same plan would give other kernels."""


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("torch", str(torch.__version__)),
        ("triton", str(triton.__version__)),
        ("cuda", torch.version.cuda or "none"),
        ("codegen", CODEGEN),
    )


def versions() -> dict[str, str]:
    """Name to version; part of the key of every plan."""
    return dict(_versions())
