"""The choice whether kernels of a plan overlap in its CUDA graph, where nobody has measured it."""

from __future__ import annotations

from dataclasses import replace

from ..lowerings.registry import lowering_of
from ..plan import Plan

OVERLAPPING = (9, 0)
"""The compute capability from which a kernel can be launched while the one before it ends."""

SHORT_S = 30e-6
"""Seconds of a kernel up to which the end of one is worth overlapping with the begin of the next. A
step of generating text, of kernels of 2 to 30 us, took 1,043 us on an H200 and 996 us so; of much
longer kernels the ends do not show."""


def overlapping(plan: Plan, capability: tuple[int, int]) -> Plan:
    """The plan as its CUDA graph is recorded: one that was measured as it is, the model's with
    launches that overlap where its kernels are short."""
    if plan.evidence != "modelled" or plan.overlaps or capability < OVERLAPPING:
        return plan
    ours = [g for g in plan.groups if lowering_of(g).generated]
    seconds = [g.predicted / g.kernels for g in ours if g.predicted is not None]
    if not seconds or sum(seconds) / len(seconds) > SHORT_S:
        return plan
    return replace(plan, overlaps=True)
