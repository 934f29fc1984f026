"""The requirements that `--check` holds a workload to."""

from __future__ import annotations

from collections.abc import Mapping

from ..planner.lowerings.registry import LOWERINGS
from .result import OURS, MeasuredWorkload, Missing, WorkloadReport
from .workloads import Workload

MARGIN = 0.02
"""How much slower than the best baseline is still as fast."""

DEVICE = "H200"
"""In the name of the device that the times to reach are for."""


def faults(report: WorkloadReport, workloads: Mapping[str, Workload]) -> list[str]:
    """One line for each requirement that a workload does not meet."""
    found = [f"{name}: {why}" for name, why in report.failed.items()]
    for measured in report.workloads:
        lines = faults_of(measured, workloads[measured.name])
        found += [f"{measured.name}: {line}" for line in lines]
    return found


def faults_of(measured: MeasuredWorkload, workload: Workload) -> list[str]:
    found = []
    best = measured.best
    # The median alone: an interval that a noisy machine widens would excuse anything.
    if best.median > 1 + MARGIN:
        found.append(f"{best.median - 1:.1%} slower than {best.baseline}")
    elif workload.ahead and best.high >= 1:
        found.append(
            f"not ahead of {best.baseline} (ratio {best.median:.3f}, up to {best.high:.3f})"
        )
    generated = all(LOWERINGS[name].generated for name in measured.lowerings)
    if workload.kernels is not None and not (generated and measured.kernels <= workload.kernels):
        how = ", ".join(measured.lowerings)
        found.append(f"{measured.kernels} generated kernels ({how}) instead of {workload.kernels}")
    if measured.accuracy.problem:
        found.append(measured.accuracy.problem)
    return found + _limits(measured, workload)


def _limits(measured: MeasuredWorkload, workload: Workload) -> list[str]:
    """Faults against the time to reach and the memory allowed; and that bytes were not counted."""
    found = []
    seconds, extra = measured.times[OURS].seconds, measured.extra_bytes.get(OURS, 0)
    reach, most = workload.reach, workload.peak_extra
    if reach is not None and seconds > reach and DEVICE in measured.machine.device:
        found.append(f"reach {reach * 1e3:.4g} ms missed: {seconds * 1e3:.4g}")
    if most is not None and extra > most:
        found.append(f"takes {extra / 2**20:.1f} MiB of memory, more than {most / 2**20:.1f}")
    if isinstance(measured.traffic, Missing):
        found.append(f"bytes not counted: {measured.traffic.why}")
    return found
