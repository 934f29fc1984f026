"""`python -m fusionplan.bench.decode`: a step of generating text, one token for each sequence.

A language model with random weights, written the plain way with keys and values in preallocated
caches (`bench.decode_models`). Each way of running its step is timed on the GPU with the same
position, all of them in turns: eager, the modes of torch.compile, and the cost model's plan as a
CUDA graph, with launches that overlap and without. The least is the time to read the weights, and
as much of the caches as is filled, once.

--kernels adds a table of the plan's kernels, --host what a call costs the host in each way, --tune
a plan that was tuned; --tokens compares what is generated with eager's tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..api import load
from ..api import step as loaded_step
from ..planner.costs.device import profile_of
from ..planner.covers.cover import modelled_plan
from ..planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from ..planner.runtime.execution.executor import Executor
from ..planner.runtime.execution.overlapping import overlapping
from ..tuner.capture.capture_model import CallArguments, capture_model
from .decode_models import GEOMETRIES, DecodeStep, given, made
from .decode_tokens import compared

READ = {"NVIDIA H200": 4.3e12, "NVIDIA H100 80GB HBM3": 3.0e12}
"""Bytes a second that a kernel reads at best, by the name of the GPU."""

MODES = ("default", "reduce-overhead", "max-autotune")
OURS = "ours, overlapping"
_WARM_UP, _TURNS, _CALLS, _RUNS = 3, 30, 20, 5

Call = Callable[[], object]


def ways(
    model: DecodeStep, inputs: Sequence[torch.Tensor], modes: Sequence[str], seconds: float = 0.0
) -> Iterator[tuple[str, Callable[[], Call]]]:
    """The name of each way to run the step, and what makes a call of it. seconds: of a tune, whose
    plan is one more; 0: there is none."""
    yield "eager", lambda: partial(model, *inputs)
    for overlaps in (False, True):
        yield OURS if overlaps else "ours", partial(planned, model, inputs, overlaps)
    if seconds:
        yield "ours, tuned", partial(tuned, model, inputs, seconds)
    for mode in modes:
        yield f"torch.compile {mode}", partial(compiled, model, inputs, mode)


def compiled(model: DecodeStep, inputs: Sequence[torch.Tensor], mode: str) -> Call:
    torch._dynamo.reset()
    run = torch.compile(model, mode=mode, dynamic=False)
    return lambda: run(*inputs)


def planned(model: DecodeStep, inputs: Sequence[torch.Tensor], overlaps: bool) -> Call:
    """The cost model's plan of the step as a CUDA graph."""
    torch._dynamo.reset()
    (part,) = capture_model(model, CallArguments(tuple(inputs))).parts
    device, graph = part.captured.device, part.captured.graph
    profile = profile_of(device)
    plan = modelled_plan(graph, profile)
    if overlaps:
        plan = overlapping(plan, graph, profile, torch.cuda.get_device_capability(device))
    graphed = GraphedExecutor(Executor(part.captured, plan, device))
    return lambda: graphed(*part.inputs)


def tuned(model: DecodeStep, inputs: Sequence[torch.Tensor], seconds: float) -> Call:
    """The model loaded with the plan of a tune, whose time is printed."""
    from ..tuning import tune

    torch._dynamo.reset()
    store = str(Path(tempfile.mkdtemp(prefix="fusionplan-decode-")) / "plans.db")
    start = time.perf_counter()
    tune(model, tuple(inputs), seconds=seconds, store=store, progress=False)
    print(f"the tune took {time.perf_counter() - start:.1f} s, of {seconds:.0f}", flush=True)
    torch._dynamo.reset()
    run = load(model, store=store, on_miss="error", dynamic=False)
    return lambda: run(*inputs)


def _begin_step() -> None:
    """Lets torch.compile's CUDA graphs write over the results of their last call."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def microseconds(calls: Mapping[str, Call], turns: int = _TURNS) -> dict[str, float]:
    """Medians of the device's time for a call of each, taken in turns, the launches queued behind a
    wait."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(_WARM_UP + turns):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            _begin_step()
            torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
            start.record()
            calls[name]()
            end.record()
            end.synchronize()
            if turn >= _WARM_UP:
                times[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def host_microseconds(call: Call) -> float:
    """The host's time for a call: the best of a few runs of calls that nobody waits for."""
    best = float("inf")
    for _ in range(_RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return best / _CALLS * 1e6


def host_calls(
    model: DecodeStep, inputs: Sequence[torch.Tensor], known: Mapping[str, Call]
) -> dict[str, Call]:
    """The ways to call the step whose cost to the host is compared."""
    torch._dynamo.reset()
    run = load(model, on_miss="model", evidence="any", cudagraph=True, dynamic=False)
    calls = {name: call for name, call in known.items() if name != "ours"}
    calls["fusionplan.load"] = lambda: run(*inputs)
    step = loaded_step(model, on_miss="model", evidence="any")
    calls["fusionplan.step"] = lambda: step(*inputs)
    for call in calls.values():
        for _ in range(_WARM_UP):
            _begin_step()
            call()
    return calls


def kernels(call: Call) -> list[tuple[str, int, float]]:
    """Of a call's kernels the name, how often one runs, and its microseconds, those that take most
    in all first."""
    for _ in range(_WARM_UP):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_RUNS):
            call()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profile.events() or ():
        if event.device_type.name == "CUDA":
            times.setdefault(event.name, []).append(event.device_time)
    found = [
        (name, len(each) // _RUNS, statistics.median(each))
        for name, each in times.items()
        if len(each) >= _RUNS
    ]
    return sorted(found, key=lambda each: -each[1] * each[2])


def shown(batch: int, least: float, took: Mapping[str, float]) -> Iterator[str]:
    """The rows of the table for a batch."""
    yield f"| {batch} | the least | {least:.1f} | 1.00 |"
    for name, each in took.items():
        yield f"| {batch} | {name} | {each:.1f} | {each / least:.2f} |"


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fusionplan.bench.decode", description=__doc__)
    parser.add_argument("--model", choices=list(GEOMETRIES), default="llama-3.2-1b")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--position", type=int, default=160)
    parser.add_argument("--layers", type=int, help="fewer or more than the model has")
    parser.add_argument(
        "--weights", choices=("bfloat16", "int8", "int4", "float8"), nargs="+", default=["bfloat16"]
    )
    parser.add_argument(
        "--head", action="store_true", help="the head has weights of its own, kept as the layers'"
    )
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--without", nargs="*", default=[], help="ways that are left out, by name")
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel")
    parser.add_argument("--host", action="store_true", help="the host's time for a call")
    parser.add_argument(
        "--tokens", type=int, default=0, help="generate so many and compare them with eager's"
    )
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace, batch: int, weights: Any, read: float) -> None:
    """Time, and print, one model in all ways."""
    of, device = GEOMETRIES[options.model], torch.device("cuda")
    of = replace(of, layers=options.layers or of.layers)
    model = made(of, batch, device, weights, packs_head=options.head)
    inputs = given(of, batch, options.position, device)
    calls: dict[str, Call] = {}
    for name, make in ways(model, inputs, options.modes, options.tune):
        if name not in options.without:
            start = time.perf_counter()
            calls[name] = make()
            calls[name]()
            torch.cuda.synchronize()
            print(f"{name}: ready after {time.perf_counter() - start:.1f} s", file=sys.stderr)
    least = model.nbytes(options.position) / read * 1e6
    kept = f"{weights} weights, {'the head too' if options.head else 'the head in bfloat16'}"
    print(f"{options.model}, {kept}\n\n| batch | way | us a step | of the least |")
    print("| ---: | --- | ---: | ---: |", flush=True)
    for line in shown(batch, least, microseconds(calls)):
        print(line, flush=True)
    # Launched to overlap, a kernel's time includes its wait for the one before.
    ours = calls.get("ours", calls.get(OURS))
    if options.kernels and ours is not None:
        print("\n| kernel | a step has | us each | us in all |\n| --- | ---: | ---: | ---: |")
        for name, count, each in kernels(ours):
            print(f"| {name} | {count} | {each:.1f} | {count * each:.0f} |", flush=True)
    if options.host:
        print("\n| way | us of the host |\n| --- | ---: |")
        for name, call in host_calls(model, inputs, calls).items():
            print(f"| {name} | {host_microseconds(call):.1f} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: there is no GPU."""
    options = arguments_of(arguments)
    if not torch.cuda.is_available():
        print("bench.decode: there is no GPU", file=sys.stderr)
        return 1
    profile = profile_of(torch.device("cuda"))
    print(json.dumps({**asdict(GEOMETRIES[options.model]), "device": profile.name}))
    with torch.no_grad():
        if options.tokens:
            for dtype in (torch.float32, torch.bfloat16):
                of = GEOMETRIES[options.model]
                of = replace(of, layers=options.layers or of.layers)
                for line in compared(of, options.batch[0], options.tokens, dtype):
                    print(line, flush=True)
            return 0
        for batch in options.batch:
            for weights in options.weights:
                measured(options, batch, weights, READ.get(profile.name, profile.bandwidth))
    return 0


if __name__ == "__main__":
    sys.exit(main())
