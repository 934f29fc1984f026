"""The last word: the best plans end to end, beside the peers, in one interleaved run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..planner.capture.capture import Captured, Stage
from ..planner.covers.pricing import SPARED
from ..planner.errors import FusionplanError
from ..planner.graph.graph import Graph
from ..planner.graph.ops import is_compute
from ..planner.graph.varying import is_varying
from ..planner.plan import Plan
from ..planner.regions.ways import REGIONAL
from ..planner.runtime.cudagraph import GraphedExecutor
from ..planner.runtime.dispatch import whole_lowering
from ..planner.runtime.executor import Executor
from .gate import Case, case, fault
from .groups import Identity
from .measure import TIE, Call, Interleaved, Timer
from .peers import peer_plan
from .progress import Progress

BUDGET_S = 0.25
"""Seconds of runs for each candidate."""

_OWN_GRAPHS = ("max-autotune", "reduce-overhead")
"""Modes of torch.compile that capture CUDA graphs themselves, which cannot be within another."""

_ANEW = "captured anew"

OVERLAPPING = (9, 0)
"""The compute capability from which a kernel can be launched while the one before it ends."""

_STEADY = 1.02
"""Times another mode's seconds, on a host that has nothing else to do, that one with CUDA graphs
may take."""

Run = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Runner:
    """A plan that runs, and whether as a CUDA graph."""

    plan: Plan
    run: Run
    kernels: int


@dataclass(frozen=True, slots=True)
class Arena:
    """What all contestants share. stage: of a graph of training no peer's way is kept, unless we
    have none: whether the peers win is decided for the forward and the backward graph together
    (see `training`)."""

    captured: Captured
    inputs: Sequence[Any]
    identity: Identity
    timer: Timer
    progress: Progress
    stage: Stage = "inference"


def contest(plans: Sequence[Plan], peers: Mapping[str, Call], arena: Arena) -> Plan:
    """The plan to keep, with its measured seconds and the peers'. When a peer is faster than
    ours above noise, that is the peer's own way of running the whole graph (but see `Arena`)."""
    runners = _runners(plans, arena)
    if not runners and not peers:
        return arena.identity.plan((), "measured")
    calls: dict[str, Call] = {
        f"plan {name}": _bound(runner, arena.inputs) for name, runner in runners.items()
    }
    calls |= peers
    with torch.no_grad():
        result = arena.timer.interleaved(calls, budget_s=BUDGET_S * len(calls))
    seconds = {name: result.timing(name).seconds for name in calls}
    own = {f"plan {n}": r.plan for n, r in runners.items()}
    figures = tuple((name, seconds[name]) for name in peers)
    rivals = list(peers) if arena.stage == "inference" or not own else []
    ours = _sparing(own, seconds)
    if ours is None or _beaten_by(ours, rivals, result) is not None:
        ours = _winner(own, seconds)
    beaten_by = _beaten_by(ours, rivals, result)
    if beaten_by is not None:
        if ours is not None:
            arena.progress.note(
                f"{beaten_by} is faster than our plan ({seconds[beaten_by] * 1e3:.4g} ms against "
                f"{seconds[ours] * 1e3:.4g} ms): it is kept as the plan"
            )
        plan = peer_plan(beaten_by, seconds[beaten_by], arena.captured.graph, arena.identity)
        plan = replace(plan, measured=seconds[beaten_by], peers=figures)
        return _captured_anew(plan, beaten_by, peers[beaten_by], arena)
    assert ours is not None
    plan = runners[ours.removeprefix("plan ")].plan
    return replace(plan, measured=seconds[ours], peers=figures)


def _captured_anew(kept: Plan, mode: str, peer: Call, arena: Arena) -> Plan:
    """The kernels of a mode with CUDA graphs in a graph of ours, whose replay costs the host less;
    the mode's own way where that is faster, or cannot be."""
    on_gpu = arena.captured.device.type == "cuda"
    if mode not in _OWN_GRAPHS or arena.stage != "inference" or not on_gpu:
        return kept
    if is_varying(arena.captured.graph):
        return kept  # Every set of sizes would be compiled anew, while the model runs.
    try:
        executor = Executor(arena.captured, replace(kept, cudagraph=True), arena.captured.device)
        graphed = _graphed(mode, kept, executor, case(arena.captured, arena.inputs), arena)
    except Exception as error:  # noqa: BLE001 - Inductor, on the graph as it was captured
        first = (str(error).strip().splitlines() or [""])[0]
        arena.progress.note(f"{mode} is not captured anew: {type(error).__name__}: {first}")
        return kept
    if graphed is None:
        return kept
    calls = {_ANEW: _bound(graphed, arena.inputs), mode: peer}
    with torch.no_grad():
        result = arena.timer.interleaved(calls, budget_s=BUDGET_S * len(calls))
    if result.wins(mode, _ANEW):
        return kept
    arena.progress.note(f"the kernels of {mode} are replayed by a CUDA graph of fusionplan's")
    found, own = (result.timing(name).seconds for name in calls)
    figures = tuple((name, own if name == mode else s) for name, s in kept.peers)
    return replace(graphed.plan, measured=found, peers=figures)


def _winner(plans: Mapping[str, Plan], seconds: Mapping[str, float]) -> str | None:
    """The fastest of ours; of equals the first."""
    if not plans:
        return None
    least = min(seconds[name] for name in plans)
    return next(name for name in plans if seconds[name] <= least * (1 + TIE))


def _sparing(plans: Mapping[str, Plan], seconds: Mapping[str, float]) -> str | None:
    """The fastest of ours that spares a region's large values, where that costs little time."""
    found = {n: p for n, p in plans.items() if any(g.lowering in REGIONAL for g in p.groups)}
    name = _winner(found, seconds)
    if name is None or seconds[name] > min(seconds[n] for n in plans) * SPARED:
        return None
    return name


def _beaten_by(ours: str | None, peers: Sequence[str], result: Interleaved) -> str | None:
    """The fastest of the peers that win over ours; of all of them when we have nothing. One with
    CUDA graphs before one that is hardly faster: it does not wait for a host that is slow or
    busy."""
    winners = [name for name in peers if ours is None or result.wins(name, ours)]
    seconds = {name: result.timing(name).seconds for name in winners}
    least = min(seconds.values(), default=0.0)
    near = [name for name in _OWN_GRAPHS if seconds.get(name, math.inf) <= least * _STEADY]
    return min(near or winners, key=lambda name: seconds[name], default=None)


def _runners(plans: Sequence[Plan], arena: Arena) -> dict[str, Runner]:
    """The plans that build and compute the right thing; with a CUDA graph too where there is
    more than one launch to save, of kernels of ours or of libraries."""
    found: dict[str, Runner] = {}
    given: Case | None = None
    for number, plan in enumerate(plans):
        # A plan without a group of its own runs as eager or torch.compile does, and so is timed
        # as a peer. Not so a backward graph's: it has no code of the user's to fall back on.
        whole = whole_lowering(plan, arena.captured.graph)
        if whole is not None and arena.stage != "backward":
            continue
        try:
            executor = Executor(arena.captured, plan, arena.captured.device)
            if given is None:
                given = case(arena.captured, arena.inputs)
            reason = fault(executor, given)
        except FusionplanError as error:
            reason = str(error)
        if reason is not None:
            arena.progress.note(f"plan {number} is left out: {reason}")
            continue
        assert given is not None
        found[str(number)] = Runner(plan, executor, executor.kernels_per_call)
        if _saves_launches(plan, arena):
            found |= _graphs(str(number), plan, executor, given, arena)
    return found


def _saves_launches(plan: Plan, arena: Arena) -> bool:
    """Whether a CUDA graph is worth trying."""
    if arena.captured.device.type != "cuda" or launches(plan, arena.captured.graph) < 2:
        return False
    return not any(g.lowering == "inductor" and g.options in _OWN_GRAPHS for g in plan.groups)


def _graphs(
    name: str, plan: Plan, executor: Executor, given: Case, arena: Arena
) -> dict[str, Runner]:
    """The plan as CUDA graphs: with launches that overlap, and without where that cannot be, or
    where this is the plan that the search likes best."""
    found: dict[str, Runner] = {}
    device = arena.captured.device
    # What Inductor compiles for a plan takes too long to be compiled twice.
    others = any(g.lowering == "inductor" for g in plan.groups)
    ours = executor.kernels_per_call and not others
    if ours and torch.cuda.get_device_capability(device) >= OVERLAPPING:
        overlapping = replace(plan, overlaps=True)
        try:
            other = Executor(arena.captured, overlapping, device)
            graphed = _graphed(name, overlapping, other, given, arena)
        except FusionplanError as error:
            arena.progress.note(f"plan {name} is not tried with launches that overlap: {error}")
            graphed = None
        if graphed is not None:
            found[f"{name} as a graph, overlapping"] = graphed
    if not found or name == "0":
        graphed = _graphed(name, plan, executor, given, arena)
        if graphed is not None:
            found[f"{name} as a graph"] = graphed
    return found


def _graphed(name: str, plan: Plan, executor: Executor, given: Case, arena: Arena) -> Runner | None:
    """The plan as a CUDA graph; None where that cannot be, with a note."""
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
    return Runner(replace(plan, cudagraph=True), run, executor.kernels_per_call)


def launches(plan: Plan, graph: Graph) -> int:
    """At least so many kernels a call launches: those of each group, and one for each operation
    outside of them."""
    grouped = {n for g in plan.groups if g.lowering != "aten" for n in g.nodes}
    apart = sum(is_compute(n) and n.id not in grouped for n in graph.nodes)
    return apart + sum(g.kernels or 1 for g in plan.groups if g.lowering != "aten")


def _bound(runner: Runner, inputs: Sequence[Any]) -> Call:
    run = runner.run
    return lambda: run(*inputs)
