"""One whole model by every way of running it, in the process that `bench.whole` starts for it."""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import ConfigDict

from ..api import executors, load, plans
from ..db.store import Store
from ..planner.costs.device import profile_of
from ..planner.covers.cover import modelled_plan
from ..planner.cures import FusionplanWarning
from ..planner.versions import versions
from ..tuner.capture.capture_model import capture_model, describe
from ..tuner.measure.timing import Stopwatch, TimedCall, Timer, WallStopwatch
from ..tuner.model_fit.refit import calibrated
from ..tuner.progress.progress import TrialDone
from ..tuner.workers.assembler import as_in_workers
from ..tuning import tune
from .measure import Notes, against, extra_bytes, interleaved, lowerings, machine
from .result import EAGER, OURS, Against, Machine, Timing
from .whole_models import MODELS, ModelCall, ModelKind, ModelSize, distance, is_right, step_of

WAYS = (EAGER, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", OURS)
"""Eager, the modes of torch.compile, and ours."""

_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """seconds: of the search; 0: none, and graphs without a stored plan run by the model's.
    budget_s: of each half of the measurement."""

    name: str
    kind: ModelKind
    ways: tuple[str, ...] = WAYS
    device: str = "cuda"
    seconds: float = 120.0
    budget_s: float = 2.0
    store: str | None = None
    size: ModelSize = "whole"


@dataclass(slots=True)
class MeasuredModel:
    """One model in one kind, as far as it came.

    capture_s: to run and capture it; plan_s: to plan its graphs by the cost model, in which are
    `nodes` nodes (None where all plans are stored or tuned); tune_s: of the search. By way:
    first_s, of the first call, which compiles with the caches as they are and with one ptxas (see
    `tuner/workers/assembler.py`); times, of a later one; peak_bytes, the most memory of it beyond
    what was allocated before (a way with CUDA graphs holds its memory between calls, and it does
    not show);
    errors, relative root mean square from eager; failed, why there is none of these. eager_error:
    of eager from float32. kernels: of ours in a call. ended: why the process ended early, "" where
    it did not.
    """

    # JSON has no infinity, which is the error of a result that is not finite.
    __pydantic_config__ = ConfigDict(ser_json_inf_nan="strings")

    name: str
    kind: ModelKind
    machine: Machine | None = None
    graphs: int = 0
    nodes: int = 0
    capture_s: float | None = None
    plan_s: float | None = None
    tune_s: float | None = None
    first_s: dict[str, float] = field(default_factory=dict)
    times: dict[str, Timing] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    eager_error: float = 0.0
    kernels: int = 0
    lowerings: tuple[str, ...] = ()
    cudagraph: bool = False
    best: Against | None = None
    notes: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def problem(self) -> str:
        """Why ours has no good result; "" where it has, or was not asked for."""
        error = self.errors.get(OURS, 0.0)
        if not is_right(error, self.eager_error):
            return f"error {error:.2g} from eager, whose own is {self.eager_error:.2g}"
        return self.ended or self.failed.get(OURS, "")


Save = Callable[[MeasuredModel], None]


def _tell(text: str) -> None:
    """A line of progress: a model can take minutes. Standard output has the table alone."""
    clock = time.strftime("%H:%M:%S", time.gmtime())
    print(f"  {clock} {text}", file=sys.stderr, flush=True)


class _Told(Notes):
    """Tells the phases of a tune, and how many trials it has had."""

    trials = 0

    def phase(self, name: str, text: str) -> None:
        _tell(f"{name}: {text} ({self.trials} trials)")

    def trial(self, done: TrialDone) -> None:
        self.trials += not done.reused

    def note(self, text: str) -> None:
        super().note(text)
        _tell(text)


class AloneStopwatch:
    """CUDA events around each call, begun on an idle device: what the host takes shows, and caches
    are as the call before left them."""

    def laps(self, calls: Sequence[TimedCall]) -> list[float]:
        found = []
        for call in calls:
            begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(float(begin.elapsed_time(end)) / 1e3)
        return found

    def burst(self, calls: Sequence[TimedCall]) -> float:
        return sum(self.laps(calls))


def measure(asked: ModelRequest, save: Save) -> MeasuredModel:
    """The model by all the ways; `save` gets the record again and again as it fills."""
    device = torch.device(asked.device)
    record = MeasuredModel(asked.name, asked.kind, machine(device))
    step = step_of(MODELS[asked.name], asked.kind, device, asked.size)
    wanted = step.results(step.module)
    record.eager_error = _strays(step, wanted)
    save(record)
    ways = asked.ways
    if OURS in ways:
        try:
            _planned(asked, step, wanted[0], record)
        except Exception as error:  # noqa: BLE001 - told; the other ways go on
            record.failed[OURS] = describe(error)
            ways = tuple(way for way in ways if way != OURS)
        save(record)
    # One process compiles the same code in many modes: as many entries as that takes.
    with torch._dynamo.config.patch(recompile_limit=64):
        models = {way: _made(way, asked, step) for way in ways}
        calls: dict[str, TimedCall] = {}
        for way, model in models.items():
            _tell(f"{way}: first calls")
            try:
                calls[way] = _begun(way, model, step, wanted, record)
            except Exception as error:  # noqa: BLE001 - told; the other ways go on
                record.failed[way] = describe(error)
            save(record)
        if OURS in calls:
            _ran(models[OURS], record)
        _tell("timing them in turn")
        _timed(asked, calls, device, record)
    return record


def _strays(step: ModelCall, eager: Sequence[torch.Tensor]) -> float:
    """How far eager is from what float32 gives."""
    wide = step.in_float32()
    return distance(eager, wide.results(wide.module))


def _planned(
    asked: ModelRequest, step: ModelCall, wanted: torch.Tensor, record: MeasuredModel
) -> None:
    """How long the search takes; without one, how long planning does. wanted: on the device.
    Raises FusionplanError."""
    start = time.monotonic()
    training = asked.kind == "training"
    captured = capture_model(step.module, step.inputs, training=training)
    record.capture_s = time.monotonic() - start
    record.graphs = captured.graphs
    record.nodes = sum(len(part.captured.graph.nodes) for part in captured.parts)
    with Store.open(asked.store) as store:
        profile = calibrated(store, profile_of(wanted.device))
        known = [store.plan(part.key, profile.key, versions()) for part in captured.parts]
    if not asked.seconds and not all(known):  # else they are tuned, or loaded
        _tell(f"planning {len(captured.parts)} graphs of {record.nodes} nodes")
        start = time.monotonic()
        for part in captured.parts:
            modelled_plan(part.captured.graph, profile)
        record.plan_s = time.monotonic() - start
    del captured
    step.forget()
    if not asked.seconds:
        return
    torch._dynamo.reset()
    notes = _Told()
    start = time.monotonic()
    tune(
        step.module,
        step.inputs,
        training=training,
        seconds=asked.seconds,
        store=asked.store,
        device=asked.device,
        progress=notes,
        name=f"{asked.name} {asked.kind}",
    )
    record.tune_s = time.monotonic() - start
    record.notes += notes.kept
    step.forget()
    torch._dynamo.reset()


def _made(way: str, asked: ModelRequest, step: ModelCall) -> Any:
    """What runs the model that way; nothing is compiled before its first call."""
    if way == EAGER:
        return step.module
    if way != OURS:
        return torch.compile(step.module, mode=way, dynamic=False)
    if asked.seconds:
        return load(step.module, store=asked.store, dynamic=False)
    return load(step.module, store=asked.store, on_miss="model", evidence="any", dynamic=False)


def _begun(
    way: str, model: Any, step: ModelCall, wanted: Sequence[torch.Tensor], record: MeasuredModel
) -> TimedCall:
    """The call, compiled; its first time, memory and error are in the record."""
    device = wanted[0].device
    theirs = as_in_workers() if way not in (EAGER, OURS) else nullcontext()
    with warnings.catch_warnings(record=True) as told, theirs:
        warnings.simplefilter("always", FusionplanWarning)
        start = time.monotonic()
        step.run(model)
        _wait(device)
        record.first_s[way] = time.monotonic() - start
    record.notes += [str(w.message) for w in told if issubclass(w.category, FusionplanWarning)]
    step.run(model)  # A CUDA graph is captured in the second call.
    record.errors[way] = distance(step.results(model), wanted)
    gc.collect()
    record.peak_bytes[way] = extra_bytes(lambda: step.run(model), device)
    return lambda: step.run(model)


def _ran(model: Any, record: MeasuredModel) -> None:
    """What a call by our plans is made of."""
    record.kernels = sum(runner.kernels_per_call for runner in executors(model))
    record.lowerings = lowerings(model)
    record.cudagraph = any(plan.cudagraph for plan in plans(model))


def _timed(
    asked: ModelRequest, calls: Mapping[str, TimedCall], device: torch.device, record: MeasuredModel
) -> None:
    """The ways in turn."""
    if not calls:
        return
    on_gpu = device.type == "cuda"
    stopwatch: Stopwatch = AloneStopwatch() if on_gpu else WallStopwatch()
    notes = Notes()
    timer = Timer(stopwatch, least=_ROUNDS if on_gpu else 1)
    record.times, whole = interleaved(calls, timer, asked.budget_s, notes)
    record.best = against(record.times, whole)
    record.notes += notes.kept


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
