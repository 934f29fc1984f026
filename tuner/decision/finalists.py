"""The plans of one graph that go into the contest: right ones, the fastest of their kind.

They are compared among themselves as bare executors, which are all called in the same way. Whether
one of them is kept is decided beside eager and torch.compile, by the whole call (see `decide`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ...planner.capture.capture import Captured, Stage
from ...planner.errors import FusionplanError, summary_of
from ...planner.graph.graph import Graph
from ...planner.graph.ops import is_compute
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import Contest, Plan
from ...planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from ...planner.runtime.dispatch.whole_way import whole_way
from ...planner.runtime.execution.executor import Executor, Lower
from ...planner.runtime.execution.overlapping import OVERLAPPING
from ...planner.runtime.execution.substitutes import ATenInstead
from ..gate.gate import Failed, GateCase, Passed, cases, fault, judge
from ..measure.contest import Ring, TurnCall
from ..measure.time_limit import OutOfTime, stopped_after
from ..measure.timing import SPARED, first_of_equals
from ..measure.turns import current_gpu_turn
from ..progress.progress import Progress
from ..search.tuned_groups import Identity
from ..workers.kernels_ahead import (
    KernelCompilers,
    Variant,
    kernels_of,
    loader_without,
    lowered_once,
)

COMPILE_SHARE = 0.6
"""Of the time for checking a plan, what compiling its kernels may take."""

PlanRun = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class RunnablePlan:
    """A plan that runs, and whether as a CUDA graph; passed: on what the gate found it right."""

    plan: Plan
    run: PlanRun
    kernels: int
    passed: Passed


@dataclass(frozen=True, slots=True)
class Arena:
    """The graph, the inputs and the site that all plans of a graph share. ring: holds copies of
    `inputs`, of which those that change from call to call are different tensors in each turn.
    is_over: whether the time for checking plans is; those that are `always` checked are so all the
    same, and what follows them until one is right."""

    captured: Captured
    inputs: Sequence[Any]
    identity: Identity
    ring: Ring
    progress: Progress
    stage: Stage = "inference"
    is_over: Callable[[], bool] = lambda: False
    always: int = 1
    """So many plans are checked whatever the time: the stored one, where there is one, and a new
    one."""
    compilers: KernelCompilers | None = None
    """Those that compile a plan's kernels at the same time; None: they are compiled where they are
    loaded, one after the other."""
    lower: Lower = field(default_factory=lowered_once)
    left_s: Callable[[bool], float] = lambda is_needed: float("inf")
    """The seconds after which checking a plan is cut off; is_needed: no other one was right."""
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Held while plans are timed: other processes may still compile modes of torch.compile."""


@dataclass(frozen=True, slots=True)
class Finalists:
    """The plans of a graph that go on. best: the fastest. plain, graphed: the fastest without and
    with a CUDA graph. sparing: one that spares a region's large values for little more time."""

    best: RunnablePlan | None = None
    plain: RunnablePlan | None = None
    graphed: RunnablePlan | None = None
    sparing: RunnablePlan | None = None


def finalists(plans: Sequence[Plan], arena: Arena) -> Finalists:
    """Of plans in the order of the search's preference."""
    runners = _runners(plans, arena)
    if not runners:
        return Finalists()
    ring = arena.ring.within(arena.left_s(True))
    with torch.no_grad(), arena.turn:
        told = ring.contest({n: _bound(r, arena) for n, r in runners.items()})
    timed = {c.name: c.busy_s for c in told.contestants}
    runners = {n: replace(r, plan=replace(r.plan, measured=timed[n])) for n, r in runners.items()}
    best = runners[told.winner]
    return Finalists(
        best,
        _first(runners, told, lambda plan: not plan.cudagraph),
        _first(runners, told, lambda plan: plan.cudagraph),
        None if _spares(best.plan) else _first(runners, told, _spares, SPARED),
    )


def _spares(plan: Plan) -> bool:
    return any(lowering_of(group).spares for group in plan.groups)


def _first(
    runners: Mapping[str, RunnablePlan],
    told: Contest,
    wanted: Callable[[Plan], bool],
    most: float = float("inf"),
) -> RunnablePlan | None:
    """The least behind of the wanted ones, the first of equals."""
    behind = {c.name: c.behind for c in told.contestants if wanted(runners[c.name].plan)}
    near = [(name, b) for name, b in behind.items() if b <= most]
    return runners[first_of_equals(near)] if near else None


def _runners(plans: Sequence[Plan], arena: Arena) -> dict[str, RunnablePlan]:
    """The plans that build and compute the right thing; with a CUDA graph too where there is
    more than one launch to save, of kernels of ours or of libraries."""
    found: dict[str, RunnablePlan] = {}
    given: list[GateCase] = []
    for number, plan in enumerate(plans):
        over = bool(found) and number >= arena.always and arena.is_over()
        if not over:
            # A stored plan says how it ran; here every plan is tried in all of its ways.
            plan = replace(plan, cudagraph=False, overlaps=False)
            try:
                with stopped_after(arena.left_s(not found)):
                    _check(number, plan, found, given, arena)
            except OutOfTime:
                over = str(number) not in found
        if over:
            rest = f"{len(plans) - number} of {len(plans)} plans"
            arena.progress.note(f"{rest} are not compared: the time for checking them is over")
            break
    return found


def _check(
    number: int,
    plan: Plan,
    found: dict[str, RunnablePlan],
    given: list[GateCase],
    arena: Arena,
) -> None:
    """Adds a plan in each way in which it is right. given: what it is tried on, which is made for
    the first."""
    # A plan without a group of its own runs as eager or torch.compile does, and so is timed
    # as a baseline. Not so a backward graph's: it has no code of the user's to fall back on.
    whole = whole_way(plan, arena.captured.graph)
    if whole is not None and arena.stage != "backward":
        return

    def make_cases() -> None:
        if not given:
            with current_gpu_turn():
                given.extend(cases(arena.captured, arena.inputs))
                for one in given:
                    one.expected  # noqa: B018 - it is kept, and takes seconds

    late = _compile_ahead(plan, arena, make_cases, COMPILE_SHARE * arena.left_s(not found))
    try:
        executor = _executor(number, plan, late, arena)
        make_cases()
        with current_gpu_turn():
            verdict = judge(executor, given)
    except FusionplanError as error:
        verdict = Failed(str(error))
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        verdict = Failed(f"out of device memory: {summary_of(error)}")
    if isinstance(verdict, Failed):
        arena.progress.note(f"plan {number} is left out: {verdict.reason}")
        return
    if verdict.by_eager:
        where = ", ".join(verdict.by_eager)
        arena.progress.note(f"plan {number} was compared with eager alone on {where} inputs")
    plan = executor.plan
    runner = RunnablePlan(plan, executor, executor.kernels_per_call, verdict)
    found[str(number)] = runner
    if _saves_launches(plan, arena):
        _add_graphs(found, str(number), runner, executor, given[0], arena)


def _executor(number: int, plan: Plan, late: Sequence[Variant], arena: Arena) -> Executor:
    """The plan as it is checked: groups with kernels that were not compiled in time run by ATen.
    Raises OutOfTime where no kernel is left."""
    captured = arena.captured
    make = partial(Executor, captured, plan, captured.device, lower=arena.lower)
    if not late:
        return make()
    executor = make(load=loader_without(late), substitutes=ATenInstead(captured.device))
    pairs = zip(plan.groups, executor.plan.groups, strict=True)
    changed = sum(before is not after for before, after in pairs)
    arena.progress.note(
        f"{changed} of {len(plan.groups)} groups of plan {number} run as in eager: there was no "
        "time to compile their kernels; allow more seconds"
    )
    if not executor.launchers:
        raise OutOfTime
    return executor


def _saves_launches(plan: Plan, arena: Arena) -> bool:
    """Whether a CUDA graph is worth trying."""
    if arena.captured.device.type != "cuda" or launches(plan, arena.captured.graph) < 2:
        return False
    return not any(lowering_of(g).owns_cuda_graphs(g.options) for g in plan.groups)


def _add_graphs(
    found: dict[str, RunnablePlan],
    name: str,
    runner: RunnablePlan,
    executor: Executor,
    given: GateCase,
    arena: Arena,
) -> None:
    """Adds the plan as CUDA graphs: of the plan that the search likes best without launches that
    overlap, then with them; of another without where overlapping cannot be."""
    device = arena.captured.device
    # What compiles for minutes is not compiled twice.
    slow = any(lowering_of(g).slow for g in runner.plan.groups)
    graphed = _graphed(name, runner, executor, given, arena) if name == "0" else None
    if graphed is not None:
        found[f"{name} as a graph"] = graphed
    other = None
    if executor.kernels_per_call and not slow and _may_overlap(arena):
        overlapping = replace(runner, plan=replace(runner.plan, overlaps=True))
        try:
            _compile_ahead(overlapping.plan, arena, lambda: None)
            made = Executor(arena.captured, overlapping.plan, device, lower=arena.lower)
            other = _graphed(name, overlapping, made, given, arena)
        except FusionplanError as error:
            arena.progress.note(f"plan {name} is not tried with launches that overlap: {error}")
    if other is not None:
        found[f"{name} as a graph, overlapping"] = other
    elif name != "0":
        graphed = _graphed(name, runner, executor, given, arena)
        if graphed is not None:
            found[f"{name} as a graph"] = graphed


def _may_overlap(arena: Arena) -> bool:
    """Whether launches that overlap are tried."""
    device = arena.captured.device
    return not arena.is_over() and torch.cuda.get_device_capability(device) >= OVERLAPPING


def _compile_ahead(
    plan: Plan, arena: Arena, meanwhile: Callable[[], None], limit_s: float = math.inf
) -> Sequence[Variant]:
    """Have all kernels of a plan compiled; returns those that were not within the limit. With
    launches that overlap they are others: those of a plan that was found right by itself are
    compiled after that, where there is time."""
    if arena.compilers is None:
        return ()
    kernels = kernels_of(arena.captured, [plan], arena.captured.device, arena.lower)
    return arena.compilers.compile_ahead(kernels, meanwhile, limit_s)


def _graphed(
    name: str, runner: RunnablePlan, executor: Executor, given: GateCase, arena: Arena
) -> RunnablePlan | None:
    """The plan as a CUDA graph; None where that cannot be, with a note. Its kernels are those of
    the plan that passed, so that it has to be right on one set of inputs."""
    run = GraphedExecutor(executor, copies=None if arena.stage == "inference" else 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # The second call with the same inputs captures, the third replays.
            for _ in range(2):
                run(*arena.inputs)
            reason = fault(run, given)
            torch.cuda.synchronize(arena.captured.device)
        except (FusionplanError, RuntimeError) as error:
            reason = str(error)
    if not run.replays:
        texts = [str(w.message) for w in caught if "CUDA graph" in str(w.message)]
        reason = texts[0] if texts else reason or "it was not captured"
    if reason is not None:
        first = reason.strip().splitlines()[0]
        arena.progress.note(f"plan {name} is not tried as a CUDA graph: {first}")
        return None
    return replace(runner, plan=replace(runner.plan, cudagraph=True), run=run)


def launches(plan: Plan, graph: Graph) -> int:
    """At least so many kernels a call launches: those of each group, and one for each operation
    outside of them."""
    groups = [g for g in plan.groups if not lowering_of(g).one_by_one]
    grouped = {n for g in groups for n in g.nodes}
    apart = sum(is_compute(n) and n.id not in grouped for n in graph.nodes)
    return apart + sum(g.kernels or 1 for g in groups)


def _bound(runner: RunnablePlan, arena: Arena) -> TurnCall:
    run, turns = runner.run, arena.ring.turns.calls

    def call(turn: int) -> object:
        return run(*turns[turn % len(turns)].args)

    return call
