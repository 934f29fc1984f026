"""The host's time for a call of one small generated kernel, by each way of calling it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..api import load
from ..planner.costs.device import profile_of
from ..planner.covers.cover import modelled_plan
from ..planner.errors import FusionplanError
from ..planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from ..planner.runtime.execution.executor import Executor
from ..tuner.capture.capture_model import CallArguments, capture_model
from ..tuner.measure.timing import TimedCall
from .measure import machine
from .result import HostCost, HostCosts
from .workloads import WORKLOADS, make

SIZES = (1024, 2**19)
"""Elements (float32): a call that the host alone limits, and one of a few microseconds."""

CALLS = 2000
BEST_OF = 5
WARM_UP = 10

EXECUTOR = "executor"
REPLAY = "executor, CUDA graph"
LOADED = "fusionplan.load"
LOADED_REPLAY = "fusionplan.load, CUDA graph"
COMPILED = "torch.compile"
COMPILED_REPLAY = "torch.compile, reduce-overhead"
ATEN = "one ATen operation"


def host_costs(device: torch.device) -> HostCosts:
    """Of the article's chain, by the cost model's plan: nothing is tuned."""
    found = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for elements in SIZES:
            # Else the second size would make torch.compile's guards those of any size.
            torch._dynamo.reset()
            calls = calls_by_way(elements, device, str(Path(folder) / "none.db"))
            found.append(HostCost(elements, {n: microseconds(c, device) for n, c in calls.items()}))
    return HostCosts(machine(device), tuple(found))


def calls_by_way(elements: int, device: torch.device, store: str) -> dict[str, TimedCall]:
    """The same computation, called in each way; `store` has no plan. Graphs and the modes of
    torch.compile only on a GPU."""
    model, _ = make(WORKLOADS["article_chain"], "meta")
    x = torch.randn(elements, device=device)
    calls: dict[str, TimedCall] = {}

    def through(name: str, function: Callable[..., Any]) -> None:
        calls[name] = lambda: function(x)

    executor, graphed = _executor(model, x, device), _executor(model, x, device)
    calls[EXECUTOR] = lambda: executor.boxed([x])
    through(LOADED, load(model, store=store, on_miss="model", dynamic=False))
    if device.type == "cuda":
        replay = GraphedExecutor(graphed)
        calls[REPLAY] = lambda: replay.boxed([x])
        options: Any = {"store": store, "on_miss": "model", "dynamic": False}
        through(LOADED_REPLAY, load(model, cudagraph=True, **options))
        through(COMPILED, torch.compile(model, dynamic=False))
        through(COMPILED_REPLAY, torch.compile(model, dynamic=False, mode="reduce-overhead"))
    through(ATEN, torch.relu)
    return calls


def microseconds(
    call: TimedCall,
    device: torch.device,
    *,
    calls: int = CALLS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Of a call: the best of five runs of many calls each. The device is waited for between the
    runs, not in them; it must be faster than the host."""
    for _ in range(WARM_UP):
        call()
    best = float("inf")
    for _ in range(BEST_OF):
        _wait(device)
        start = clock()
        for _ in range(calls):
            call()
        best = min(best, clock() - start)
    _wait(device)
    return best / calls * 1e6


def _executor(model: Callable[..., Any], x: torch.Tensor, device: torch.device) -> Executor:
    (part,) = capture_model(model, CallArguments((x,))).parts
    plan = modelled_plan(part.captured.graph, profile_of(device))
    executor = Executor(part.captured, plan, device)
    if executor.kernels_per_call != 1:
        raise FusionplanError(f"the chain takes {executor.kernels_per_call} kernels, not one")
    return executor


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
