"""The kernels of a whole plan, compiled by the compile workers at the same time, before this
process builds the plan and finds them in Triton's cache.

A plan's kernels are not all those of its trials: launches that overlap have other text, and where
pointers are not aligned other machine code is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from pydantic import TypeAdapter

from ...planner.capture.capture import Captured
from ...planner.codegen.source import KernelSource, Program
from ...planner.config import Config
from ...planner.errors import FusionplanError, Refusal
from ...planner.graph.graph import Graph, kernel_key
from ...planner.lower import lower
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import Plan
from ...planner.runtime.execution.executor import Executor, LoadLauncher, Lower
from ...planner.runtime.machine_code.compile import CompileFailed
from ...planner.runtime.machine_code.launch import Launcher, plain

SOURCE: TypeAdapter[KernelSource] = TypeAdapter(KernelSource)

Variant = tuple[KernelSource, bool]
"""A kernel, and whether for aligned pointers."""


class KernelCompilers(Protocol):
    """Compiles kernels elsewhere, before they are asked for."""

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        """Returns when each is compiled, or could not be; `meanwhile` runs here until then. Those
        that were not after so many seconds are given up, and returned."""


class _NotedKernel:
    """Stands for a launcher of a kernel that is not compiled."""

    takes_tensors = False
    aligned = unaligned = None

    def __init__(self, source: KernelSource) -> None:
        self.source = source


def lowered_once() -> Lower:
    """`lower` for several executors of plans that share most of their groups."""
    known: dict[Any, Program | Refusal] = {}

    def found(group: Graph, config: Config, **more: Any) -> Program | Refusal:
        key = kernel_key(group), config, tuple(sorted(more.items()))
        if key not in known:
            known[key] = lower(group, config, **more)
        return known[key]

    return found


def kernels_of(
    captured: Captured, plans: Sequence[Plan], device: torch.device, lower: Lower
) -> list[Variant]:
    """The kernels that executors of these plans load, each once, of costly groups first. Those of a
    plan that cannot be built, or of which a group compiles for minutes, are left out."""
    found: dict[Variant, None] = {}

    def note(source: KernelSource, device: torch.device) -> Any:
        found.update(dict.fromkeys(_variants(source)))
        return _NotedKernel(source)

    for plan in plans:
        if any(lowering_of(group).slow for group in plan.groups):
            continue
        costliest = sorted(plan.groups, key=lambda group: -(group.predicted or 0.0))
        plan = replace(plan, groups=tuple(costliest))
        try:
            Executor(captured, plan, device, lower=lower, load=note)
        except FusionplanError:
            continue  # Said where the plan is built in earnest.
    return list(found)


def loader_without(late: Collection[Variant]) -> LoadLauncher:
    """Loads kernels, but none that was given up before it was compiled: it raises CompileFailed."""
    given_up = frozenset(late)

    def load(source: KernelSource, device: torch.device) -> Launcher:
        if any(variant in given_up for variant in _variants(source)):
            raise CompileFailed(f"kernel {source.name}: the time for compiling it was over")
        return Launcher(source, device)

    return load


def _variants(source: KernelSource) -> Iterator[Variant]:
    yield source, True
    try:
        yield plain(source)[0], False
    except CompileFailed:
        return
