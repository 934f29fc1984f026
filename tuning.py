"""`fusionplan.tune`: capture a model, search its graphs, keep the plans, and run by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch

from .api import dispatcher_by, load, pinned
from .db.errors import StoreError
from .db.records import PlanRecord
from .db.store import Store
from .planner.bytecode import kept_bytecode
from .planner.capture.source_lines import source_texts
from .planner.costs.device import shipped
from .planner.errors import DeviceError, FusionplanError, PlanError
from .planner.graph.graph import Numerics
from .planner.lowerings.inductor import MODES
from .planner.origin import Origin
from .planner.plan import Plan
from .planner.versions import versions
from .tuned import Tuned
from .tuner.capture.capture_model import CallArguments, CapturedModel
from .tuner.capture.rotating_inputs import RotatingInputs
from .tuner.capture.same_on_cuda import difference_on_cuda
from .tuner.capture.traced_model import TracedGraph, TracedModel
from .tuner.decision.baselines import ROUNDS, Baselines, different_products, model_baselines
from .tuner.decision.decide import Decision, Entrant
from .tuner.fleet.gpu_claim import gpu_id, held
from .tuner.fleet.helpers import Helpers
from .tuner.fleet.local_gpus import LocalGpus, local_gpus
from .tuner.fleet.ray_cluster import Cluster
from .tuner.measure.contest import Ring
from .tuner.measure.host_caches import cooler
from .tuner.measure.other_processes import busy_warning
from .tuner.measure.time_limit import OutOfTime, stopped_after
from .tuner.measure.wall import Wall
from .tuner.model_fit.refit import calibrated, refitted_after_tune
from .tuner.progress.live_panel import reporting
from .tuner.progress.progress import Progress
from .tuner.records.jobs import OfferedJob, Offers, SearchLimits
from .tuner.records.ledger import device_record
from .tuner.records.stored_plans import plans_of_graph
from .tuner.session.capture_for_tune import CaptureOptions
from .tuner.session.effort import Allowance, TuneLimits, allowance, check_limits
from .tuner.session.interruption import interruption
from .tuner.session.place import Place, place_of
from .tuner.session.restore_process import process_restored
from .tuner.session.searched_plans import Searched
from .tuner.session.session import Session
from .tuner.session.shares import shares
from .tuner.session.tune_site import TuneSite
from .tuner.session.tune_workers import TuneWorkers, start_workers
from .tuner.trial.outcome import DeviceLost

_TAKEN = "another tune or worker measures on {device}: both will find it slower than it is"
_NOT_SHARED = (
    "--gpus and --ray share the measuring, and nothing is measured here: leave out --target, and "
    "tune where torch finds a CUDA device"
)
OFFERED = 4.0
"""Times the seconds of a tune that its jobs are open at most: its own search waits while the
baselines are compiled. They are closed as soon as it ends."""

_ESTIMATED = (
    "{name} has no built-in profile: its rates are estimated from its clocks and sizes; "
    "`planner calibrate` measures them"
)


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
    numerics: Numerics = "fast",
    gpus: str | int | None = None,
    ray: str | None = None,
    jobs: int | None = None,
) -> Tuned:
    """Search for the fastest way to run the model on these inputs, and store the plans.

    model: a module or a function. It is captured under torch.no_grad() unless `training` is given.
    example_inputs: one tensor, a tuple or list of arguments, or a dictionary of arguments by name,
        on the device of the model.
    effort: "quick" (16 trials, 60 s), "default" (64 trials, 180 s) or "thorough" (256 trials,
        900 s). A graph with many groups has at least 4, 10 or 24 trials for each group.
    trials, seconds: in place of the limits of `effort`: the number of kernels to try for each
        graph, and the time of the whole tune, in which the modes of torch.compile are compiled too.
    store: path or database URL. None is $PLANNER_STORE, else a file in the user's data folder.
    device: None is the current CUDA device.
    target: plan for this GPU ("h200", "h100", "a100", "b200", "l4" or "rtx4090") with the cost
        model and measure nothing.
        Without a CUDA device this happens in any case; the target is then "h200" by default.
    training: tune the backward pass, too.
    dynamic: let the sizes of the inputs vary, as torch.compile(dynamic=True) does. Groups are
        measured at a few other sizes as well, and the plans hold for all. Sizes marked with
        torch._dynamo.mark_dynamic vary in any case.
    progress: an object with the methods of `Progress` is told what happens. None shows a panel in a
        terminal and a bar in a notebook; False shows nothing. Python's logging has it in any case,
        under the name "fusionplan".
    name: the name of the plans in the store. None is the name of the function or class.
    numerics: "eager" keeps every rounding that eager makes between operations (see
        docs/numerics.md). Load the model with the same value.
    gpus: "all", how many, or indices as in "0,2". The tune runs on the first; the others of its
        kind share the search.
    ray: the address of a Ray cluster whose GPUs share the search.
    jobs: the largest number of processes that compile on this host.

    Raises ModelError, DeviceError, StoreError, or FusionplanError for impossible limits.
    """
    check_limits(trials, seconds)
    allowed = allowance(effort, trials, seconds)
    wall = Wall(allowed.seconds)
    chosen = None if gpus is None else local_gpus(str(gpus))
    place = place_of(device_among(chosen, device), target)
    if not place.measured and (chosen is not None or ray is not None):
        raise DeviceError(_NOT_SHARED)
    how = CaptureOptions(training, dynamic, numerics)
    call = CallArguments.of(example_inputs)
    # The store first: nobody should wait for a search whose result cannot be kept.
    with (
        Store.open(store) as opened,
        reporting(progress, allowed.seconds) as told,
        process_restored(model),
        kept_bytecode(),
        ExitStack() as stack,
    ):
        cluster = None if ray is None else stack.enter_context(Cluster.connected(ray))
        _tell_if_busy(place, told)
        place = _calibrated(place, opened, told)
        if place.measured and not stack.enter_context(held(opened, gpu_id(place.device))):
            told.note(_TAKEN.format(device=place.device))
        helpers = Helpers(chosen, cluster, jobs)
        offers = Offers(opened, place.profile.key, versions())
        stack.enter_context(helpers.begun(opened, offers.tune, told.note))
        workers = start_workers(stack, place, how, helpers.compilers, model, call, wall)
        told.phase("capture", "running the model once")
        turns = RotatingInputs.of(call, _addresses(model))
        job = _ModelTune(
            *(opened, place, name or _name_of(model), told, allowed, wall),
            *(model, call, turns, how),
            *(helpers, offers, workers),
        )
        captured = job.captured()
        found, interrupted = job.run(captured)
        unloadable = _unloadable(captured) if place.is_elsewhere else None
        if wall.left_s and not interrupted:
            _refitted(opened, place, told)
    # What the contestants have compiled is not kept.
    captured, run = replace(captured, traced=None), model
    if place.measured:
        run = load(model, store=store, dynamic=dynamic or None, numerics=numerics)
    plans = tuple(Plan.from_json(record.payload) for record in found)
    return Tuned(plans, tuple(found), captured, place, interrupted, run, unloadable)


def _tell_if_busy(place: Place, told: Progress) -> None:
    """Warns when another process works on the GPU on which times are about to be measured."""
    if place.measured and (warning := busy_warning(place.device)):
        told.note(warning)


def _calibrated(place: Place, store: Store, told: Progress) -> Place:
    """The place with the rates that `planner calibrate` measured on its device. Says so where the
    rates are only estimates."""
    place = replace(place, profile=calibrated(store, place.profile))
    if place.profile.estimated:
        told.note(_ESTIMATED.format(name=place.profile.name))
    return place


def device_among(
    gpus: LocalGpus | None, device: str | torch.device | None
) -> str | torch.device | None:
    """The device of the tune itself. Raises DeviceError where both name one."""
    if gpus is None:
        return device
    if device is not None:
        raise DeviceError("--gpus says on which GPUs to tune: leave --device out")
    return f"cuda:{gpus.first}"


def _unloadable(captured: CapturedModel) -> str | None:
    """What differs between the graphs captured here, on the CPU, and those that the model has on
    CUDA; None where nothing does, so that a GPU finds their plans."""
    differences = (difference_on_cuda(gm, inputs) for gm, inputs in captured.sources)
    return next((text for text in differences if text is not None), None)


def _refitted(store: Store, place: Place, told: Progress) -> None:
    """The profile fitted to the trials, where it is time and helps. The plans are in the store
    by now: that it cannot be fitted is told, not raised."""
    if place.device.type != "cuda" or not place.measured:
        return
    try:
        said = refitted_after_tune(store, shipped(place.profile.to_json()))
    except (FusionplanError, StoreError, ValueError) as error:
        said = f"the cost model's profile was not fitted: {error}"
    if said is not None:
        told.note(said)


@dataclass(frozen=True, slots=True)
class _ModelTune:
    """One tune of a captured model: a search for each graph, then one contest for all of it."""

    store: Store
    place: Place
    name: str
    progress: Progress
    allowed: Allowance
    wall: Wall
    model: Callable[..., Any]
    call: CallArguments
    turns: RotatingInputs
    how: CaptureOptions
    helpers: Helpers
    offers: Offers
    workers: TuneWorkers

    def captured(self) -> CapturedModel:
        """The graphs of the model; what is to be known about them is told."""
        workers, given = self.workers, (self.model, self.turns, self.wall, self.place)
        found = self.how.captured(*given, workers.lab, workers.model_ran)
        for note in found.notes:
            self.progress.note(note)
        return found

    def run(self, captured: CapturedModel) -> tuple[list[PlanRecord], bool]:
        """The stored plans, and whether Ctrl-C ended the search. Raises KeyboardInterrupt when
        it did so before there was any plan."""
        if not self.place.measured:
            return self._modelled(captured)
        baselines = self._baselines(captured)
        found: list[tuple[Session, Searched]] = []
        own = shares(captured.parts, self.place.profile)
        with interruption() as interrupted:
            with self._shared(captured) as jobs:
                site = TuneSite(self.workers.labs)
                for number, part in enumerate(captured.parts):
                    session = self._session(captured, number, own[number], jobs[number], site)
                    try:
                        with torch.set_grad_enabled(False):
                            searched = session.searched(self.place.profile, baselines, part.stage)
                    except (KeyboardInterrupt, DeviceLost) as error:
                        if not found:
                            raise
                        found[0][0].lost = error if isinstance(error, DeviceLost) else None
                        break
                    found.append((session, searched))
                    if interrupted.is_set() or session.lost is not None:
                        break
            self.workers.labs.close()  # In the contest no other process is on the device.
            stopped = _stopped(interrupted, found)
            plans = self._decided(captured, found, baselines, stopped)
            stopped = _stopped(interrupted, found)
        return self._kept(captured, found, plans), stopped

    @contextmanager
    def _shared(self, captured: CapturedModel) -> Iterator[list[OfferedJob]]:
        """A job for each graph, open to all workers of the store; those that were asked for work
        while the block runs. In the contest that follows no other GPU is at work."""
        self.store.put_device(device_record(self.place.profile))
        with self.offers as offers:
            limits = SearchLimits(self.allowed.trials, self.allowed.each, seed=0)
            seconds = OFFERED * self.allowed.seconds
            jobs = [
                offers.offer(part.captured.graph, self._title(captured, number), limits, seconds)
                for number, part in enumerate(captured.parts)
            ]
            tell = self.progress.note
            with self.helpers.at_work(self.store, offers.tune, tell):
                try:
                    yield jobs
                finally:
                    offers.close()  # by which the workers end

    def _baselines(self, captured: CapturedModel) -> Baselines:
        modes = self.how.modes(self.place)
        given = model_baselines(self.model, self.turns, modes, self.how.training, captured.traced)
        ahead = self.workers.ahead
        products = different_products(part.captured.graph for part in captured.parts)
        made = Baselines(given, self.progress, wall=self.wall, products=products, ahead=ahead)
        if ahead is not None:
            made.turn = ahead.turn
        if self.place.device.type == "cuda":
            made.left_out |= {mode: ROUNDS for mode in MODES if mode not in given}
        return made

    def _session(
        self,
        captured: CapturedModel,
        number: int,
        share: float,
        job: OfferedJob | None = None,
        site: TuneSite | None = None,
    ) -> Session:
        part = captured.parts[number]
        limits = TuneLimits(self.allowed.trials, self.allowed.seconds, each=self.allowed.each)
        title = self._title(captured, number)
        static = _addresses(self.model)
        origin = Origin(part.stage, str(self.call), source_texts(part.captured.fx_nodes))
        return Session(
            *(part.captured, part.inputs, self.store, limits, self.progress, title),
            compilers=self.helpers.compilers,
            static=static,
            site=site or TuneSite(),
            origin=origin,
            job=job,
            wall=self.wall,
            share=share,
        )

    def _title(self, captured: CapturedModel, number: int) -> str:
        if len(captured.parts) == 1:
            return self.name
        return f"{self.name} {number} {captured.parts[number].stage}"

    def _decided(
        self,
        captured: CapturedModel,
        found: Sequence[tuple[Session, Searched]],
        baselines: Baselines,
        stopped: bool,
    ) -> list[Plan]:
        """The plans after the contest; as the search left them where something ended that."""
        if not found:
            return []
        if stopped and len(found) < len(captured.parts):
            return found[0][0].decided(None, found)
        entrants = [
            Entrant(part, searched.finalists, searched.identity)
            for part, (_, searched) in zip(captured.parts, found, strict=True)
        ]
        first = found[0][0]
        watch, cool = first.stopwatch(self.place.profile), cooler(first.captured.device)
        decision = Decision(
            entrants,
            baselines,
            partial(self._run_by, captured.traced),
            Ring(watch, self.turns, first.rules, cool),
            self.progress,
            self.how.training,
            conditions=first.conditions,
            wall=self.wall,
        )
        try:
            with stopped_after(self.wall.last_s):
                plans = first.decided(decision.plans, found)
        except OutOfTime:
            return [_cut_off(session, searched) for session, searched in found]
        for session, searched in found:
            session.for_other_sizes = decision.for_other_sizes.get(searched.identity.graph_key)
        return plans

    def _run_by(self, traced: TracedModel | None, plans: Mapping[str, Plan]) -> Callable[..., Any]:
        """The model as these plans run it; behind the trace of the capture where that can be."""
        leaves = any(plan.frame and not plan.groups for plan in plans.values())
        if traced is not None and not leaves:
            dispatcher = dispatcher_by(plans, self.how.numerics)
            return traced.by(partial(TracedGraph.by_plan, dispatcher=dispatcher), self.model)
        run: Callable[..., Any] = pinned(
            self.model, plans, dynamic=self.how.dynamic or None, numerics=self.how.numerics
        )
        return run

    def _kept(
        self,
        captured: CapturedModel,
        found: Sequence[tuple[Session, Searched]],
        plans: Sequence[Plan],
    ) -> list[PlanRecord]:
        """The records that the store has after the plans are saved."""
        records = []
        for number, ((session, _), plan) in enumerate(zip(found, plans, strict=True)):
            session.save(plan, self.place.profile)
            records.append(self._record(captured, number))
        for session, _ in found:
            session.mirror_trials()
        return records

    def _modelled(self, captured: CapturedModel) -> tuple[list[PlanRecord], bool]:
        """The cost model's plans, as `run`; what was measured is not replaced by them."""
        records: list[PlanRecord] = []
        with interruption() as interrupted:
            for number in range(len(captured.parts)):
                try:
                    self._session(captured, number, 1.0).modelled(self.place.profile)
                except KeyboardInterrupt:
                    if not records:
                        raise
                    break
                records.append(self._record(captured, number))
                if interrupted.is_set():
                    break
        return records, interrupted.is_set() or len(records) < len(captured.parts)

    def _record(self, captured: CapturedModel, number: int) -> PlanRecord:
        """The stored plan of a graph; one that was measured comes before one made elsewhere."""
        key, device = captured.parts[number].key, self.place.profile.key
        found = plans_of_graph(self.store, key, device)
        if not found:
            title = self._title(captured, number)
            raise PlanError(f"the plan of {title} is not in {self.store.location}: tune it again")
        if self.place.is_elsewhere and found[0].evidence != "measured":
            return found[-1]
        return found[0]


def _stopped(pressed: Event, found: Sequence[tuple[Session, Searched]]) -> bool:
    """Whether Ctrl-C, or the loss of the device, has ended the tune."""
    return pressed.is_set() or any(session.lost for session, _ in found)


def _cut_off(session: Session, searched: Searched) -> Plan:
    """The plan of a graph when the time ends before the contest does: eager, where there is no
    other."""
    if searched.finalists.best is None and not searched.plans:
        return searched.identity.plan((), "searched")
    return session.uncompared(searched, "the time of the tune was over")


def _addresses(model: Callable[..., Any]) -> frozenset[int]:
    """Where the tensors of a model lie that are the same ones in every call."""
    if not isinstance(model, torch.nn.Module):
        return frozenset()
    return frozenset(t.data_ptr() for t in (*model.parameters(), *model.buffers()))


def _name_of(model: Callable[..., Any]) -> str:
    """What to call a model that has no file: its class, or the function's own name."""
    return str(getattr(model, "__name__", type(model).__name__))
