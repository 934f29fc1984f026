"""The decision for a whole model: the plans of its graphs, or eager, or a mode of torch.compile.

Everything that takes part is a call of the whole model, made as its user makes it: the
model itself, `torch.compile(model, mode=...)`, and the model as `load` runs it by given plans. When
a baseline wins, its plan is timed as `load` runs it, too, before it is kept: that is what will run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...planner.capture.capture import Captured
from ...planner.cures import FusionplanWarning
from ...planner.graph.graph import key
from ...planner.graph.varying import is_varying
from ...planner.lowerings.inductor import MODES
from ...planner.lowerings.registry import INDUCTOR
from ...planner.plan import Contest, Plan
from ...planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from ...planner.runtime.dispatch.whole_way import whole_way
from ...planner.runtime.execution.executor import Executor
from ..capture.capture_model import Model, ModelGraph, describe
from ..gate.gate import Passed, as_baseline, measured
from ..measure.contest import Ring, TurnCall
from ..measure.timing import MARGIN, SPARED, first_of_equals, is_equal
from ..measure.wall import Wall
from ..progress.progress import Progress
from ..search.tuned_groups import Identity
from .baselines import EAGER, Baselines, baseline_plan, through
from .finalists import Finalists, RunnablePlan

PLAN, GRAPHED, SPARING = "plan", "plan as CUDA graphs", "plan that spares memory"
AS_KEPT = "as kept"

Plans = Mapping[str, Plan]
"""By graph key."""

RunByPlans = Callable[[Plans], Model]
"""The model as `load` runs it by these plans."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A graph of the model with its finalists. identity: the common part of all its plans."""

    part: ModelGraph
    finalists: Finalists
    identity: Identity

    @property
    def key(self) -> str:
        return self.part.key

    def passed(self, plan: Plan) -> Passed:
        """The result of the gate for one of its plans; a plan that is a baseline needs no check."""
        of = self.finalists
        runners = (r for r in (of.best, of.plain, of.graphed, of.sparing) if r is not None)
        known = next((r.passed for r in runners if r.plan == plan), None)
        return known or as_baseline(plan, self.part.captured.graph)


@dataclass(slots=True)
class Decision:
    """One decision on all graphs of a model. ring: its turns hold copies of the user's call.
    ours_only: a baseline is kept only if there is no plan of ours. conditions: returns clocks and
    temperature, after the contest. wall: the time budget of the tune; each contest may take half
    of what is left of it."""

    entrants: Sequence[Entrant]
    baselines: Baselines
    run_by: RunByPlans
    ring: Ring
    progress: Progress
    training: bool = False
    ours_only: bool = False
    conditions: Callable[[], Mapping[str, int]] = dict
    wall: Wall | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    for_other_sizes: dict[str, Plan] = field(default_factory=dict)
    """By graph key, plans of ours of graphs whose sizes vary, where a baseline is kept for the
    sizes of the tune: set by `plans`."""
    _ready_s: float = 0.0
    """Seconds that it took until the model ran by a plan of ours: the mean over these plans."""

    def plans(self) -> list[Plan]:
        """The plan to keep for each graph, in order, with the record of the contest."""
        self.baselines.finish()
        own = self._own()
        calls = {EAGER: self.baselines.ready[EAGER]} if EAGER in self.baselines.ready else {}
        before_s = self.wall.left_s if self.wall else 0.0
        calls |= self._runs(own)
        self._ready_s = (before_s - self.wall.left_s) / max(1, len(own)) if self.wall else 0.0
        calls |= {n: c for n, c in self.baselines.ready.items() if n != EAGER}
        if not calls:
            return [entrant.identity.plan((), "searched") for entrant in self.entrants]
        self.progress.phase("contest", "timing the model by its plans, eager and torch.compile")
        told = self._told(self._ring.contest(calls, self._fell))
        ours = [c.name for c in told.contestants if c.name in own]
        winner = _preferred(told, own, ours if self.ours_only else ())
        if winner in own:
            kept, told = own[winner], replace(told, winner=winner)
        else:
            kept, told = self._as_kept(winner, told, own, calls)
            self._keep_for_other_sizes(own, told)
        return self._measured(kept, told)

    @property
    def _ring(self) -> Ring:
        return self.ring.within(self.wall.left_s / 2) if self.wall else self.ring

    def _own(self) -> dict[str, Plans]:
        """Our plans by name, each only once. Empty if no kernel of ours runs."""
        found: dict[str, Plans] = {}
        kinds: dict[str, Callable[[Finalists], RunnablePlan | None]] = {
            SPARING: lambda f: f.sparing or f.best,
            PLAN: (lambda f: f.plain or f.best) if self.training else (lambda f: f.best),
        }
        if self.training:
            kinds[GRAPHED] = lambda f: f.graphed or f.best
        for name, choose in kinds.items():
            chosen = {e.key: choose(e.finalists) for e in self.entrants}
            if name == SPARING and all(e.finalists.sparing is None for e in self.entrants):
                continue
            if all(runner is None for runner in chosen.values()):
                continue
            plans = {
                e.key: runner.plan if (runner := chosen[e.key]) else e.identity.plan((), "searched")
                for e in self.entrants
            }
            if plans not in found.values():
                found[name] = plans
        return found

    def _runs(self, plans: Mapping[str, Plans]) -> dict[str, TurnCall]:
        """The model by each of these plans, as `load` runs it, ready to be timed. A plan that does
        not run is left out."""
        given = {
            n: through(self.run_by(p), self.ring.turns, self.training) for n, p in plans.items()
        }
        ours = Baselines(given, self.progress, _quiet, "plans")
        ours.warm()
        self.left_out |= ours.left_out
        return ours.ready

    def _fell(self, name: str, error: Exception) -> None:
        """Leaves out a contestant that ran before and now raises an error, as a CUDA graph may for
        other inputs. Raises the error if it is of the user's own model."""
        if name == EAGER:
            raise error
        self.left_out[name] = describe(error)
        self.progress.note(
            f"{name} is not compared: it fails in the contest: {self.left_out[name]}"
        )

    def _told(self, contest: Contest) -> Contest:
        left_out = {**self.baselines.left_out, **self.left_out}
        return replace(
            contest,
            graphs=sum(entrant.part.times for entrant in self.entrants),
            left_out=tuple(left_out.items()),
            conditions=tuple(self.conditions().items()),
        )

    def _as_kept(
        self, winner: str, told: Contest, own: Mapping[str, Plans], runs: Mapping[str, TurnCall]
    ) -> tuple[Plans, Contest]:
        """The plans to keep when a baseline has won. A second contest times the baseline as its
        plan runs it, the baseline itself, and the best of our plans. The baseline's plan is kept
        only if it does not lose to ours. runs: the contestants' calls."""
        best = _preferred(told, own, [n for n in own if n not in self.left_out])
        kept: dict[str, Plans] = {AS_KEPT: self._baseline(winner)}
        anew = self._captured_anew(winner)
        if anew is not None and (self.wall is None or self.wall.left_s > 3 * self._ready_s):
            kept = {f"{AS_KEPT}, captured anew": anew} | kept
        calls = dict(self._runs(kept))
        if best in own:
            calls[best] = runs[best]
        calls[winner] = self.baselines.ready[winner]
        again = self._told(self._ring.contest(calls, self._fell))
        told = _joined(told, again, kept)
        users = AS_KEPT if winner == EAGER else ""
        chosen = _preferred(again, {**kept, **own}, [n for n in calls if n != winner], users)
        if chosen in own:
            fell = [f"does not run by a plan: {why}" for n, why in again.left_out if n in kept]
            short = fell[0] if fell else "is no faster by a plan"
            self.progress.note(f"{winner} is the fastest, but {short}; ours is kept")
            return own[chosen], replace(told, winner=chosen)
        if chosen not in kept and any(c.name == EAGER for c in told.contestants):
            self.progress.note(f"{winner} is the fastest, but runs by no plan; eager is kept")
            return self._baseline(EAGER), replace(told, winner=EAGER)
        self.progress.note(f"{winner} is the fastest; it is kept as the plan")
        return kept.get(chosen, kept[AS_KEPT]), _as_winner(told, chosen)

    def _keep_for_other_sizes(self, own: Mapping[str, Plans], told: Contest) -> None:
        """A baseline is kept for these sizes only. At others a graph without a plan runs by
        torch.compile, on the CPU as eager: where ours is no slower than that, it runs there."""
        best = _preferred(told, own, [n for n in own if n not in self.left_out])
        if self.training or self.ours_only or told.winner in own or best not in own:
            return
        behind = {c.name: c.behind for c in told.contestants}
        on_cuda = self.entrants[0].part.captured.device.type == "cuda"
        missed = behind.get(next(iter(MODES)) if on_cuda else EAGER, float("inf"))
        if not is_equal(behind[best], missed):
            return
        plans = self._measured(own[best], replace(told, winner=best))
        for entrant, plan in zip(self.entrants, plans, strict=True):
            if plan.groups and is_varying(entrant.part.captured.graph):
                self.for_other_sizes[entrant.key] = plan

    def _baseline(self, name: str) -> Plans:
        return {
            e.key: baseline_plan(name, e.part.captured.graph, e.identity, frame=True)
            for e in self.entrants
        }

    def _captured_anew(self, mode: str) -> Plans | None:
        """The plan that replays the kernels of a mode with CUDA graphs as a CUDA graph of ours,
        whose call costs the host less. Only for inference with fixed sizes."""
        graphs = [entrant.part.captured.graph for entrant in self.entrants]
        one = not self.training and len(graphs) == 1 and not is_varying(graphs[0])
        if not one or not INDUCTOR.owns_cuda_graphs(mode):
            return None
        return {key: replace(p, cudagraph=True) for key, p in self._baseline(mode).items()}

    def _measured(self, kept: Plans, told: Contest) -> list[Plan]:
        """The kept plans with their seconds: each graph's share of the whole call."""
        figures = _figures(told)
        baselines = {n: s for n, s in figures.items() if n in {EAGER, *self.baselines.given}}
        shares = self._shares()
        return [
            measured(
                kept[entrant.key],
                entrant.passed(kept[entrant.key]),
                figures[told.winner] * share,
                [(name, seconds * share) for name, seconds in baselines.items()],
                told,
            )
            for entrant, share in zip(self.entrants, shares, strict=True)
        ]

    def _shares(self) -> list[float]:
        """The share of each graph in the time of a call, by the times of its executor alone. Equal
        shares if one of these is not known."""
        found = [e.finalists.best for e in self.entrants]
        seconds = [runner.plan.measured if runner else None for runner in found]
        times = [entrant.part.times for entrant in self.entrants]
        known = [s for s in seconds if s is not None]
        if len(known) < len(seconds) or not sum(known):
            return [1 / sum(times)] * len(times)
        total = sum(s * n for s, n in zip(known, times, strict=True))
        return [s / total for s in known]


def _preferred(
    told: Contest, own: Mapping[str, Plans], among: Sequence[str] = (), users: str = EAGER
) -> str:
    """The contestant to keep: the least behind, and of equals the first. among: if any are given,
    only these count. users: the one that is the user's own code; it is kept where nothing is faster
    by more than the margin of a win. Our plan that spares memory is taken in its place if it takes
    only a little more time and no baseline is faster."""
    found = [c for c in told.contestants if c.name in (among or {c.name})]
    best = first_of_equals([(c.name, c.behind) for c in found]) if found else told.winner
    least = min((c.behind for c in found), default=1.0)
    if any(c.name == users and c.behind < least * (1 + MARGIN) for c in found):
        return users
    behind = {c.name: c.behind for c in told.contestants}
    if SPARING not in behind or best not in own:
        return best
    rivals = min((b for n, b in behind.items() if n not in own), default=float("inf"))
    enough = behind[SPARING] <= SPARED * least and is_equal(behind[SPARING], rivals)
    return SPARING if enough else best


def _joined(told: Contest, again: Contest, kept: Mapping[str, Plans]) -> Contest:
    """The first contest, with the baseline's plans as more contestants: the second contest timed
    them. Those that did not run are left out with the reason."""
    timed = tuple(c for c in again.contestants if c.name in kept)
    return replace(told, contestants=told.contestants + timed, left_out=again.left_out)


def _as_winner(told: Contest, chosen: str) -> Contest:
    """With the kept plan as the winner, and no other plan of the same baseline."""
    own = next(c for c in told.contestants if c.name == chosen)
    others = tuple(c for c in told.contestants if not c.name.startswith(AS_KEPT))
    return replace(told, contestants=(*others, replace(own, name=AS_KEPT)), winner=AS_KEPT)


def _figures(told: Contest) -> dict[str, float]:
    """The seconds of all contestants, cold or busy: those in which the winner gains less."""
    cold = {c.name: c.cold_s for c in told.contestants}
    busy = {c.name: c.busy_s for c in told.contestants}

    def gain(seconds: Mapping[str, float]) -> float:
        others = [s for name, s in seconds.items() if name in {EAGER, *MODES}]
        return min(others, default=0.0) / seconds[told.winner]

    return min((cold, busy), key=gain)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of graphs that have no plan yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionplanWarning)
        yield


def by_executor(captured: Captured, plans: Plans) -> Model:
    """A graph run by its plan, for callers that have a graph and no model."""
    plan = plans[key(captured.graph)]
    way = whole_way(plan, captured.graph)
    if way is not None:
        return way.lowering.captured(captured, way.options)
    executor = Executor(captured, plan, captured.device)
    return GraphedExecutor(executor) if plan.cudagraph else executor
