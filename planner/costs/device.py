"""Device profiles: the figures the cost model counts with."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from ..errors import DeviceError


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds in which the warps of a GPU wait for something other than memory. They were timed, or
    fitted to what was timed, on an H200, those of several matmuls on an H100; other GPUs count with
    them by their clocks."""

    fold_s: float = 0.2e-6
    """A program's warps meet at a reduction,"""
    fold_warp_s: float = 0.03e-6
    """and longer for each warp;"""
    turn_fold_s: float = 0.15e-6
    """in a turn of a loop they meet in less."""
    start_s: float = 50e-9
    """A program is started on an SM that has room,"""
    start_warp_s: float = 7.5e-9
    """longer for each warp,"""
    start_least_s: float = 80e-9
    """and never in less."""
    replace_warp_s: float = 10e-9
    """A program that takes the place of one that ended: longer than `start_s` for each warp,"""
    replace_least_s: float = 160e-9
    """and never in less."""
    persistent_tile_s: float = 0.35e-6
    """Between the tiles of a persistent kernel that loads ahead its warps wait for each other."""
    mma_s: float = 5.2e-6
    """A program of a single matmul waits for its first loads."""
    mma_turn_s: float = 0.14e-6
    """A turn of the loop of a single matmul, besides its work: its barriers, and loads that it
    begins. The programs of an SM take turns."""
    walked_turn_s: float = 0.22e-6
    """The same where programs walk over tiles: their loops over a tile and over tiles are one,"""
    walked_turn_least_s: float = 0.33e-6
    """and a program that is alone on its SM has no turn in less."""
    chain_s: float = 4.6e-6
    """Of a launch of several matmuls, until the first ones are under way."""
    chain_step_s: float = 0.14e-6
    """A matmul waits for the one before it."""
    chain_turn_s: float = 0.21e-6
    """A turn of their loop waits for its loads."""
    join_s: float = 1e-6
    """The vendor's matmul adds up the parts of a sum, besides what is moved for them."""

    def at_clock(self, times: float) -> Waits:
        """Those of a GPU with so many times the clock."""
        return replace(self, **{f.name: getattr(self, f.name) / times for f in fields(self)})


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """copy_s: (bytes read and written, seconds) of a streaming kernel, launch included, by size;
    the last entry gives the bandwidth beyond it. Rates are results per SM and clock cycle;
    tensor_flops: operations per second of the vendor's best matrix product in 16 bits; vendor:
    the part of it that its large products usually reach; depthwise: taps of the vendor's
    convolutions of single channels, per SM and clock cycle; generated: times the seconds that the
    model expects of generated products; estimated: the rates are scaled from another GPU's."""

    name: str
    sm_count: int
    memory_bytes: int
    capability: int
    l2_bytes: int
    clock_hz: float
    copy_s: tuple[tuple[float, float], ...] = field(repr=False)
    l2_bandwidth: float
    launch_s: float
    latency_s: float
    fma_rate: float = 128.0
    sfu_rate: float = 16.0
    div_rate: float = 16.0
    libdevice_rate: float = 128.0 / 22.0
    tensor_flops: float = 800e12
    vendor: float = 0.86
    generated: float = 1.0
    depthwise: float = field(default=33.0, repr=False)
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    shared_per_sm: int = 228 * 1024
    blocks_per_sm: int = 32
    waits: Waits = field(default=Waits(), repr=False)
    estimated: bool = False

    @property
    def key(self) -> str:
        """What a measured time depends on: the device's name, memory and size. What a driver
        reports as the memory differs by what it keeps for itself: memory counts as that of the
        built-in device of this name, or in units of 2 GiB."""
        memory = round(self.memory_bytes / _MEMORY_UNIT) * _MEMORY_UNIT
        known = next((p.memory_bytes for p in BUILTIN.values() if p.name == self.name), 0)
        if abs(self.memory_bytes - known) < _MEMORY_KEPT * known:
            memory = known
        identity = [self.name, memory, self.sm_count, self.capability]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a very large streaming kernel."""
        size, seconds = self.copy_s[-1]
        return size / seconds

    def stream_s(self, size: float) -> float:
        """Seconds to read and write `size` bytes in all, launch included."""
        sizes = [at for at, _ in self.copy_s]
        place = bisect_left(sizes, size)
        if place == len(sizes):
            return self.copy_s[-1][1] + (size - sizes[-1]) / self.bandwidth
        high, slow = self.copy_s[place]
        low, fast = self.copy_s[place - 1] if place else (0.0, self.launch_s)
        return fast + (slow - fast) * (size - low) / (high - low)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeviceProfile:
        """Inverse of `to_json`. Raises ValueError on data that is no profile, or one that cannot
        be: a rate that is not positive, a curve that falls."""
        try:
            found = _profile_type().validate_python(dict(data))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"no device profile: {first['loc']}: {first['msg']}") from error
        rates = [getattr(found, name) for name in RATES] + [*asdict(found.waits).values()]
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError(f"no device profile: one of {', '.join(RATES)} is not positive")
        sizes, times = zip(*found.copy_s, strict=True) if found.copy_s else ((), ())
        rising = all(
            list(each) == sorted({*each}) and each[0] > 0 for each in (sizes, times) if each
        )
        if not (found.copy_s and rising and found.copy_s[-1][1] < math.inf):
            raise ValueError("no device profile: copy_s does not rise with the bytes")
        return found


RATES = (
    "clock_hz",
    "l2_bandwidth",
    "launch_s",
    "latency_s",
    "fma_rate",
    "sfu_rate",
    "div_rate",
    "libdevice_rate",
    "tensor_flops",
    "vendor",
    "generated",
    "depthwise",
)
"""The figures of a profile that are measured or fitted; the others are sizes."""


@cache
def _profile_type() -> TypeAdapter[DeviceProfile]:
    """Made when a profile is read; not every process reads one."""
    return TypeAdapter(DeviceProfile)


_SIZES = ("name", "sm_count", "memory_bytes", "capability", "l2_bytes")
"""What is read off a device."""

_MEMORY_UNIT = 2 * 2**30
_MEMORY_KEPT = 0.04
"""Part of a GPU's memory that drivers report or keep for themselves."""

_MB = 2.0**20

H200 = DeviceProfile(
    name="NVIDIA H200",
    sm_count=132,
    memory_bytes=150_109_880_320,
    capability=90,
    l2_bytes=60 * 2**20,
    clock_hz=1.755e9,
    # Device copies measured on one H200, torch 2.11 (bytes read plus bytes written).
    copy_s=(
        (2 * _MB, 4.94e-6),
        (16 * _MB, 8.7e-6),
        (64 * _MB, 20.7e-6),
        (256 * _MB, 68.8e-6),
        (2048 * _MB, 509e-6),
    ),
    l2_bandwidth=9.0e12,
    launch_s=2.5e-6,
    latency_s=0.9e-6,
)

_PEAKS, _H200_PEAK = {80: 2.04, 90: 3.35}, 4.8
"""Terabytes per second of the memory of the A100 and the H100, and of the H200, by their data
sheets."""

H100 = replace(
    H200,
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=85_000_000_000,
    l2_bytes=50 * 2**20,
    # The H200's curve slowed by the ratio of the two memories' datasheet bandwidths.
    copy_s=tuple(
        (size, 2.5e-6 + (s - 2.5e-6) * _H200_PEAK / _PEAKS[90]) for size, s in H200.copy_s
    ),
)

A100 = replace(
    H200,
    name="NVIDIA A100-SXM4-80GB",
    sm_count=108,
    memory_bytes=85_000_000_000,
    capability=80,
    l2_bytes=40 * 2**20,
    clock_hz=1.41e9,
    copy_s=tuple(
        (size, 2.5e-6 + (s - 2.5e-6) * _H200_PEAK / _PEAKS[80]) for size, s in H200.copy_s
    ),
    l2_bandwidth=4.0e12,
    fma_rate=64.0,
    div_rate=8.0,
    libdevice_rate=64.0 / 22.0,
    tensor_flops=280e12,
    shared_per_sm=164 * 1024,
    waits=H200.waits.at_clock(1.41 / 1.755),
)

CPU = replace(H200, name="interpreter", sm_count=1, memory_bytes=0)
"""Stands for Triton's interpreter: kernels are planned as for an H200 and run on the CPU."""


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A GPU as `torch.cuda.get_device_properties` reports it, from NVIDIA's data sheet. Clocks are
    in kHz, the width of the memory's bus in bits."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int


_TENSOR_RATE = {80: 2048, 86: 512, 87: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 120: 1024}
"""Operations per SM and clock cycle of 16-bit matrix products, by compute capability, from NVIDIA's
architecture papers. Of others those of the next lower capability count."""

_GEFORCE = 0.5
"""Part of it that GeForce cards have where sums are in float32 (NVIDIA's paper on the Ada
architecture: 165 TFLOP/s of an RTX 4090 in place of 330)."""

_BLOCKS = {80: 32, 86: 16, 89: 24, 90: 32, 120: 24}
"""Programs that an SM holds, by compute capability, from the CUDA programming guide."""

_REACHED = 0.8
"""Part of that rate that the vendor's best matrix product reaches on the H200."""


def _of_capability(table: Mapping[int, int], capability: int) -> int:
    return max((known, figure) for known, figure in table.items() if known <= capability)[1]


def scaled(found: Any) -> DeviceProfile:
    """An estimate for a GPU that was not measured, from what CUDA reports of it (`found`, of
    torch.cuda.get_device_properties) or from its data sheet: an A100 or H100 scaled by SM count,
    clock, memory clock and bus width. What this torch does not report counts as the base's."""
    capability = found.major * 10 + found.minor
    base = H100 if capability >= 90 else A100
    peak = _PEAKS[base.capability] * 1e12
    clock_hz = 1e3 * getattr(found, "clock_rate", 0) or base.clock_hz  # reported in kHz
    # Memory moves data twice per clock cycle; the bus width is in bits.
    memory_hz, bits = getattr(found, "memory_clock_rate", 0), getattr(found, "memory_bus_width", 0)
    slower = peak / (2 * 1e3 * memory_hz * bits / 8) if memory_hz and bits else 1.0
    arithmetic = found.multi_processor_count * clock_hz / (base.sm_count * base.clock_hz)
    rate = _REACHED * _of_capability(_TENSOR_RATE, capability)
    rate *= _GEFORCE if "GeForce" in found.name else 1.0
    doubled = 2.0 if base is A100 and capability > 80 else 1.0  # twice the A100's float32 units
    return replace(
        base,
        name=found.name,
        sm_count=found.multi_processor_count,
        memory_bytes=found.total_memory,
        capability=capability,
        l2_bytes=getattr(found, "L2_cache_size", 0) or base.l2_bytes,
        clock_hz=clock_hz,
        copy_s=tuple((n, base.launch_s + (s - base.launch_s) * slower) for n, s in base.copy_s),
        l2_bandwidth=base.l2_bandwidth * arithmetic,
        fma_rate=base.fma_rate * doubled,
        div_rate=base.div_rate * doubled,
        libdevice_rate=base.libdevice_rate * doubled,
        tensor_flops=rate * found.multi_processor_count * clock_hz,
        registers_per_sm=getattr(found, "regs_per_multiprocessor", base.registers_per_sm),
        threads_per_sm=getattr(found, "max_threads_per_multi_processor", base.threads_per_sm),
        shared_per_sm=getattr(found, "shared_memory_per_multiprocessor", base.shared_per_sm),
        blocks_per_sm=_of_capability(_BLOCKS, capability),
        waits=base.waits.at_clock(clock_hz / base.clock_hz),
        estimated=True,
    )


_KB, _MIB = 1024, 2**20

L4 = scaled(
    DataSheet(
        name="NVIDIA L4",
        major=8,
        minor=9,
        multi_processor_count=58,
        total_memory=23_800_000_000,
        L2_cache_size=48 * _MIB,
        clock_rate=2_040_000,
        memory_clock_rate=6_251_000,
        memory_bus_width=192,
        max_threads_per_multi_processor=1536,
        shared_memory_per_multiprocessor=100 * _KB,
    )
)

RTX_4090 = scaled(
    DataSheet(
        name="NVIDIA GeForce RTX 4090",
        major=8,
        minor=9,
        multi_processor_count=128,
        total_memory=25_390_000_000,
        L2_cache_size=72 * _MIB,
        clock_rate=2_520_000,
        memory_clock_rate=10_501_000,
        memory_bus_width=384,
        max_threads_per_multi_processor=1536,
        shared_memory_per_multiprocessor=100 * _KB,
    )
)

B200 = scaled(
    DataSheet(
        name="NVIDIA B200",
        major=10,
        minor=0,
        multi_processor_count=148,
        total_memory=191_500_000_000,
        L2_cache_size=126 * _MIB,
        clock_rate=1_965_000,
        memory_clock_rate=3_906_000,
        memory_bus_width=8192,
        max_threads_per_multi_processor=2048,
        shared_memory_per_multiprocessor=228 * _KB,
    )
)

BUILTIN = {
    "h200": H200,
    "h100": H100,
    "a100": A100,
    "l4": L4,
    "rtx4090": RTX_4090,
    "b200": B200,
}


def builtin(name: str) -> DeviceProfile:
    """A built-in profile by its short name. Raises DeviceError for an unknown one."""
    try:
        return BUILTIN[name.lower()]
    except KeyError:
        known = ", ".join(BUILTIN)
        raise DeviceError(f"unknown target {name!r}; known targets: {known}") from None


def shipped(data: Mapping[str, Any]) -> DeviceProfile:
    """The profile that comes with this version for a device that a store knows by an earlier
    profile: the rates are today's, the sizes the device's own. Raises ValueError on no profile."""
    known = {f.name: data[f.name] for f in fields(DeviceProfile) if f.name in data}
    found = DeviceProfile.from_json(known)
    base = next((p for p in BUILTIN.values() if p.name == found.name), None)
    if base is None and found.estimated:
        return found  # The device is not at hand to be asked for its clocks again.
    sizes = {name: getattr(found, name) for name in _SIZES}
    return replace(base or H100, **sizes, estimated=base is None or base.estimated)


def profile_of(device: torch.device) -> DeviceProfile:
    """The profile of a device at hand: the built-in one of its name, else one scaled from its own
    clocks and sizes. Raises DeviceError for a device kernels cannot run on."""
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise DeviceError(f"no kernels for device {device.type!r}; use a CUDA device")
    found = torch.cuda.get_device_properties(device)
    capability = found.major * 10 + found.minor
    if capability < 80:
        raise DeviceError(f"{found.name} has compute capability {capability / 10}; 8.0 is needed")
    base = next((p for p in BUILTIN.values() if p.name == found.name), None)
    return replace(
        base or scaled(found),
        name=found.name,
        sm_count=found.multi_processor_count,
        memory_bytes=found.total_memory,
        capability=capability,
        l2_bytes=getattr(found, "L2_cache_size", 0) or (base or H100).l2_bytes,
    )
