"""What `--check` finds fault with."""

from __future__ import annotations

from collections.abc import Mapping

from .result import Measured, Report
from .workloads import Workload

MARGIN = 0.02
"""How much slower than the best peer is still as fast."""


def faults(report: Report, workloads: Mapping[str, Workload]) -> list[str]:
    """One line for each requirement that a workload does not meet."""
    found = [f"{name}: {why}" for name, why in report.failed.items()]
    for measured in report.workloads:
        lines = faults_of(measured, workloads[measured.name])
        found += [f"{measured.name}: {line}" for line in lines]
    return found


def faults_of(measured: Measured, workload: Workload) -> list[str]:
    found = []
    best = measured.best
    # The median alone: an interval that a noisy machine widens would excuse anything.
    if best.median > 1 + MARGIN:
        found.append(f"{best.median - 1:.1%} slower than {best.peer}")
    elif workload.ahead and best.high >= 1:
        found.append(f"not ahead of {best.peer} (ratio {best.median:.3f}, up to {best.high:.3f})")
    if workload.kernels is not None and (
        measured.lowerings != ("triton",) or measured.kernels > workload.kernels
    ):
        how = ", ".join(measured.lowerings)
        found.append(f"{measured.kernels} generated kernels ({how}) instead of {workload.kernels}")
    if measured.accuracy.problem:
        found.append(measured.accuracy.problem)
    return found
