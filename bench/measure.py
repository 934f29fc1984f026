"""Measuring one workload, in a process that only loads plans."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch.utils._pytree import tree_leaves, tree_map

from ..api import executors, load, plans
from ..planner.costs.device import profile_of
from ..planner.errors import FusionplanError
from ..planner.graph.graph import INPUT
from ..planner.graph.ops import is_free
from ..planner.lowerings.inductor import MODES
from ..planner.lowerings.registry import ATEN
from ..planner.plan import Plan
from ..planner.runtime.dispatch.leaving import NoPlan
from ..planner.runtime.dispatch.plan_runners import OnMiss
from ..tuner.capture.capture_model import CallArguments, describe
from ..tuner.capture.rotating_inputs import RotatingInputs
from ..tuner.decision.baselines import Baselines, model_baselines, through
from ..tuner.measure.contest import TurnCall
from ..tuner.measure.timing import Interleaved, TimedCall, Timer, conditions, stopwatch_for
from ..tuner.measure.turns import turn
from ..tuner.progress.progress import Silent
from .at_once import wait_for_the_others
from .result import (
    EAGER,
    OURS,
    REWRITTEN,
    ROUNDS,
    Against,
    Errors,
    Machine,
    MeasuredWorkload,
    Missing,
    Timing,
)
from .workloads import Workload, make, make_rewritten

HALVES = 2

IN_FLOAT64 = "float64"
"""The turn of the models that are computed in float64, which takes much of a GPU's memory: where
several processes share it, one at a time."""

REWRITTEN_MODE = "max-autotune-no-cudagraphs"
"""Of torch.compile, for what is rewritten by hand: its best."""


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
    modes: Sequence[str] = MODES,
    rounds: int = ROUNDS,
    **scale: int,
) -> MeasuredWorkload | Missing:
    """The workload by its stored plan, beside eager and modes of torch.compile. budget_s, rounds:
    seconds of each half of the measurement, and its rounds at least."""
    model, arguments = make(workload, str(device), **scale)
    fast = load(model, store=store, on_miss=on_miss)
    turns = RotatingInputs.of(arguments)
    ours = turns.one_after_another(through(fast, turns))

    notes = Notes()
    with torch.no_grad():
        try:
            first = extra_bytes(ours, device)  # before the baselines, which take long to compile
        except NoPlan as error:
            return Missing(str(error))
        live = plans(fast)
        # Before the baselines too: some hold on to memory that the model in float64 needs.
        with turn(IN_FLOAT64):
            accuracy = _accuracy_in_memory(model, arguments, ours, notes)
            _give_back(device)
        given = model_baselines(model, turns, modes if device.type == "cuda" else ())
        if workload.rewritten and device.type == "cuda":
            given[REWRITTEN] = rewritten(workload, turns, device)
        baselines = ready_baselines(given, turns, model, arguments, notes)
        _give_back(device)
        # A graph holds its memory between calls; the first call runs without.
        graphed = any(plan.cudagraph for plan in live)
        with wait_for_the_others():
            extra = {OURS: first if graphed else extra_bytes(ours, device)}
            if EAGER in baselines:
                extra[EAGER] = extra_bytes(baselines[EAGER], device)
            calls = {OURS: ours, **baselines}
            times, best = compare(calls, timer or _timer(device, rounds), budget_s, notes)
    return MeasuredWorkload(
        workload.name,
        machine(device),
        times,
        best,
        accuracy,
        kernels=sum(runner.kernels_per_call for runner in executors(fast)),
        lowerings=lowerings(fast),
        plan="; ".join(_described(plan) for plan in live),
        cudagraph=graphed,
        extra_bytes=extra,
        conditions=conditions(device.index or 0) if device.type == "cuda" else {},
        notes=tuple(notes.kept),
        floor_s=workload.floor_s(profile_of(device)),
    )


def ready_baselines(
    given: Mapping[str, TurnCall],
    turns: RotatingInputs,
    model: Callable[..., Any],
    arguments: CallArguments,
    notes: Notes,
) -> dict[str, TimedCall]:
    """Those that run, compiled; with a note where what is rewritten by hand is not the same
    computation."""
    baselines = Baselines(given, notes)
    baselines.warm()
    ready = {name: turns.one_after_another(call) for name, call in baselines.ready.items()}
    if REWRITTEN in ready:
        try:
            problem = accuracy_of(model, arguments, ready[REWRITTEN]).problem
        except torch.OutOfMemoryError as error:
            problem = f"not checked: {describe(error)}"
        if problem:
            notes.note(f"{REWRITTEN}: {problem}")
    return ready


def rewritten(workload: Workload, turns: RotatingInputs, device: torch.device) -> TurnCall:
    """What a person rewrote by hand, in torch.compile's best mode for it."""
    model = make_rewritten(workload, str(device))
    return through(torch.compile(model, mode=REWRITTEN_MODE, dynamic=False), turns)


class _BaselineFailed(Exception):
    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


def compare(
    calls: Mapping[str, TimedCall], timer: Timer, budget_s: float, notes: Notes
) -> tuple[dict[str, Timing], Against]:
    """Interleaved times of all, in two halves, and ours against the best of the others but for
    what was rewritten by hand. A baseline that fails is left out, with a note. Raises
    FusionplanError when none is left."""
    times, whole = interleaved(calls, timer, budget_s, notes)
    best = against(times, whole)
    if best is None:
        raise FusionplanError("neither eager nor torch.compile runs beside the plan")
    return times, best


def interleaved(
    calls: Mapping[str, TimedCall], timer: Timer, budget_s: float, notes: Notes
) -> tuple[dict[str, Timing], Interleaved]:
    """Times of all, in two halves of so many seconds each. What fails is left out, with a note, but
    for ours: its exception is raised."""
    while True:
        guarded = {n: c if n == OURS else _guarded(n, c) for n, c in calls.items()}
        try:
            halves = [timer.interleaved(guarded, budget_s=budget_s) for _ in range(HALVES)]
            break
        except _BaselineFailed as failed:
            notes.note(f"{failed.name} fails beside the others: {describe(failed.error)}")
            calls = {n: c for n, c in calls.items() if n != failed.name}
    whole = Interleaved({n: [lap for h in halves for lap in h.laps[n]] for n in calls})
    times: dict[str, Timing] = {}
    for name in calls:
        total = whole.timing(name)
        each = tuple(h.timing(name).seconds for h in halves)
        times[name] = Timing(total.seconds, each, total.spread_s, total.laps)
    return times, whole


def against(times: Mapping[str, Timing], whole: Interleaved) -> Against | None:
    """Ours beside the best baseline; None where one of them is missing."""
    baselines = [name for name in times if name not in (OURS, REWRITTEN)]
    if OURS not in times or not baselines:
        return None
    best = min(baselines, key=lambda n: times[n].seconds)
    ratio = whole.ratio(OURS, best)
    return Against(best, ratio.median, ratio.low, ratio.high)


def _guarded(name: str, call: TimedCall) -> TimedCall:
    def run() -> object:
        try:
            return call()
        except Exception as error:
            raise _BaselineFailed(name, error) from error

    return run


def _give_back(device: torch.device) -> None:
    """What torch keeps of freed memory, to the device: other pools can have it then."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _accuracy_in_memory(
    model: Callable[..., Any], arguments: CallArguments, ours: TimedCall, notes: Notes
) -> Errors:
    """As `accuracy_of`; against the model in float32 where float64 does not fit."""
    try:
        return accuracy_of(model, arguments, ours)
    except torch.OutOfMemoryError:
        notes.note("errors are against float32, as there is no memory for float64")
    torch.cuda.empty_cache()
    return accuracy_of(model, arguments, ours, torch.float32)


def accuracy_of(
    model: Callable[..., Any],
    arguments: CallArguments,
    ours: TimedCall,
    dtype: torch.dtype = torch.float64,
) -> Errors:
    """Our error and eager's, against the model in float64 or another type. (A model that itself
    casts to float32 is the reference only that far.)"""
    wide = copy.deepcopy(model).to(dtype) if isinstance(model, torch.nn.Module) else model
    widened = partial(_widened, dtype)
    args, kwargs = tree_map(widened, (arguments.args, dict(arguments.kwargs)))
    ideals = _tensors(wide(*args, **kwargs))
    eager, got = _tensors(arguments.run(model)), _tensors(ours())
    if len(eager) != len(got):
        return Errors(1.0, 0.0, f"{len(got)} results instead of {len(eager)}")
    worst = Errors(0.0, 0.0)
    for index, (ideal, theirs, mine) in enumerate(zip(ideals, eager, got, strict=True)):
        found = _accuracy(ideal, theirs, mine, f"result {index}")
        if found.problem:
            return found
        worst = max(worst, found, key=lambda a: a.ours)
    return worst


def _accuracy(ideal: torch.Tensor, eager: torch.Tensor, mine: torch.Tensor, what: str) -> Errors:
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return Errors(1.0, 0.0, f"{what} is {mine.dtype} {tuple(mine.shape)}")
    strange = int((~torch.isfinite(mine) & torch.isfinite(eager)).sum())
    strange += int((torch.isnan(mine) & ~torch.isnan(eager)).sum())
    if strange:
        return Errors(1.0, 0.0, f"{what} has {strange} elements that are not finite")
    mine_error, eager_error = (_error(t, ideal, eager) for t in (mine, eager))
    limit = 2 * eager_error + _allowance(eager.dtype)
    problem = f"{what}: error {mine_error:.3g}, eager's {eager_error:.3g}"
    return Errors(mine_error, eager_error, "" if mine_error <= limit else problem)


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


def extra_bytes(call: TimedCall, device: torch.device) -> int:
    """The most memory that one call takes besides what was there; 0 where it is not counted."""
    if device.type != "cuda":
        call()
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
            found.add(ATEN.name)
    return tuple(sorted(found)) or (ATEN.name,)


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


def _timer(device: torch.device, rounds: int) -> Timer:
    if device.type != "cuda":
        return Timer(stopwatch_for(device), least=rounds)
    l2_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return Timer(stopwatch_for(device, l2_bytes), least=rounds)


def _described(plan: Plan) -> str:
    groups = [f"{g.lowering} {g.config or g.options}".strip() for g in plan.groups]
    return ", ".join(groups) or "eager"


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _widened(dtype: torch.dtype, value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value
