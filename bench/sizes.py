"""`python -m fusionplan.bench.sizes`: what it costs that sizes vary.

For each function and size, by the cost model's plans: the first call with that size, which lowers
and perhaps compiles; and a call by kernels that take sizes as arguments beside one by kernels made
for this very size, interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..api import load
from ..planner.costs.device import profile_of
from ..planner.errors import FusionplanError
from ..planner.runtime.machine_code.compile import compilations
from ..tuner.measure.timing import stopwatch_for
from .command_line import parser_of, run_each

ROUNDS = 30
SIZES = (4096, 3072, 2064, 4001, 3001)
"""Of two buckets: multiples of 16, and others."""


@dataclass(frozen=True, slots=True)
class SizeTimes:
    """first_s: of the first call with the size; compiled: kernels that it compiled. varying_s,
    static_s: of a call after that, by each kind of kernel."""

    name: str
    size: int
    first_s: float
    compiled: int
    varying_s: float
    static_s: float

    def __str__(self) -> str:
        ratio = self.varying_s / self.static_s
        return (
            f"{self.name:12} {self.size:6} first {self.first_s * 1e3:8.1f} ms, "
            f"compiled {self.compiled}; call {self.varying_s * 1e6:8.1f} us, "
            f"static {self.static_s * 1e6:8.1f} us, ratio {ratio:.3f}"
        )


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT) / 8, -1) @ v


def _rows(n: int) -> list[tuple[int, ...]]:
    return [(n, 4096)]


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], list[tuple[int, ...]]], int]] = {
    "gelu": (lambda x, y: F.gelu(x) + y, lambda n: [(n, 4096), (n, 4096)], 0),
    "layer_norm": (lambda x: F.layer_norm(x, (x.shape[-1],)), lambda n: [(8192, n)], 1),
    "softmax": (lambda x: x.softmax(-1), lambda n: [(8192, n)], 1),
    "mean": (lambda x: (x * x).mean(0), _rows, 0),
    "linear_gelu": (lambda x, w: F.gelu(F.linear(x, w)), lambda n: [(n, 128), (4096, 128)], 0),
    "attention": (_attention, lambda n: [(16, n, 64)] * 3, 1),
}
"""The function, the shapes of its inputs for a size, and the dimension that it is of those that
have it."""


def costs(
    name: str, sizes: Sequence[int], device: torch.device, rounds: int
) -> Iterator[SizeTimes]:
    """Of one function at each size. Raises FusionplanError where its result is not eager's."""
    function, shapes, dim = FUNCTIONS[name]
    stopwatch = stopwatch_for(device, profile_of(device).l2_bytes)
    limits = torch._dynamo.config.patch(recompile_limit=2 * len(sizes) + 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), limits:
        options: Any = {"store": str(Path(folder) / "none.db"), "on_miss": "model"}
        torch._dynamo.reset()
        varying = load(function, **options)
        for size in sizes:
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            inputs = [torch.randn(s, device=device, dtype=dtype) for s in shapes(size)]
            # A function of its own: Dynamo keeps what it has compiled by function.
            static = load(lambda *given: function(*given), dynamic=False, **options)  # noqa: PLW0108
            static(*(x.clone() for x in inputs))
            for x in inputs:
                if x.shape[dim] == size:
                    torch._dynamo.mark_dynamic(x, dim)
            before, start = compilations(), time.perf_counter()
            result = varying(*inputs)
            first = time.perf_counter() - start
            compiled = compilations() - before
            if not torch.allclose(result, function(*inputs), rtol=2e-2, atol=2e-2):
                raise FusionplanError(f"{name} at {size}: the result is not eager's")
            plain = [x.clone() for x in inputs]
            pair = [lambda: varying(*inputs), lambda: static(*plain)]  # noqa: B023 - called here
            laps = [stopwatch.laps(pair) for _ in range(rounds)]
            mine, other = (statistics.median(each) for each in zip(*laps, strict=True))
            yield SizeTimes(name, size, first, compiled, mine, other)


def _told(name: str, device: torch.device, options: argparse.Namespace) -> None:
    for cost in costs(name, options.sizes, device, options.rounds):
        print(cost, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a result was wrong, or there is no device; 2: usage."""
    parser = parser_of(__doc__, FUNCTIONS, ROUNDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    return run_each(parser, arguments, FUNCTIONS, _told)


if __name__ == "__main__":
    sys.exit(main())
