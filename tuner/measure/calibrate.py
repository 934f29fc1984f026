"""A device measured: bandwidth by size, launch, arithmetic by class, and matrix products.

What the cost model counts is timed by the kernels that it counts for: ours, generated from small
groups. A rate of arithmetic is the difference of two kernels that differ in nothing but the length
of a chain of one operation, so that loads, stores and the launch fall out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ...db.records import CalibrationRecord
from ...planner.config import Config
from ...planner.costs.cost import timed, total
from ...planner.costs.device import DeviceProfile
from ...planner.costs.work import work_of
from ...planner.errors import FusionplanError, Refusal
from ...planner.graph.graph import INPUT, Arg, Graph, Node, Ref, TensorType
from ...planner.nests.group_nests import schedule_group
from ...planner.runtime.machine_code.compile import CompileFailed
from ...planner.space.space import Space, space_of
from ..trial.inputs import empty
from ..trial.outcome import Candidate
from ..trial.running import load, output_types
from .timing import Timer, stopwatch_for

SECONDS = 60.0
_MB = 2**20
_STREAMED = (2, 8, 16, 64, 256, 1024, 4096)
"""MiB read and written in all. Beyond a tenth of the device's memory a size is left out."""
_CHAINS = {
    "fma_rate": ("add.Tensor", (1.25,), (96, 192)),
    "sfu_rate": ("rsqrt.default", (), (24, 72)),
    "div_rate": ("div.Tensor", None, (24, 72)),
    "libdevice_rate": ("atan.default", (), (8, 24)),
}
"""Of each class the operation, its arguments (None: the second input), and the lengths compared:
both so long that arithmetic binds."""
_STREAMS = tuple(Config((("x0", size),), warps, 1) for size, warps in ((1024, 4), (2048, 4)))
_SHORT, _WIDE = 4096, 1 << 22
_ROWS, _ROW, _READERS = 2048, 1024, 64
"""float32 in the cache, by rows, and how often they are all read."""
_READS = tuple(
    Config((("x0", 1), ("x1", rows)), warps, 1) for rows, warps in ((2, 4), (4, 4), (8, 8))
)
"""A program reads few rows, all at once: many to an SM, so that none waits for long."""

_VENDOR = (4096, 8192)
_PRODUCTS = ((8192, 8192, 512), (4096, 4096, 4096))
_TRIED = 4


class Meter(Protocol):
    """Measures on a device; a test brings its own."""

    def kernel(self, group: Graph, config: Config) -> float:
        """Seconds of a generated kernel, cold cache. Raises FusionplanError where it cannot run."""

    def product(self, size: int) -> float:
        """Seconds of the vendor's product of two square matrices, bfloat16."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the profile: what it was, and what was measured. unit: of both."""

    name: str
    before: float
    measured: float
    unit: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measured profile. skipped: what time did not allow for, or why it could not run; its
    figures stay as they were."""

    profile: DeviceProfile
    figures: tuple[Figure, ...]
    skipped: tuple[str, ...]
    seconds: float

    def record(self) -> CalibrationRecord:
        """As the store keeps it."""
        evidence = {
            "figures": {f.name: [f.before, f.measured] for f in self.figures},
            "skipped": list(self.skipped),
            "seconds": round(self.seconds, 3),
        }
        return CalibrationRecord(
            device_key=self.profile.key,
            source="measured",
            profile=self.profile.to_json(),
            evidence=evidence,
        )


def calibrate(
    meter: Meter,
    profile: DeviceProfile,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measure the device, the most telling figures first. seconds: after so many nothing more is
    begun."""
    job = _Calibration(meter, profile, profile, clock, clock() + seconds)
    started = clock()
    job.attempt("bandwidth", job.bandwidth)
    for name in _CHAINS:
        job.attempt(name, lambda name=name: job.arithmetic(name))  # type: ignore[misc]
    job.attempt("l2_bandwidth", job.l2_bandwidth)
    job.attempt("tensor_flops", job.vendor)
    job.attempt("generated", job.generated)
    known = replace(job.profile, estimated=False)
    return Calibration(known, tuple(job.figures), tuple(job.skipped), clock() - started)


class _Calibration:
    """One calibration: the profile as far as it is measured."""

    def __init__(
        self,
        meter: Meter,
        profile: DeviceProfile,
        before: DeviceProfile,
        clock: Callable[[], float],
        until: float,
    ) -> None:
        self.meter, self.profile, self.before = meter, profile, before
        self.clock, self.until = clock, until
        self.figures: list[Figure] = []
        self.skipped: list[str] = []

    def attempt(self, name: str, measure: Callable[[], None]) -> None:
        if self.clock() > self.until:
            self.skipped.append(f"{name}: no time was left")
            return
        try:
            measure()
        except (FusionplanError, CompileFailed, torch.OutOfMemoryError) as error:
            self.skipped.append(f"{name}: {' '.join(str(error).split())}")

    def _set(self, name: str, value: float, unit: str) -> None:
        if not (math.isfinite(value) and value > 0):
            raise FusionplanError(f"{value:g} {unit} was measured, which cannot be")
        before = getattr(self.before, name)
        self.figures.append(Figure(name, before, value, unit))
        changed: dict[str, Any] = {name: value}
        self.profile = replace(self.profile, **changed)

    def bandwidth(self) -> None:
        """The curve of streaming kernels; the launch is a kernel that waits for memory once."""
        shortest = self._pointwise(_SHORT, "relu.default", (), 1)
        self._set("launch_s", shortest - self.profile.latency_s, "s")
        curve: list[tuple[float, float]] = []
        most = self.profile.memory_bytes / 10
        for size in (float(s * _MB) for s in _STREAMED if s * _MB <= most):
            if self.clock() > self.until and len(curve) > 1:
                self.skipped.append("bandwidth: the largest sizes")
                break
            found = self._pointwise(int(size) // 8, "relu.default", (), 1)
            # A larger copy is never faster: what says so is noise.
            least = curve[-1][1] * 1.001 if curve else self.profile.launch_s * 1.001
            curve.append((size, max(found, least)))
        before = self.before.bandwidth
        self.profile = replace(self.profile, copy_s=tuple(curve))
        self.figures.append(Figure("bandwidth", before, self.profile.bandwidth, "bytes/s"))

    def l2_bandwidth(self) -> None:
        """The same rows read again and again by different programs. That takes arithmetic too:
        the bandwidth is the one with which the cost model expects what was measured."""
        from scipy.optimize import brentq

        b = _GroupBuilder()
        x, scale = b.input(_ROWS, _ROW), b.input(_READERS, 1, 1)
        product = b.op("mul.Tensor", x, scale, shape=(_READERS, _ROWS, _ROW))
        group = b.graph(b.op("amax.default", product, (2,), shape=(_READERS, _ROWS)))
        found = [(self.meter.kernel(group, config), config) for config in _READS]
        seconds, config = min(found, key=lambda pair: pair[0])
        work = self._work(group, config)

        def slower(logarithm: float) -> float:
            profile = replace(self.profile, l2_bandwidth=math.exp(logarithm))
            return timed(work, profile).seconds - seconds

        least = work.l2_bytes / (seconds - self.profile.launch_s)
        low, high = math.log(least), math.log(least * 8)
        is_between = slower(low) > 0 > slower(high)
        rate = math.exp(brentq(slower, low, high)) if is_between else least
        if rate < self.profile.bandwidth:
            raise FusionplanError(
                f"{rate:.3g} bytes/s are less than the memory's: the kernel waited for something "
                "else than the cache"
            )
        self._set("l2_bandwidth", rate, "bytes/s")

    def arithmetic(self, name: str) -> None:
        """Results of one SM in a clock cycle."""
        op, more, lengths = _CHAINS[name]
        short, long = (self._pointwise(_WIDE, op, more, n) for n in lengths)
        if long <= short:
            raise FusionplanError("a longer chain took no longer")
        per_second = (lengths[1] - lengths[0]) * _WIDE / (long - short)
        rate = per_second / (self.profile.sm_count * self.profile.clock_hz)
        self._set(name, rate, "results/cycle")

    def vendor(self) -> None:
        """The vendor's large products reach `vendor` of what the cost model calls its best."""
        rates = [2.0 * n**3 / self.meter.product(n) for n in _VENDOR]
        self._set("tensor_flops", max(rates) / self.profile.vendor, "1/s")

    def generated(self) -> None:
        """How our products compare with what the cost model expects of them by now."""
        ratios = []
        for m, n, k in _PRODUCTS:
            b = _GroupBuilder("bfloat16")
            group = b.graph(b.op("mm.default", b.input(m, k), b.input(k, n), shape=(m, n)))
            measured, config = self._best(group)
            expected = total([timed(self._work(group, config), self.profile)]).seconds
            ratios.append(measured / expected)
        self._set("generated", statistics.geometric_mean(ratios), "of the expected")

    def _pointwise(self, size: int, op: str, more: tuple[Arg, ...] | None, length: int) -> float:
        """Seconds of a kernel that applies the operation so often to float32 in memory."""
        b = _GroupBuilder()
        x = b.input(size)
        given: tuple[Arg, ...] = (b.input(1),) if more is None else more
        for _ in range(length):
            x = b.op(op, x, *given, shape=(size,))
        group = b.graph(x)
        return min(self.meter.kernel(group, config) for config in _STREAMS)

    def _best(self, group: Graph) -> tuple[float, Config]:
        """The fastest of a few configs that the model likes."""
        space = space_of(group, self.profile)
        if isinstance(space, Refusal):
            raise FusionplanError(f"no kernel: {space.reason}")
        assert isinstance(space, Space)
        judged = space.seeds(16 * _TRIED)
        configs = [config for config, cost in judged if cost.launches == 1][:_TRIED]
        if not configs:
            raise FusionplanError("the model has no config for it")
        found = [(self.meter.kernel(group, config), config) for config in configs]
        return min(found, key=lambda pair: pair[0])

    def _work(self, group: Graph, config: Config) -> Any:
        found = schedule_group(group, config.layout)
        assert not isinstance(found, Refusal)
        return work_of(found.kernels[0].nest, config, self.profile)


class _GroupBuilder:
    """A small group, node after node; all tensors dense and of one dtype."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.nodes: list[Node] = []

    def input(self, *shape: int) -> Ref:
        return self._node(INPUT, (), shape)

    def op(self, name: str, *args: Arg, shape: tuple[int, ...]) -> Ref:
        return self._node(f"aten.{name}", args, shape)

    def graph(self, output: Ref) -> Graph:
        return Graph(tuple(self.nodes), (output.node,))

    def _node(self, op: str, args: tuple[Arg, ...], shape: Sequence[int]) -> Ref:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        kind = TensorType(tuple(shape), tuple(strides), self.dtype)
        number = len(self.nodes)
        self.nodes.append(Node(number, f"n{number}", op, args, (), kind))
        return Ref(number)


class DeviceMeter:
    """Measures on a CUDA device, in this process."""

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        self.device = device
        self.timer = Timer(stopwatch_for(device, l2_bytes), most=200)

    def kernel(self, group: Graph, config: Config) -> float:
        found = load(group, Candidate.generated(config), self.device)
        if isinstance(found, Refusal):
            raise FusionplanError(f"no kernel: {found.reason}")
        inputs = [self._filled(group.nodes[n].type) for n in group.inputs]
        outputs = [empty(kind, self.device) for kind in output_types(group)]
        return self.timer.measure(found.bind(inputs, outputs), budget_s=0.02).seconds

    def product(self, size: int) -> float:
        a, b = (self._filled(TensorType((size, size), (size, 1), "bfloat16")) for _ in range(2))
        return self.timer.measure(lambda: torch.mm(a, b), budget_s=0.05).seconds

    def _filled(self, kind: TensorType | None) -> torch.Tensor:
        assert kind is not None
        # Zeros would spare the device power, and with it time.
        return empty(kind, self.device).uniform_(0.5, 1.5)
