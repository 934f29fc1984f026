"""Compiles the kernels of a plan side by side, before they are loaded one after the other.

Triton is in C++ or waits for ptxas most of the time, and lets other threads run meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...codegen.source import KernelSource
from ..phases import phase
from . import compiled_before, ready
from .compile import CompileFailed, Target, active_target, code_key_of, interpreted, kernel_of

_MOST = 8
"""Threads. What of a compilation is Python lets no more of them run at once."""


def compile_ahead(sources: Iterable[KernelSource], device: torch.device) -> list[Any]:
    """Triton's kernels of those sources that have no machine code yet, for the caller to hold until
    all are loaded. One that does not compile is left out: who loads it is told why."""
    if interpreted() or device.type != "cuda":
        return []

    def compiled(source: KernelSource) -> Any:
        with torch.cuda.device(device):
            return kernel_of(source)

    with torch.cuda.device(device):
        target = active_target()
    return side_by_side(missing(sources, target), compiled)


def missing(sources: Iterable[KernelSource], target: Target) -> list[KernelSource]:
    """Those that are to be compiled, each text once."""
    keys = {code_key_of(source, target, True): source for source in sources}
    return [
        source
        for key, source in keys.items()
        if ready.find(key) is None and not compiled_before.knows(key)
    ]


def side_by_side(
    sources: Sequence[KernelSource], compile: Callable[[KernelSource], Any]
) -> list[Any]:
    """The results of `compile`, each made in a thread. A single source gives none, because it gains
    nothing, nor does one for which `compile` raises CompileFailed."""
    if len(sources) < 2:
        return []

    def compiled(source: KernelSource) -> Any:
        try:
            return compile(source)
        except CompileFailed:
            return None

    threads = min(len(sources), _MOST, max(2, os.cpu_count() or 1))
    with phase("compile"), ThreadPoolExecutor(threads, "fusionplan-compile") as pool:
        return [kernel for kernel in pool.map(compiled, sources) if kernel is not None]
