"""Measuring one workload, in a process that only loads plans."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch.utils._pytree import tree_leaves, tree_map

from ..api import executors, load, plans
from ..planner.graph import INPUT
from ..planner.ops import is_free
from ..planner.plan import Plan
from ..planner.runtime.dispatch import NoPlan, OnMiss
from ..tuner.capture_model import Call as Arguments
from ..tuner.measure import Call, Interleaved, Timer, conditions, stopwatch_for
from ..tuner.model_peers import model_peers
from ..tuner.peers import Peers
from ..tuner.progress import Silent
from .result import EAGER, OURS, Accuracy, Against, Machine, Measured, Missing, Timing
from .workloads import Workload, make

ROUNDS = 100
PASSES = 2


class Notes(Silent):
    """Keeps what a person should know."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def note(self, text: str) -> None:
        self.kept.append(text)


def measure(
    workload: Workload,
    device: torch.device,
    store: str | None,
    budget_s: float,
    *,
    timer: Timer | None = None,
    on_miss: OnMiss = "error",
    **scale: int,
) -> Measured | Missing:
    """The workload by its stored plan, beside eager and the modes of torch.compile. budget_s:
    seconds of each of the two passes."""
    model, arguments = make(workload, str(device), **scale)
    fast = load(model, store=store, on_miss=on_miss)

    def ours() -> object:
        return arguments.run(fast)

    with torch.no_grad():
        try:
            ours()  # before the peers, which take long to compile
        except NoPlan as error:
            return Missing(str(error))
        notes = Notes()
        peers = Peers(model_peers(model, arguments, device.type == "cuda"), notes)
        peers.warm()
        accuracy = accuracy_of(model, arguments, ours)
        extra = {
            name: extra_bytes(c, device) for name, c in ((OURS, ours), (EAGER, peers.ready[EAGER]))
        }
        calls = {OURS: ours, **peers.ready}
        times, best = compare(calls, timer or _timer(device), budget_s)
    live = plans(fast)
    return Measured(
        workload.name,
        machine(device),
        times,
        best,
        accuracy,
        kernels=sum(runner.kernels_per_call for runner in executors(fast)),
        lowerings=lowerings(fast),
        plan="; ".join(_described(plan) for plan in live),
        cudagraph=any(plan.cudagraph for plan in live),
        extra_bytes=extra,
        conditions=conditions(device.index or 0) if device.type == "cuda" else {},
        notes=tuple(notes.kept),
    )


def compare(
    calls: Mapping[str, Call], timer: Timer, budget_s: float
) -> tuple[dict[str, Timing], Against]:
    """Interleaved times of all, in two passes, and ours against the best of the others."""
    passes = [timer.interleaved(calls, budget_s=budget_s) for _ in range(PASSES)]
    whole = Interleaved({n: [lap for p in passes for lap in p.laps[n]] for n in calls})
    times: dict[str, Timing] = {}
    for name in calls:
        total = whole.timing(name)
        each = tuple(p.timing(name).seconds for p in passes)
        times[name] = Timing(total.seconds, each, total.spread_s, total.laps)
    best = min((n for n in calls if n != OURS), key=lambda n: times[n].seconds)
    ratio = whole.ratio(OURS, best)
    return times, Against(best, ratio.median, ratio.low, ratio.high)


def accuracy_of(model: Callable[..., Any], arguments: Arguments, ours: Call) -> Accuracy:
    """Our error and eager's, against the model in float64. (A model that itself casts to float32
    is the reference only that far.)"""
    wide = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
    args, kwargs = tree_map(_widened, (arguments.args, dict(arguments.kwargs)))
    ideals = _tensors(wide(*args, **kwargs))
    eager, got = _tensors(arguments.run(model)), _tensors(ours())
    if len(eager) != len(got):
        return Accuracy(1.0, 0.0, f"{len(got)} results instead of {len(eager)}")
    worst = Accuracy(0.0, 0.0)
    for index, (ideal, theirs, mine) in enumerate(zip(ideals, eager, got, strict=True)):
        found = _accuracy(ideal, theirs, mine, f"result {index}")
        if found.problem:
            return found
        worst = max(worst, found, key=lambda a: a.ours)
    return worst


def _accuracy(ideal: torch.Tensor, eager: torch.Tensor, mine: torch.Tensor, what: str) -> Accuracy:
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return Accuracy(1.0, 0.0, f"{what} is {mine.dtype} {tuple(mine.shape)}")
    strange = int((~torch.isfinite(mine) & torch.isfinite(eager)).sum())
    strange += int((torch.isnan(mine) & ~torch.isnan(eager)).sum())
    if strange:
        return Accuracy(1.0, 0.0, f"{what} has {strange} elements that are not finite")
    mine_error, eager_error = (_error(t, ideal, eager) for t in (mine, eager))
    limit = 2 * eager_error + _allowance(eager.dtype)
    problem = f"{what}: error {mine_error:.3g}, eager's {eager_error:.3g}"
    return Accuracy(mine_error, eager_error, "" if mine_error <= limit else problem)


def _error(got: torch.Tensor, ideal: torch.Tensor, eager: torch.Tensor) -> float:
    """Root mean square of the errors, each relative to its element and the mean size of all."""
    judged = torch.isfinite(ideal) & torch.isfinite(got) & torch.isfinite(eager)
    value = ideal[judged].double()
    if not value.numel():
        return 0.0
    size = value.abs() + value.square().mean().sqrt()
    error = (got[judged].double() - value).abs() / torch.where(size > 0, size, 1.0)
    return float(error.square().mean().sqrt())


def _allowance(dtype: torch.dtype) -> float:
    """Half a unit in the last place, as eager may be exact by luck; some more in float32."""
    if not dtype.is_floating_point:
        return 0.0
    return max(16 * torch.finfo(torch.float32).eps, torch.finfo(dtype).eps / 2)


def extra_bytes(call: Call, device: torch.device) -> int:
    """The most memory that a call takes besides what was there; 0 where it is not counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def lowerings(fast: Any) -> tuple[str, ...]:
    """How the parts of the live plans run."""
    found = {group.lowering for plan in plans(fast) for group in plan.groups}
    for runner in executors(fast):
        inside = {node for group in runner.plan.groups for node in group.nodes}
        nodes = runner.captured.graph.nodes
        if any(n.op != INPUT and not is_free(n) and n.id not in inside for n in nodes):
            found.add("aten")
    return tuple(sorted(found)) or ("aten",)


def machine(device: torch.device) -> Machine:
    """The device and the versions that figures depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    python = platform.python_version()
    return Machine(name, torch.__version__, triton.__version__, python, _driver())


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return ""
    except pynvml.NVMLError:
        return ""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _timer(device: torch.device) -> Timer:
    if device.type != "cuda":
        return Timer(stopwatch_for(device), least=ROUNDS)
    l2_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return Timer(stopwatch_for(device, l2_bytes), least=ROUNDS)


def _described(plan: Plan) -> str:
    groups = [f"{g.lowering} {g.config or g.options}".strip() for g in plan.groups]
    return ", ".join(groups) or "eager"


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _widened(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value
