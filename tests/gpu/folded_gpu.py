"""Convolutions with batch norm or bias, another image and relu as one call of cuDNN, on a real GPU:
are they right, and what do they take?

    PYTHONPATH=tests:tests/planner/regions python tests/gpu/folded_gpu.py [SECONDS]

Times are of CUDA graphs, in microseconds: eager, torch.compile's default (of the first shapes
alone), the model's plan, and the plan with the convolution folded.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from fusionplan.planner.costs.device import profile_of
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from test_fold_convolutions import Block, captured, plan_of

SHAPES = ((64, 56, 3), (128, 28, 3), (256, 14, 3), (512, 7, 3), (72, 19, 5))
"""Channels, side of the image and of the convolution."""
KINDS: tuple[dict[str, Any], ...] = ({}, {"added": 1}, {"norm": False, "bias": True})
BATCH = 32


def time_us(call: Callable[[], object]) -> float:
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(call, rep=20)) * 1e3


def one(
    shape: tuple[int, int, int], kind: dict[str, Any], dtype: torch.dtype, *, compiles: bool
) -> bool:
    """Prints a line; whether the numbers are right, or are for the gate to judge."""
    device = torch.device("cuda")
    channels, side, taps = shape
    flags = {k: v for k, v in kind.items() if k != "added"}
    block = Block(channels=channels, taps=taps, **flags).to(device, dtype)
    generator = torch.Generator(device).manual_seed(0)
    images = [
        torch.randn(
            BATCH, channels, side, side, device=device, dtype=dtype, generator=generator
        ).to(memory_format=torch.channels_last)
        for _ in range(1 + kind.get("added", 0))
    ]
    whole, given = captured(block, images)
    plan, _ = plan_of(whole.graph)
    usual = Executor(whole, modelled_plan(whole.graph, profile_of(device)), device)
    executor = Executor(whole, plan, device)
    wrong = check(expected(whole.graph, given, device), executor(*given), "these")
    with torch.no_grad():
        times = [time_us(lambda: block(*images))]
        fast: Any = torch.compile(block) if compiles else None
        if fast is not None:
            fast(*images)
        times.append(time_us(lambda: fast(*images)) if compiles else float("nan"))
    times += [time_us(lambda: usual(*given)), time_us(lambda: executor(*given))]
    least = (1 + len(images)) * images[0].nbytes / 3.0e12 * 1e6
    told = " ".join(f"{t:8.1f}" for t in times)
    name = f"{channels}x{side}x{side} by {taps}, {flags or 'norm'}, {len(images)} images"
    kernels = f"{executor.kernels_per_call} of ours"
    print(f"{name:<58} {str(dtype)[6:]:<9} {told} least {least:5.1f} {kernels}", flush=True)
    if wrong is not None:
        # A scaled weight is rounded once more: a tune keeps it where the gate lets it through.
        print(f"  {'the gate refuses it' if flags == {} else 'WRONG'}: {wrong}"[:200], flush=True)
    return wrong is None or flags == {}


def main(seconds: float) -> int:
    """0: all are right; 1: some are not, or fail; 2: no GPU."""
    if not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    print(torch.cuda.get_device_name(), "us: eager, torch.compile, model's plan, folded")
    start, failed, count = time.monotonic(), 0, 0
    for dtype, shape, kind in itertools.product((torch.bfloat16, torch.float16), SHAPES, KINDS):
        if time.monotonic() - start > seconds:
            break
        count += 1
        torch._dynamo.reset()
        compiles = dtype == torch.bfloat16 and shape in SHAPES[:2] and kind != KINDS[2]
        try:
            failed += not one(shape, kind, dtype, compiles=compiles)
        except Exception as error:  # noqa: BLE001 - the others are to be tried
            failed += 1
            print(f"{shape} {kind} {dtype}: {type(error).__name__}: {error}"[:300], flush=True)
    print(f"{count} convolutions, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
