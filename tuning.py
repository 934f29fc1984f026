"""`fusionplan.tune`: capture a model, search its graphs, keep the plans, and run by them."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .api import load
from .db.errors import StoreError
from .db.records import PlanRecord
from .db.store import Store
from .planner.costs.device import DeviceProfile, builtin, profile_of, shipped
from .planner.errors import DeviceError, FusionplanError, PlanError
from .planner.graph.graph import Graph
from .planner.plan import Plan
from .planner.runtime.compile import interpreted
from .planner.versions import versions
from .tuner.busy import busy
from .tuner.capture_model import Call, CapturedModel, Part, capture_model
from .tuner.effort import Allowance, allowance
from .tuner.live import reporting
from .tuner.measure import Timer, stopwatch_for
from .tuner.model_peers import in_order, model_peers, modes_for, part_peers
from .tuner.progress import Progress
from .tuner.refit import calibrated, refitted_after_tune
from .tuner.session import ABOUT, Limits, Session, plan_record
from .tuner.training import Steps, peer_sums, settled

DEFAULT_TARGET = "h200"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the model runs, and for which device it is planned. measured: the plan's figures
    come from that device; else from the cost model."""

    device: torch.device
    profile: DeviceProfile
    measured: bool


@dataclass(frozen=True, slots=True, repr=False)
class Tuned:
    """What `tune` found. A call runs the model by its plans; with modelled plans of a device that
    is not at hand it runs the model as it is.

    plans: one for each different graph with something to fuse, in the order of
    `captured.parts`; records: the same as the store has them. interrupted: Ctrl-C ended the
    search; the plans are the best until then, and graphs not yet begun have none.
    """

    plans: tuple[Plan, ...]
    records: tuple[PlanRecord, ...]
    captured: CapturedModel
    place: Place
    interrupted: bool
    _run: Callable[..., Any] = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __repr__(self) -> str:
        evidence = sorted({plan.evidence for plan in self.plans})
        names = ", ".join(dict.fromkeys(record.name for record in self.records))
        about = [*([names] if names else []), self.place.profile.name, *evidence]
        about += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        about += ["interrupted"] if self.interrupted else []
        count = len(self.plans)
        return f"<Tuned: {count} plan{'s' * (count != 1)}; {'; '.join(about)}>"

    @property
    def plan(self) -> Plan:
        """The plan of the graph that takes most time. Raises PlanError where there is none."""
        if not self.plans:
            raise PlanError("the model has nothing to fuse, so it has no plan: run it as it is")
        return max(self.plans, key=lambda p: p.measured or p.predicted or 0.0)

    @property
    def speedup(self) -> float | None:
        """Time of the best peer of every graph over ours, each as often as it runs; None where
        it was not measured. A forward and its backward graph have one peer: what runs the one
        runs the other."""
        steps: dict[str, list[tuple[Plan, Part]]] = {}
        for plan, part in zip(self.plans, self.captured.parts, strict=False):
            steps.setdefault(_step(part), []).append((plan, part))
        peers = ours = 0.0
        for step in steps.values():
            sums = peer_sums(tuple(plan for plan, _ in step))
            if not sums or not all(plan.measured for plan, _ in step):
                return None
            best = min(sums, key=lambda name: sums[name])
            peers += sum(part.times * dict(plan.peers)[best] for plan, part in step)
            ours += sum(part.times * (plan.measured or 0.0) for plan, part in step)
        return peers / ours if ours else None


def tune(
    model: Callable[..., Any],
    example_inputs: Any,
    *,
    trials: int | None = None,
    seconds: float | None = None,
    effort: str = "default",
    store: str | Path | None = None,
    device: str | torch.device | None = None,
    target: str | None = None,
    training: bool = False,
    dynamic: bool = False,
    progress: Progress | bool | None = None,
    name: str | None = None,
) -> Tuned:
    """Tune every graph of the model for these inputs and keep the plans in the store.

    example_inputs: one tensor, a tuple or list of arguments, or a dictionary of them by name,
    on the model's device. effort: "quick" (16 trials, 60 s), "default" (64, 180 s) or "thorough"
    (256, 900 s), of a graph of many groups 4, 10 or 24 trials for each; trials, most kernels tried
    for each graph, and seconds, most time for all of them, take the place of its own. store: path
    or database URL; None is $PLANNER_STORE, else the user's cache. device: None is the current CUDA
    device. With no CUDA device, or with a target ("h200", "h100", "a100"), plans come from the cost
    model and say so. training: the backward pass too; else the model runs under no_grad, and so
    must what is to run by the plan. dynamic: sizes of the inputs may vary, as with torch.compile's
    dynamic=True: the plans hold for all sizes of their bucket, which agree in every varying size
    rounded up to a power of two and in whether it is a multiple of 16. Sizes marked by
    torch._dynamo.mark_dynamic vary in any case. progress: what is told of the work; None is a panel
    with time and trials where stderr is a terminal, False nothing. Python's logging has it in any
    case, under the name "fusionplan".

    Raises ModelError, DeviceError, StoreError, or FusionplanError for impossible limits.
    """
    check_limits(trials, seconds)
    allowed = allowance(effort, trials, seconds)
    place = place_of(device, target)
    call = Call.of(example_inputs)
    # The store first: nobody should wait for a search whose result cannot be kept.
    with Store.open(store) as opened, reporting(progress, allowed.seconds) as told:
        if place.measured and (reason := busy(place.device)):
            told.note(reason)
        place = replace(place, profile=calibrated(opened, place.profile))
        told.phase("capture", "running the model once")
        captured = capture_model(model, call, training=training, dynamic=dynamic)
        for note in captured.notes:
            told.note(note)
        job = _Job(opened, place, name or _name_of(model), told, allowed, str(call))
        found, interrupted = job.run(captured, model, call)
        if place.device.type == "cuda" and place.measured and not interrupted:
            _refitted(opened, place.profile, told)
    return Tuned(
        tuple(Plan.from_json(record.payload) for record in found),
        tuple(found),
        captured,
        place,
        interrupted,
        load(model, store=store, dynamic=dynamic or None) if place.measured else model,
    )


def _refitted(store: Store, profile: DeviceProfile, told: Progress) -> None:
    """The profile fitted to the trials, where it is time and helps. The plans are in the store
    by now: that it cannot be fitted is told, not raised."""
    try:
        said = refitted_after_tune(store, shipped(profile.to_json()))
    except (FusionplanError, StoreError, ValueError) as error:
        said = f"the cost model's profile was not fitted: {error}"
    if said is not None:
        told.note(said)


def check_limits(trials: int | None, seconds: float | None) -> None:
    """Raises FusionplanError for limits under which nothing could be tried."""
    if trials is not None and trials < 1:
        raise FusionplanError(f"trials = {trials}: give at least 1")
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise FusionplanError(f"seconds = {seconds}: give a positive number")


def place_of(device: str | torch.device | None, target: str | None) -> Place:
    """The device to run on and the profile to plan for. Raises DeviceError for an unknown or
    absent device, or an unknown target."""
    found = _device(device)
    if target is not None:
        return Place(found, builtin(target), False)
    if found.type == "cuda":
        return Place(found, profile_of(found), True)
    if interpreted():  # Triton's interpreter runs kernels on the CPU: a rehearsal
        return Place(found, profile_of(found), True)
    return Place(found, builtin(DEFAULT_TARGET), False)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"unknown device {device!r}: give cuda, cuda:N or cpu") from error
    if found.type not in ("cuda", "cpu"):
        raise DeviceError(f"device {found} cannot be planned for: give cuda, cuda:N or cpu")
    if found.type == "cpu":
        return found
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {found}: torch {torch.__version__} finds no CUDA device; --device cpu or "
            "--target h200 plans by the cost model"
        )
    count, index = torch.cuda.device_count(), found.index
    if index is not None and index >= count:
        raise DeviceError(f"there is no device {found}: give one of cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)


@dataclass(frozen=True, slots=True)
class _Job:
    """One tune of a captured model, graph by graph."""

    store: Store
    place: Place
    name: str
    progress: Progress
    allowed: Allowance
    inputs: str
    """Types and shapes of the call, for people."""

    def run(
        self, captured: CapturedModel, model: Callable[..., Any], call: Call
    ) -> tuple[list[PlanRecord], bool]:
        """The stored plans, and whether Ctrl-C ended the search. Raises KeyboardInterrupt when
        it did so before there was any plan."""
        found: list[PlanRecord] = []
        until = time.monotonic() + self.allowed.seconds
        # What compiling the peers of one graph took is not taken from the others.
        least = self.allowed.seconds / max(1, len(captured.parts))
        with _interruption() as interrupted:
            for number, part in enumerate(captured.parts):
                left = max(least, (until - time.monotonic()) / (len(captured.parts) - number))
                whole = (model, call) if captured.is_whole else None
                step = [p.captured.graph for p in captured.parts if _step(p) == _step(part)]
                title = self._title(captured, number)
                try:
                    found.append(self._tuned(part, title, left, whole, step))
                except KeyboardInterrupt:
                    if not found:
                        raise
                    return found, True
                if part.stage == "backward" and self.place.measured:
                    self._settle(found, captured)
                if interrupted.is_set():
                    return found, True
        return found, False

    def _settle(self, found: list[PlanRecord], captured: CapturedModel) -> None:
        """The last of the plans, a backward graph's, and its forward graph's, decided together."""
        last = len(found) - 1
        known = [(part.key, part.stage) for part in captured.parts]
        pair = [known.index((captured.parts[last].forward or "", "forward")), last]
        plans = [Plan.from_json(found[i].payload) for i in pair]
        forward, backward = [
            (plan, captured.parts[i].captured.graph) for i, plan in zip(pair, plans, strict=True)
        ]
        kept, peer = settled(forward, backward)
        if peer is not None:
            self._keep(found, pair, kept, peer)
        origin = captured.parts[last].origin
        if origin is None or self.place.device.type != "cuda":
            return
        ours = load(in_order(origin.gm), store=self.store.url, dynamic=False)
        timer = Timer(stopwatch_for(self.place.device, self.place.profile.l2_bytes))
        graphs = (forward[1], backward[1])
        with_graphs = Steps(origin, ours, timer, self.progress)
        self._keep(found, pair, *with_graphs.settled(list(zip(kept, graphs, strict=True))))

    def _keep(
        self,
        found: list[PlanRecord],
        places: Sequence[int],
        plans: Sequence[Plan],
        peer: str | None,
    ) -> None:
        """Plans in the place of those found, in the store too. peer: what they run as, if so."""
        if peer is not None:
            name = found[places[-1]].name
            self.progress.note(f"{name}: {peer} is kept for the forward and the backward graph")
        for i, plan in zip(places, plans, strict=True):
            before = found[i]
            under, about = before.payload.get("conditions"), before.payload.get(ABOUT)
            record = plan_record(
                plan, before.device_key, before.name, under, before.bucket_key, about
            )
            self.store.save_plan(record)
            found[i] = record

    def _title(self, captured: CapturedModel, number: int) -> str:
        if len(captured.parts) == 1:
            return self.name
        return f"{self.name} {number} {captured.parts[number].stage}"

    def _tuned(
        self,
        part: Part,
        title: str,
        seconds: float,
        whole: tuple[Callable[..., Any], Call] | None,
        step: Sequence[Graph],
    ) -> PlanRecord:
        profile = self.place.profile
        limits = Limits(self.allowed.trials, seconds, each=self.allowed.each)
        session = Session(part.captured, part.inputs, self.store, limits, self.progress, title)
        session.about = {"stage": part.stage, "inputs": self.inputs}
        if self.place.measured:
            modes = part.captured.device.type == "cuda"
            peers = part_peers(part, modes, step)
            if whole and part.stage == "inference":
                peers = model_peers(*whole, modes_for(part.captured.graph) if modes else ())
            with torch.set_grad_enabled(False):
                session.measured(profile, peers, part.stage)
        elif (kept := self._kept(part)) is not None and kept.evidence == "measured":
            self.progress.note(f"{title}: the store has a measured plan for it, which is kept")
            return kept
        else:
            session.modelled(profile)
        record = self._kept(part)
        if record is None:
            raise PlanError(f"the plan of {title} is not in {self.store.location}: tune it again")
        return record

    def _kept(self, part: Part) -> PlanRecord | None:
        return self.store.plan(part.key, self.place.profile.key, versions())


def _step(part: Part) -> str:
    """The key of the forward graph of its step; of a graph without one its own."""
    return part.forward or part.key


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Set once Ctrl-C was pressed. A search answers it by ending early with what it has, so the
    exception alone does not tell those who wait for its result."""
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed
        return

    def handle(number: int, frame: Any) -> None:
        pressed.set()
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _name_of(model: Callable[..., Any]) -> str:
    """What to call a model that has no file: its class, or the function's own name."""
    return str(getattr(model, "__name__", type(model).__name__))
