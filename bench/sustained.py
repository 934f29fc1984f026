"""`python -m fusionplan.bench.sustained`: the rate that products and convolutions sustain.

The vendor's kernels on normally distributed bfloat16, one after the other for a second: a GPU that
works for so long lowers its clock, so that the first calls are faster. The last column is the part
of the rate that the device's least counts, of its profile.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..planner.costs.device import profile_of
from ..planner.costs.vendor_products import vendor_rate
from .command_line import NO_GPU, current_gpu, table_head

INPUTS = 4
"""Operands that calls take in turns."""
FIRST = 20
"""Calls of "the first calls", after a rest."""
SECONDS, REST_S = 1.0, 0.5

_BESIDE = torch.channels_last

Call = Callable[[int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class TimedProduct:
    """[rows, inner] by [inner, columns]."""

    rows: int
    inner: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.inner} x {self.columns}"

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.inner * self.columns

    def call(self, device: torch.device) -> Call:
        left = [_normal((self.rows, self.inner), device) for _ in range(INPUTS)]
        right = [_normal((self.columns, self.inner), device) for _ in range(INPUTS)]
        return lambda turn: left[turn] @ right[turn].t()


@dataclass(frozen=True, slots=True)
class TimedConvolution:
    """Of square images whose channels lie side by side, with a border of zeros that keeps their
    side."""

    images: int
    channels: int
    results: int
    side: int
    taps: int

    def __str__(self) -> str:
        channels = f"{self.channels} channels to {self.results}"
        return (
            f"{self.taps}x{self.taps}, {self.images} images, {channels}, {self.side} x {self.side}"
        )

    @property
    def flops(self) -> float:
        places = self.images * self.side**2
        return 2.0 * places * self.channels * self.results * self.taps**2

    def call(self, device: torch.device) -> Call:
        images = (self.images, self.channels, self.side, self.side)
        weights = (self.results, self.channels, self.taps, self.taps)
        given = [_normal(images, device).contiguous(memory_format=_BESIDE) for _ in range(INPUTS)]
        by = [_normal(weights, device).contiguous(memory_format=_BESIDE) for _ in range(INPUTS)]
        return lambda turn: F.conv2d(given[turn], by[turn], padding=self.taps // 2)


ASKED: tuple[TimedProduct | TimedConvolution, ...] = (
    TimedProduct(8192, 8192, 8192),
    TimedProduct(8192, 4096, 14336),
    TimedProduct(12608, 768, 3072),
    TimedProduct(12608, 3072, 768),
    TimedProduct(16384, 1024, 4096),
    TimedProduct(8192, 1024, 50304),
    TimedConvolution(64, 640, 640, 32, 3),
    TimedConvolution(64, 256, 256, 14, 3),
    TimedConvolution(64, 64, 64, 56, 3),
    TimedConvolution(64, 64, 256, 56, 1),
)


def _normal(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def rates(of: TimedProduct | TimedConvolution, device: torch.device) -> tuple[float, float]:
    """FLOP/s that are sustained, and of the first calls after a rest."""
    call = of.call(device)
    call(0)
    torch.cuda.synchronize(device)
    time.sleep(REST_S)
    first = of.flops / _seconds(call, FIRST)
    until = time.monotonic() + SECONDS
    laps: list[float] = []
    while time.monotonic() < until:
        laps.append(_seconds(call, FIRST))
    return of.flops / statistics.median(laps[len(laps) // 2 :]), first


def _seconds(call: Call, count: int) -> float:
    """Of one of so many calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for turn in range(count):
        call(turn % INPUTS)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


def main() -> int:
    """0: done; 3: no GPU."""
    device = current_gpu()
    if device is None:
        return NO_GPU
    least = vendor_rate("bfloat16", profile_of(device))
    print(torch.cuda.get_device_name(device), file=sys.stderr)
    print(
        table_head(("product or convolution", "sustained TFLOP/s", "first calls", "of the least's"))
    )
    torch.backends.cudnn.benchmark = True
    for of in ASKED:
        sustained, first = rates(of, device)
        cells = (f"{rate / 1e12:.0f}" for rate in (sustained, first))
        print(f"| {of} | {' | '.join(cells)} | {sustained / least:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
