"""Which devices and settings are the same for a plan, and what is assumed of a GPU that is not
built in."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compiling import forked
from fusionplan.planner.costs.device import (
    A100,
    B200,
    H100,
    H200,
    L4,
    RTX_4090,
    DeviceProfile,
    Waits,
    profile_of,
    scaled,
    shipped,
)
from fusionplan.planner.settings import settings
from fusionplan.planner.versions import differences, versions
from fusionplan.tuner.workers.lab import WorkerLab
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass
class Reported:
    """What torch.cuda.get_device_properties gives."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int = 50 << 20
    clock_rate: int = 1_980_000
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120


def profile(monkeypatch: pytest.MonkeyPatch, reported: Any) -> DeviceProfile:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: reported)
    return profile_of(torch.device("cuda", 0))


H100_SXM = Reported("NVIDIA H100 80GB HBM3", 9, 0, 132, 85_017_493_504)
REAL = {
    "h200": (H200, Reported("NVIDIA H200", 9, 0, 132, 150_109_880_320)),
    "h200 of another driver": (H200, Reported("NVIDIA H200", 9, 0, 132, 150_754_820_096)),
    "h100": (H100, H100_SXM),
    "h100 of another driver": (H100, replace(H100_SXM, total_memory=84_929_806_336)),
    "a100": (A100, Reported("NVIDIA A100-SXM4-80GB", 8, 0, 108, 85_095_874_560)),
    # 22.17 GiB, and the 23,034 MiB of nvidia-smi.
    "l4": (L4, Reported("NVIDIA L4", 8, 9, 58, 23_804_870_656)),
    "l4 of another driver": (L4, Reported("NVIDIA L4", 8, 9, 58, 24_152_899_584)),
    # 23.64 GiB on Linux, 23.99 GiB on Windows.
    "rtx4090": (RTX_4090, Reported("NVIDIA GeForce RTX 4090", 8, 9, 128, 25_383_206_912)),
    "rtx4090 of Windows": (
        RTX_4090,
        Reported("NVIDIA GeForce RTX 4090", 8, 9, 128, 25_756_696_576),
    ),
    # 178.35 GiB, and the 183,359 MiB of nvidia-smi.
    "b200": (B200, Reported("NVIDIA B200", 10, 0, 148, 191_501_854_310)),
    "b200 of another driver": (B200, Reported("NVIDIA B200", 10, 0, 148, 192_265_846_784)),
}


@pytest.mark.parametrize("name", REAL)
def test_a_target_has_the_key_of_the_real_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builtin, reported = REAL[name]
    found = profile(monkeypatch, reported)
    assert found.key == builtin.key
    assert found.copy_s == builtin.copy_s
    assert found.waits == builtin.waits
    assert found.estimated == builtin.estimated == (builtin in (L4, RTX_4090, B200))
    assert shipped(found.to_json()) == found


def test_another_size_or_part_of_a_gpu_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    half = replace(H100_SXM, total_memory=42 * 10**9)
    slice_ = replace(H100_SXM, multi_processor_count=60)
    keys = {profile(monkeypatch, each).key for each in (H100_SXM, half, slice_)}
    assert len(keys) == 3


# By their data sheets: bytes and 16-bit operations a second.
SHEETS = {
    "l4": (L4, 0.3e12, 121e12),
    "4090": (RTX_4090, 1.008e12, 165e12),
    "b200": (B200, 8e12, 2.4e15),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_gpu_known_by_its_data_sheet_comes_near_it(name: str) -> None:
    device, bandwidth, flops = SHEETS[name]
    assert 0.8 * bandwidth < device.bandwidth < bandwidth
    assert 0.7 * flops < device.tensor_flops < flops


def test_waits_go_by_the_clock() -> None:
    fast = scaled(replace(H100_SXM, clock_rate=2 * 1_755_000))
    assert fast.waits == Waits().at_clock(2.0)
    assert 2 * fast.waits.mma_s == pytest.approx(H200.waits.mma_s)


def test_an_unknown_gpu_is_scaled_from_what_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """An L40S: 864 GB/s, 362 TFLOP/s of float16 by its data sheet."""
    l40s = Reported("NVIDIA L40S", 8, 9, 142, 47_697_362_944, 96 << 20, 2_520_000, 9_001_000, 384)
    found = profile(monkeypatch, l40s)
    assert found.estimated
    assert 0.7e12 < found.bandwidth < 0.864e12
    assert 270e12 < found.tensor_flops < 367e12
    assert (found.sm_count, found.capability, found.fma_rate) == (142, 89, 128.0)
    assert found.blocks_per_sm == 24
    assert shipped(found.to_json()) == DeviceProfile.from_json(found.to_json()) == found
    again = DeviceProfile.from_json({k: v for k, v in found.to_json().items() if k != "estimated"})
    assert not again.estimated  # as an earlier version wrote it


def test_what_torch_does_not_report_counts_as_the_base_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pcie = SimpleNamespace(
        name="NVIDIA H100 PCIe",
        major=9,
        minor=0,
        multi_processor_count=114,
        total_memory=85 * 10**9,
    )
    found = profile(monkeypatch, pcie)
    assert found.estimated
    assert found.copy_s == H100.copy_s
    assert found.tensor_flops < H100.tensor_flops


# --- settings ---


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def called(set_: Callable[..., Any], value: Any, before: Any, **named: Any) -> Any:
    set_(value, **named)
    try:
        yield
    finally:
        set_(before)


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


def cudnn(**change: bool) -> AbstractContextManager[Any]:
    """Beside torch's own test helpers its flags cannot be set in any other way."""
    names = ("enabled", "benchmark", "deterministic", "allow_tf32")
    flags: Any = CUDNN.flags
    found: AbstractContextManager[Any] = flags(**{n: getattr(CUDNN, n) for n in names} | change)
    return found


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "high": lambda: called(torch.set_float32_matmul_precision, "high", "highest"),
    "tf32": lambda: changed(MATMUL, "allow_tf32", True),
    "no tf32 convolutions": lambda: cudnn(allow_tf32=False),
    "fp16": lambda: changed(MATMUL, "allow_fp16_reduced_precision_reduction", False),
    "bf16": lambda: changed(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "accumulation": lambda: changed(MATMUL, "allow_fp16_accumulation", True),
    "deterministic": lambda: called(torch.use_deterministic_algorithms, True, False),
    "warn only": lambda: called(torch.use_deterministic_algorithms, True, False, warn_only=True),
    "benchmark": lambda: cudnn(benchmark=True),
    "cudnn deterministic": lambda: cudnn(deterministic=True),
    "no cudnn": lambda: cudnn(enabled=False),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_part_of_the_key(name: str) -> None:
    usual = versions()
    assert settings() == {}
    with SETTINGS[name]():
        assert len(settings()) >= 1
        assert settings().items() <= versions().items()
        told = differences(usual, versions())
        assert len(told) == len(settings())
        assert all(setting in text for setting, text in zip(sorted(settings()), told, strict=True))
    assert versions() == usual


ADOPTS = """
import json, sys
from fusionplan.planner.settings import adopt, settings
for given in json.loads(sys.argv[1]):
    adopt(given)
    print(json.dumps({name: settings().get(name) for name in given}))
"""


@pytest.mark.process
def test_another_process_adopts_every_setting() -> None:
    given = []
    for change in SETTINGS.values():
        with change():
            given.append(settings())
    told = forked(["-c", ADOPTS, json.dumps(given)])
    assert told.returncode == 0, told.stderr
    assert [json.loads(line) for line in told.stdout.splitlines()] == given


@pytest.mark.process
def test_what_measures_is_started_with_the_settings_of_the_tune() -> None:
    with SETTINGS["tf32"]():
        lab = WorkerLab("cuda:0", 90)
        command = lab.pool.roles["measure"].command
        lab.close()
    assert json.loads(command[command.index("--settings") + 1]) == {
        "float32 matmul precision": "tf32"
    }


def test_a_portable_key_names_no_build() -> None:
    found = versions(portable=True)
    assert "cuda" not in found
    assert "+" not in found["torch"]
    assert found["torch"] == torch.__version__.split("+")[0]
    with SETTINGS["deterministic"]():
        assert "deterministic algorithms" in versions(portable=True)
