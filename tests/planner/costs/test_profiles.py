"""Profiles of devices: the built-in ones are sound, and kernels are planned for each."""

from __future__ import annotations

import pytest
import torch
from corpus import graph_of, tensor
from fusionplan.planner.config import NATURAL, Config
from fusionplan.planner.costs.cost import estimate
from fusionplan.planner.costs.device import BUILTIN, CPU, H100, H200, builtin, profile_of
from fusionplan.planner.errors import DeviceError, Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.space.space import Space, space_of
from oracle import whole_group

pytestmark = pytest.mark.dynamo


def group(function, *inputs: torch.Tensor) -> Graph:
    return whole_group(graph_of(function, inputs)).graph


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_profiles_are_sound(name: str) -> None:
    device = builtin(name)
    assert builtin(name.upper()) is device
    sizes, times = zip(*device.copy_s, strict=True)
    assert list(sizes) == sorted(sizes)
    assert list(times) == sorted(times)
    assert 0.2e12 < device.bandwidth < 8e12
    assert device.l2_bandwidth > device.bandwidth
    assert device.capability in (80, 89, 90, 100)
    assert device.to_json()["name"] == device.name


@pytest.mark.parametrize("name", BUILTIN)
def test_kernels_fit_every_builtin_gpu(name: str) -> None:
    device = builtin(name)
    part = group(lambda x, w: torch.relu(x @ w), tensor(4096, 1024), tensor(1024, 4096))
    space = space_of(part, device)
    assert isinstance(space, Space)
    for config, cost in space.ranked(4):
        assert 0 < cost.shared_bytes <= device.shared_per_sm
        assert device.capability >= 90 or config.access == "pointer"


def test_streaming_time_follows_the_measured_curve() -> None:
    for size, seconds in H200.copy_s:
        assert H200.stream_s(size) == pytest.approx(seconds)
    times = [H200.stream_s(2.0**n) for n in range(10, 36)]
    assert times == sorted(times)
    assert H200.stream_s(0) == pytest.approx(H200.launch_s)
    assert H200.stream_s(2.0**40) == pytest.approx(2.0**40 / H200.bandwidth, rel=0.01)


def test_a_slower_memory_is_slower() -> None:
    part = group(lambda x: torch.relu(x) * 2, tensor(8192, 8192))
    found = schedule_group(part, NATURAL)
    assert not isinstance(found, Refusal)
    (kernel,) = found.kernels
    config = Config((("x0", 1024),))
    assert estimate(kernel.nest, config, H100).seconds > estimate(kernel.nest, config, H200).seconds


def test_keys_tell_devices_apart() -> None:
    keys = {device.key for device in (*BUILTIN.values(), CPU)}
    assert len(keys) == len(BUILTIN) + 1
    assert H200.key == builtin("h200").key


def test_unknown_devices_are_refused_by_name() -> None:
    with pytest.raises(DeviceError, match="unknown target 'h900'; known targets: h200"):
        builtin("h900")
    with pytest.raises(DeviceError, match="meta"):
        profile_of(torch.device("meta"))
    assert profile_of(torch.device("cpu")) is CPU
