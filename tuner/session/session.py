"""One tune of one graph: search covers and configs, compare the winner with baselines, store it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch

from ...db.store import Store
from ...planner.capture.capture import Captured, Stage
from ...planner.costs.device import DeviceProfile, builtin, profile_of
from ...planner.errors import Refusal, summary_of
from ...planner.graph.graph import key as graph_key
from ...planner.graph.varying import bucket_key, family_key, is_varying
from ...planner.groups.plan_at_sizes import plan_at
from ...planner.origin import Origin
from ...planner.plan import Plan
from ...planner.runtime.machine_code.compile import interpreted
from ...planner.versions import versions
from ..capture.capture_model import CallArguments, ModelGraph
from ..capture.rotating_inputs import TURNS, RotatingInputs
from ..decision.baselines import (
    Baselines,
    different_products,
    graph_baselines,
    modes_left_out,
    real_inputs,
)
from ..decision.decide import Decision, Entrant, by_executor
from ..decision.device_turns import Stop, Turn, side_by_side
from ..decision.finalists import Arena, Finalists, finalists
from ..measure.contest import Ring, Rules, TurnCall
from ..measure.host_caches import cooler
from ..measure.lost_device import why_lost
from ..measure.time_limit import end_now
from ..measure.timing import Stopwatch, conditions
from ..measure.wall import LEAST_SIZES_SHARE, SIZES_SHARE, Wall
from ..model_fit.refit import calibrated
from ..progress.progress import Progress, Silent
from ..records.findings import Findings
from ..records.jobs import OfferedJob
from ..records.ledger import Ledger, device_record, graph_record
from ..records.optuna_export import mirror
from ..records.plan_record import plan_record
from ..records.stored_plans import plans_of_graph
from ..search.graph_search import GraphSearch
from ..search.group_trials import Budget
from ..search.runoff import SharedSearch
from ..search.split_groups import with_slow_groups_split
from ..search.tuned_groups import (
    Identity,
    Partition,
    Tasks,
    completed,
    plan_of,
    runners_up,
)
from ..trial.outcome import DeviceFull, DeviceLost
from ..workers.kernels_ahead import KernelCompilers
from ..workers.lab import Lab
from .effort import EFFORTS, TuneLimits
from .gated_lab import GatedLab
from .offline import plan_offline
from .other_sizes import OtherSizes, moved_sizes
from .searched_plans import INTERRUPTED, Searched
from .tune_site import RULES_ON_CPU, LabOptions, TuneSite

RUNNERS_UP, WITHIN = 3, 1.04


def tune_captured(
    captured: Captured,
    inputs: Sequence[Any],
    *,
    store: Store | str | Path | None = None,
    profile: DeviceProfile | None = None,
    stage: Stage = "inference",
    trials: int = EFFORTS["default"].trials,
    seconds: float = EFFORTS["default"].seconds,
    progress: Progress | None = None,
    baselines: Callable[[RotatingInputs], Mapping[str, TurnCall]] | None = None,
    name: str = "",
    seed: int = 0,
    compilers: int | None = None,
) -> Plan:
    """Tune a captured graph on its device and store the plan, which is returned.

    On a CUDA device (and in Triton's interpreter, as a rehearsal) candidates are measured. Else
    the plan is the model's for `profile` (default: H200): compiled, checked in the interpreter,
    evidence "modelled". inputs: of the graph; fake ones are made up. baselines: "eager", and modes
    of torch.compile, on the inputs of a turn; None: eager and Inductor on the captured graph.
    compilers: processes that compile.

    Ctrl-C ends the search and keeps the best so far; without any finding it is raised again.
    """
    limits = TuneLimits(trials, seconds, seed)
    told = progress or Silent()
    with _opened(store) as opened:
        session = Session(captured, inputs, opened, limits, told, name, compilers)
        if captured.device.type == "cuda" or interpreted():
            found = profile or calibrated(opened, profile_of(captured.device))
            return session.measured(found, baselines, stage)
        return session.modelled(profile or builtin("h200"))


@dataclass(slots=True)
class Session:
    """One tune of one graph. static: addresses of inputs that are the same in every call, such as
    weights. wall: the time budget of the tune; None: a new one of `limits.seconds`. share: this
    graph's part of the time that is left before the end of the tune."""

    captured: Captured
    inputs: Sequence[Any]
    store: Store
    limits: TuneLimits
    progress: Progress
    name: str = ""
    compilers: int | None = None
    static: Collection[int] = ()
    site: TuneSite = field(default_factory=TuneSite)
    origin: Origin = field(default_factory=Origin)
    job: OfferedJob | None = None
    """The search as others share it."""
    wall: Wall | None = None
    share: float = 1.0
    lost: DeviceLost | None = None
    """Set when the device has stopped working: nothing is timed on it from then on."""
    for_other_sizes: Plan | None = None
    """A plan of ours, where a baseline is kept for the sizes of the tune."""
    _other_sizes: OtherSizes = field(default_factory=OtherSizes)
    _ledger: Ledger | None = None
    """Of the search."""
    _checks_at: float = 0.0
    """When the search ends, at other sizes too."""

    def measured(
        self,
        profile: DeviceProfile,
        baselines: Callable[[RotatingInputs], Mapping[str, TurnCall]] | None = None,
        stage: Stage = "inference",
    ) -> Plan:
        """Search on the device, then the contest, of this graph by itself; for a caller that has
        no model at hand. baselines: calls on the inputs of a turn; None: eager and Inductor on the
        captured graph. Of a graph of training a baseline is timed, but kept only where there is
        nothing of ours: what runs the forward graph runs the backward graph too."""
        self.inputs = real_inputs(self.captured, self.inputs, self.limits.seed)
        turns = RotatingInputs.of(CallArguments(tuple(self.inputs)))
        make = baselines or partial(graph_baselines, self.captured, stage=stage)
        wall = self._begun()
        products = different_products([self.captured.graph])
        contestants = Baselines(make(turns), self.progress, wall=wall, products=products)
        contestants.left_out |= modes_left_out(self.captured, stage)
        found = self.searched(profile, contestants, stage)
        part = ModelGraph(found.identity.graph_key, self.captured, tuple(self.inputs), stage)
        decision = Decision(
            [Entrant(part, found.finalists, found.identity)],
            contestants,
            partial(by_executor, self.captured),
            Ring(self.stopwatch(profile), turns, self.rules, cooler(self.captured.device)),
            self.progress,
            conditions=self.conditions,
            ours_only=stage != "inference",
            wall=wall,
        )
        (plan,) = self.decided(decision.plans, [(self, found)])
        self.for_other_sizes = decision.for_other_sizes.get(found.identity.graph_key)
        self.save(plan, profile)
        self.mirror_trials()
        return plan

    def decided(
        self,
        contest: Callable[[], Sequence[Plan]] | None,
        found: Sequence[tuple[Session, Searched]],
    ) -> list[Plan]:
        """The plans that the contest of all graphs keeps. If Ctrl-C ends the contest, or the device
        is lost: the best plans of the searches. contest: None if there can be none."""
        sessions = [session for session, _ in found]
        if contest is not None and not any(session.lost for session in sessions):
            try:
                return list(contest())
            except KeyboardInterrupt:
                pass
            except RuntimeError as error:
                self._note_if_lost(error)
        lost = next((session.lost for session in sessions if session.lost), None)
        for session in sessions:
            session.lost = lost
        return [session.uncompared(searched) for session, searched in found]

    def searched(
        self, profile: DeviceProfile, baselines: Baselines, stage: Stage = "inference"
    ) -> Searched:
        """Searches on the device, then checks and times the best plans. During the first search of
        a tune the baselines are compiled."""
        wall = self._begun()
        identity = self._record(profile)
        findings, tasks = Findings(), Tasks(self.captured.graph, profile, self.site.cover)
        ledger = Ledger(self.store, profile.key, identity.versions, identity.graph_key)
        with self._lab(profile) as lab:
            gated = GatedLab(lab, baselines)
            shared = SharedSearch(gated, ledger, findings, self.progress, self.limits.seed)
            stop = Stop(wall.clock)

            def prepared() -> GraphSearch | None:
                until = wall.planned_until(self.share)
                # A plan by the model alone is worth half of what is kept for the contest.
                planned = tasks.plan(
                    lab,
                    is_over=lambda: stop.is_set() or wall.is_late,
                    is_enough=lambda: wall.clock() >= until,
                )
                if not planned:
                    return None
                if self.job is not None:
                    self.job.planned(tasks.planned)
                tasks.begin(tasks.first, lab)
                # It is given an end when it begins.
                budget = Budget(self.limits.trials_of(tasks.different), clock=stop)
                return GraphSearch(tasks, shared, identity, budget)

            search = self._search(prepared, findings, gated, stop)
            if search is not None and is_varying(self.captured.graph):
                # In the interpreter a time says nothing.
                measures = None if self._on_cpu else shared
                self.progress.phase("sizes", "the best groups at other sizes")
                budget = Budget(search.budget.trials, self._checks_at, wall.clock)
                least_s = LEAST_SIZES_SHARE * self.share * wall.seconds
                self._other_sizes.learn(
                    search.partitions.best(1), tasks, findings, measures, budget, least_s
                )
            gated.cancel()
            if self.job is not None:
                self.job.end()
            gated.warm()  # where nothing was to be measured, and nothing interrupted
            plans = self._plans(search, tasks, findings, identity)
            left_s = wall.left_s
            lab.release()
            best = Finalists()
            if self.lost is None:
                best = self._finalists(plans, profile, identity, stage, lab, baselines.turn)
            wall.check_s = max(wall.check_s, left_s - wall.left_s)
            if best.best is not None:
                ledger.add_plan(best.best.plan, self.name)
        self._ledger = ledger
        return Searched(identity, best, tuple(plans))

    def _plans(
        self, search: GraphSearch | None, tasks: Tasks, findings: Findings, identity: Identity
    ) -> list[Plan]:
        """The plans that the search found, in the order of its preference."""
        if search is None:
            self.progress.note(f"{self.limits.seconds:g} s are too few to plan: allow more seconds")
            return []
        partitions = search.partitions.best()
        self._tell_what_was_not_tried(tasks, findings, partitions)
        plans = [plan_of(p.groups, tasks, findings, identity) for p in partitions]
        if not plans:
            return []
        first = with_slow_groups_split(partitions[0].groups, tasks, findings)
        untried = completed(first, tasks, findings, identity)
        plans = [*([untried] if untried else []), *plans]
        return [
            *search.regional.plans(plans),
            *plans,
            *runners_up(plans[0], tasks, findings, RUNNERS_UP, WITHIN),
        ]

    def _finalists(
        self,
        plans: Sequence[Plan],
        profile: DeviceProfile,
        identity: Identity,
        stage: Stage,
        compilers: KernelCompilers,
        turn: Turn,
    ) -> Finalists:
        """The finalists among the plans that the search found and the one that the store has."""
        self.progress.phase("verify", "checking and timing the best plans")
        # What a forward graph saves stays in place for its backward graph, as in a training loop.
        count = TURNS if stage != "backward" else 1
        turns = RotatingInputs.of(CallArguments(tuple(self.inputs)), self.static, count)
        cool = cooler(self.captured.device)
        ring = Ring(self.stopwatch(profile), turns, self.rules, cool)
        wall = self._begun()
        half_s = self.share * wall.before_end_s / 2
        until = wall.clock() + half_s
        known = self._known(profile)
        arena = Arena(
            *(self.captured, self.inputs, identity, ring.within(half_s), self.progress, stage),
            is_over=lambda: wall.clock() >= until,
            always=1 if known is None else 2,
            left_s=wall.check_left_s,
            compilers=None if self._on_cpu else compilers,
            turn=turn,
        )
        try:
            return finalists([*([known] if known else []), *plans], arena)
        except KeyboardInterrupt:
            if not plans:
                raise
            self.progress.note("interrupted: the best plan of the search was not compared")
            return Finalists()
        except RuntimeError as error:
            self._note_if_lost(error)
            return Finalists()

    def _note_if_lost(self, error: DeviceLost | RuntimeError) -> None:
        """Remembers a lost device, or one whose memory is full, if that caused the error. Else
        raises the error again."""
        device = self.captured.device
        full = isinstance(error, torch.OutOfMemoryError)
        why = None if full or isinstance(error, DeviceLost) else why_lost(device)
        if full:
            torch.cuda.empty_cache()
            self.lost = DeviceFull(device, summary_of(error))
        elif why is not None:
            self.lost = DeviceLost(device, why)
        elif isinstance(error, DeviceLost):
            self.lost = error
        else:
            raise error
        self.progress.note(str(self.lost))

    def uncompared(self, found: Searched, why: str = INTERRUPTED) -> Plan:
        """The plan that is kept without a contest: after Ctrl-C, the end of all time, or the loss
        of the device. Raises KeyboardInterrupt, or DeviceLost, if there is none."""
        if found.is_empty:
            raise self.lost or KeyboardInterrupt
        why = why if self.lost is None else self.lost.SAID
        self.progress.note(f"{why}: the plan was not compared with eager and torch.compile")
        return found.uncompared()

    def _known(self, profile: DeviceProfile) -> Plan | None:
        """The plan of the store, which a new one has to beat."""
        found = plans_of_graph(self.store, graph_key(self.captured.graph), profile.key)
        if not found or found[0].evidence != "measured":
            return None
        try:
            return Plan.from_json(found[0].payload)
        except ValueError:
            return None

    def conditions(self) -> dict[str, int]:
        return {} if self._on_cpu else conditions(self.captured.device.index or 0)

    def _tell_what_was_not_tried(
        self, tasks: Tasks, findings: Findings, partitions: Sequence[Partition]
    ) -> None:
        """Says so if the budget ended before any kernel was measured, or one of every group."""
        own = {task.group.key: task for p in partitions[:1] for task in tasks.all(p.groups)}
        ours = {key: task.space for key, task in own.items() if not task.vendor_s}
        possible = [key for key, space in ours.items() if not isinstance(space, Refusal)]
        without = sum(not findings.of(key).trials for key in possible)
        within = f"within {self.limits.trials} trials and {self.limits.seconds:g} s"
        if possible and not any(found.trials for found in findings.groups.values()):
            self.progress.note(
                f"no kernel was measured {within}: the cost model's plan is compared with eager "
                "and torch.compile; allow more seconds"
            )
        elif without:
            self.progress.note(
                f"of {without} of {len(possible)} groups no kernel was measured {within}: the cost "
                "model says how they run; allow more seconds"
            )

    def _begun(self) -> Wall:
        """The time budget of the tune. That of a single graph begins with the first call."""
        if self.wall is None:
            self.wall = Wall(self.limits.seconds)
        return self.wall

    @property
    def _on_cpu(self) -> bool:
        return self.captured.device.type != "cuda"

    def _lab(self, profile: DeviceProfile) -> AbstractContextManager[Lab]:
        options = LabOptions(self.captured.device, profile, self._begun(), self.compilers)
        return options.opened(self.site.lab, self.limits.seed)

    def stopwatch(self, profile: DeviceProfile) -> Stopwatch:
        return self.site.stopwatch(self.captured.device, profile.l2_bytes)

    @property
    def rules(self) -> Rules:
        return RULES_ON_CPU if self._on_cpu else Rules()

    def modelled(self, profile: DeviceProfile) -> Plan:
        """The model's plan: compiled for the target, checked in the interpreter, not measured."""
        identity = self._record(profile, portable=self._on_cpu)
        tasks = Tasks(self.captured.graph, profile, self.site.cover)
        plan = plan_offline(tasks, identity, self.progress, self.compilers, self.limits.seed)
        self.save(plan, profile)
        return plan

    def _search(
        self,
        prepare: Callable[[], GraphSearch | None],
        findings: Findings,
        lab: GatedLab,
        stop: Stop,
    ) -> GraphSearch | None:
        """Searches until the budget is spent, or until Ctrl-C if there is a result by then.
        prepare: plans the graph. Returns None if the time was over before the graph was
        planned."""
        beside = lab.baselines.compiles and self.site.beside(self.captured.device)
        made: list[GraphSearch] = []

        def run() -> None:
            search = prepare()
            if search is None:
                return
            made.append(search)
            self.progress.phase("search", f"up to {search.budget.trials} trials")
            for group, config in search.partitions.ahead():
                lab.begin(group, config)
            if not beside:
                lab.warm()
            search.end_at(self._search_until())
            search.run()

        try:
            if beside:
                self._beside(run, lab, stop)
            else:
                run()
        except KeyboardInterrupt:
            if not any(g.found for g in findings.groups.values()):
                raise
            self.progress.note("interrupted: the best so far is verified and kept")
        except (DeviceLost, RuntimeError) as error:
            self._note_if_lost(error)
            if not any(g.found for g in findings.groups.values()):
                raise self.lost or error from None
        return made[0] if made else None

    def _beside(self, work: Callable[[], None], lab: GatedLab, stop: Stop) -> None:
        """Does the work in another thread while torch.compile compiles the baselines in this one.
        Compiling keeps one core busy and leaves the device idle, except while it times kernels."""
        device, done = self.captured.device, Event()
        is_cuda = device.type == "cuda"

        def run() -> None:
            with torch.no_grad(), torch.cuda.device(device) if is_cuda else nullcontext():
                work()
            done.set()

        is_last = self.share == 1.0
        lab.open, lab.baselines.beside = True, is_last
        lab.baselines.is_over = stop.is_set
        lab.baselines.is_enough = lambda: done.is_set() and not is_last
        side_by_side(run, lab.baselines.warm, stop, end_now)

    def _search_until(self) -> float:
        wall = self._begun()
        self._checks_at = until = wall.search_until(self.share)
        return until - SIZES_SHARE * (until - wall.clock()) * is_varying(self.captured.graph)

    def _record(self, profile: DeviceProfile, portable: bool = False) -> Identity:
        key = graph_key(self.captured.graph)
        self.store.put_device(device_record(profile))
        self.store.put_graph(graph_record(self.captured.graph, key, self.name or key[:12]))
        return Identity(key, profile.key, versions(portable=portable))

    def save(self, plan: Plan, profile: DeviceProfile) -> None:
        """A plan with better evidence is not replaced by one with worse."""
        self.progress.phase("store", self.store.location)
        if self.for_other_sizes is not None:
            self._save_for_other_sizes(self.for_other_sizes, profile)
        exact = self.store.plan(plan.graph_key, profile.key, versions())
        if plan.evidence == "modelled" and exact is not None and exact.evidence != "modelled":
            self.progress.note(f"the store keeps its plan for this graph: it is {exact.evidence}")
            return
        plan = self._other_sizes.added(plan, self.captured.graph, profile)
        wide = family_key if plan.is_for_all_sizes else bucket_key
        bucket = wide(self.captured.graph)
        record = plan_record(plan, profile.key, self.name, bucket, self.origin)
        if not self.store.save_plan(record):
            known = self.store.plan(plan.graph_key, profile.key, dict(plan.versions))
            word = "better" if known is None else known.evidence
            self.progress.note(f"the store keeps its plan for this graph: it is {word}")

    def _save_for_other_sizes(self, plan: Plan, profile: DeviceProfile) -> None:
        """Keeps a plan for all sizes beside the one that is kept for those of the tune. It stands
        in the store as that of the graph at other sizes."""
        graph = self.captured.graph
        plan = self._other_sizes.added(plan, graph, profile)
        moved = moved_sizes(graph) if plan.is_for_all_sizes else None
        if moved is None:
            return
        plan, key = plan_at(plan, moved), graph_key(moved)
        self.store.put_graph(graph_record(moved, key, self.name or key[:12]))
        self.store.save_plan(
            plan_record(plan, profile.key, self.name, family_key(moved), self.origin)
        )
        self.progress.note("at other sizes than those of the tune it runs by kernels of ours")

    def mirror_trials(self) -> None:
        """Write the trials to Optuna's tables, as far as there is time: a later tune writes those
        that are missing."""
        wall, ledger = self._begun(), self._ledger
        reason = mirror(self.store, ledger, lambda: not wall.left_s) if ledger else None
        if reason is not None:
            self.progress.note(reason)


@contextmanager
def _opened(store: Store | str | Path | None) -> Iterator[Store]:
    """The store itself, or one opened at a location for as long as it is needed."""
    if isinstance(store, Store):
        yield store
        return
    with Store.open(store) as opened:
        yield opened
