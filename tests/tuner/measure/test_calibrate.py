"""Calibration, by a device that is another than its profile says: the model with other rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusionplan.db import Store
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import estimate, total
from fusionplan.planner.costs.device import H200, DeviceProfile
from fusionplan.planner.errors import FusionplanError, Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.tuner.measure.calibrate import calibrate
from fusionplan.tuner.model_fit.refit import calibrated
from fusionplan.tuner.records.ledger import device_record

pytestmark = pytest.mark.usefixtures("few_ranked")

TRUE = replace(
    H200,
    copy_s=tuple((size, 4e-6 + (s - H200.launch_s) * 1.5) for size, s in H200.copy_s),
    launch_s=4e-6,
    fma_rate=96.0,
    sfu_rate=12.0,
    div_rate=10.0,
    libdevice_rate=4.0,
    tensor_flops=700e12,
    generated=1.25,
)
FIGURES = [
    "launch_s",
    "bandwidth",
    "fma_rate",
    "sfu_rate",
    "div_rate",
    "libdevice_rate",
    "l2_bandwidth",
    "tensor_flops",
    "generated",
]


class Clock:
    """Every measurement takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Model:
    """Times as the model has them for the true profile."""

    def __init__(self, true: DeviceProfile, clock: Clock, broken: str = "") -> None:
        self.true, self.clock, self.broken = true, clock, broken
        self.kernels: list[tuple[Graph, Config]] = []

    def kernel(self, group: Graph, config: Config) -> float:
        self.clock.now += 1.0
        self.kernels.append((group, config))
        if self.broken and any(self.broken in node.op for node in group.nodes):
            raise FusionplanError("no such\n function")
        found = schedule_group(group, config.layout)
        assert not isinstance(found, Refusal)
        return total([estimate(k.nest, config, self.true) for k in found.kernels]).seconds

    def product(self, size: int) -> float:
        self.clock.now += 1.0
        return 2.0 * size**3 / (self.true.tensor_flops * self.true.vendor)


def measured(true: DeviceProfile = TRUE, seconds: float = 1000.0, broken: str = ""):
    clock = Clock()
    return calibrate(Model(true, clock, broken), H200, seconds=seconds, clock=clock)


def test_what_was_measured_is_the_device():
    found = measured()
    assert found.skipped == ()
    assert [f.name for f in found.figures] == FIGURES
    made = found.profile
    assert made.key == H200.key
    assert made.launch_s == pytest.approx(TRUE.launch_s, rel=0.1)
    assert made.l2_bandwidth == pytest.approx(TRUE.l2_bandwidth, rel=0.3)
    for size in (2.0**26, 2.0**30):
        assert made.stream_s(size) == pytest.approx(TRUE.stream_s(size), rel=0.1)
    assert made.bandwidth == pytest.approx(TRUE.bandwidth, rel=0.1)
    assert made.fma_rate == pytest.approx(96.0, rel=0.1)
    assert made.sfu_rate == pytest.approx(12.0, rel=0.1)
    assert made.div_rate == pytest.approx(10.0, rel=0.15)
    assert made.libdevice_rate == pytest.approx(4.0, rel=0.15)
    assert made.generated == pytest.approx(1.25, rel=0.15)
    assert made.tensor_flops == pytest.approx(TRUE.tensor_flops)


def test_the_profile_as_it_is_stays_as_it_is():
    made = measured(H200).profile
    for name in ("fma_rate", "sfu_rate", "div_rate", "libdevice_rate", "generated"):
        assert getattr(made, name) == pytest.approx(getattr(H200, name), rel=0.15), name
    assert made.bandwidth == pytest.approx(H200.bandwidth, rel=0.1)


def test_when_the_time_is_over_nothing_more_is_begun():
    found = measured(seconds=12.0)
    assert [f.name for f in found.figures] == ["launch_s", "bandwidth"]
    assert "generated: no time was left" in found.skipped
    assert "bandwidth: the largest sizes" in found.skipped
    assert len(found.profile.copy_s) >= 2
    assert found.seconds < 25.0
    assert found.profile.fma_rate == H200.fma_rate


def test_what_cannot_run_is_skipped_with_the_reason():
    found = measured(broken="atan")
    assert found.skipped == ("libdevice_rate: no such function",)
    assert found.profile.libdevice_rate == H200.libdevice_rate
    assert found.profile.div_rate != H200.div_rate


def test_a_figure_that_cannot_be_is_no_figure():
    class Instant(Model):
        def kernel(self, group: Graph, config: Config) -> float:
            seconds = super().kernel(group, config)
            return 1e-4 if any("rsqrt" in node.op for node in group.nodes) else seconds

    clock = Clock()
    found = calibrate(Instant(TRUE, clock), H200, seconds=1000.0, clock=clock)
    (reason,) = found.skipped
    assert reason.startswith("sfu_rate: ")
    assert found.profile.sfu_rate == H200.sfu_rate


def test_a_calibration_is_the_devices_profile_until_it_is_undone(tmp_path):
    found = measured()
    with Store.open(tmp_path / "s.db") as store:
        store.put_device(device_record(H200))
        store.add_calibration(found.record())
        assert calibrated(store, H200) == found.profile
        assert store.calibration(H200.key).evidence["figures"]["fma_rate"][0] == 128.0
        store.undo_calibration(H200.key)
        assert calibrated(store, H200) == H200


def test_a_cache_slower_than_the_memory_is_no_figure():
    """A kernel that waits for something else would make every other kernel seem slow."""

    class Waiting(Model):
        def kernel(self, group: Graph, config: Config) -> float:
            found = super().kernel(group, config)
            return (
                found * 9 if any(node.op.startswith("aten.amax") for node in group.nodes) else found
            )

    clock = Clock()
    found = calibrate(Waiting(TRUE, clock), H200, clock=clock, seconds=1000.0)
    assert "l2_bandwidth" not in [figure.name for figure in found.figures]
    assert found.profile.l2_bandwidth == H200.l2_bandwidth
    assert any("less than the memory's" in reason for reason in found.skipped)
