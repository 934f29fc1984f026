"""Invented results, for what becomes of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from fusionplan.bench.result import (
    EAGER,
    OURS,
    Against,
    Errors,
    HostCost,
    HostCosts,
    Machine,
    MeasuredWorkload,
    Requirement,
    Timing,
    WorkloadReport,
)
from fusionplan.bench.workloads import WORKLOADS
from fusionplan.planner.costs.device import H200

MACHINE = Machine("Invented GPU", "2.11.0", "3.6.0", "3.12.1", "555.0")


def timing(seconds: float) -> Timing:
    return Timing(seconds, (seconds, seconds * 1.01), seconds / 100, 200)


@pytest.fixture
def measured() -> Callable[..., MeasuredWorkload]:
    """A workload of 80 us beside a best baseline of 100 us, changed as told."""

    def make(name: str = "article_chain", **changes: object) -> MeasuredWorkload:
        times = {OURS: timing(80e-6), EAGER: timing(300e-6), "default": timing(100e-6)}
        best, accuracy = Against("default", 0.8, 0.79, 0.81), Errors(1e-3, 1e-3)
        whole = MeasuredWorkload(
            name,
            MACHINE,
            times,
            best,
            accuracy,
            1,
            ("triton",),
            "triton x0=8",
            floor_s=WORKLOADS[name].floor_s(H200),
        )
        return replace(whole, **changes)

    return make


@pytest.fixture
def report() -> Callable[..., WorkloadReport]:
    def make(*workloads: MeasuredWorkload, host: bool = False, **failed: str) -> WorkloadReport:
        costs = HostCosts(MACHINE, (HostCost(1024, {"executor": 7.5}),)) if host else None
        floors = {m.name: m.floor_s for m in workloads if m.floor_s}
        found = {m.name: WORKLOADS[m.name] for m in workloads}
        asked = {n: Requirement(w.reach, w.peak_extra) for n, w in found.items() if w.peak_extra}
        date = "2025-01-02 03:04 UTC"
        return WorkloadReport(
            date, "abc123", "scripts/bench", workloads, failed, floors, costs, asked
        )

    return make
