"""The gain of a plan: its time beside every baseline, and beside the device's least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..planner.lowerings.inductor import MODES
from ..planner.plan import Contest
from ..tuner.decision.baselines import EAGER
from .data import Gain, GraphReport, Way

BASELINES = frozenset({EAGER, *MODES})
PLAN, APART, LEAST = "the plan", "each operation by itself", "the device's least"


def gain(graphs: Sequence[GraphReport]) -> Gain:
    """Of a whole model; where it was measured, by the contest that all its plans hold."""
    contests = {each.contest for each in graphs}
    contest = next(iter(contests)) if len(contests) == 1 else None
    if contest is not None:
        timing, as_whole = _timing(contest), runs_as(graphs)
        ways = [*_contested(contest, timing, as_whole), *_least(graphs, contest)]
        return replace(_gain(ways), timing=timing, left_out=contest.left_out, graphs=contest.graphs)
    measured = _measured(graphs)
    return _gain([*(measured or _modelled(graphs)), *_least(graphs, None)])


def _gain(ways: Sequence[Way]) -> Gain:
    # A plan that was not kept may be slower by far: its bar ends where the longest of others does.
    slowest = max((way.seconds for way in ways if way.kind != "ours"), default=0.0) or 1.0
    ordered = sorted(ways, key=lambda way: (way.kind == "least", way.seconds))
    shown = tuple(replace(way, share=min(1.0, way.seconds / slowest)) for way in ordered)
    plan = next((way for way in shown if way.kind == "plan"), None)
    others = [way for way in shown if way.kind in ("baseline", "apart")]
    best = min(others, key=lambda way: way.seconds, default=None)
    if plan is None or best is None or not plan.seconds:
        return Gain(shown, None, None)
    name = best.name if best.kind == "baseline" else None
    return Gain(shown, name, best.seconds / plan.seconds)


def _timing(contest: Contest) -> str:
    """In which of the two timings the plan gains less, as its record of a speed-up is."""
    gains = {}
    for timing in ("cold", "busy"):
        ways = _contested(contest, timing, None)
        own = next((way.seconds for way in ways if way.kind == "plan"), 0.0)
        best = min((way.seconds for way in ways if way.kind == "baseline"), default=0.0)
        gains[timing] = best / own if own else 0.0
    # Equal gains may differ by rounding: the first is taken then.
    return min(gains, key=lambda timing: round(gains[timing], 9))


def runs_as(graphs: Sequence[GraphReport]) -> str | None:
    """The baseline by which the plans run all graphs; None where they have kernels of ours."""
    found = {graph.runs_as for graph in graphs}
    return next(iter(found)) if len(found) == 1 else None


def _contested(contest: Contest, timing: str, as_whole: str | None) -> list[Way]:
    """as_whole: the baseline that the plan runs as, if it does."""
    ways = []
    for each in contest.contestants:
        seconds = each.busy_s if timing == "busy" else each.cold_s
        if each.name == contest.winner:
            own = each.name.startswith("plan") and as_whole is None
            name = f"the {each.name}" if own else f"{PLAN}: {as_whole or each.name}"
            ways.append(Way(name, "plan", seconds, True, 0.0))
        elif each.name in BASELINES:
            ways.append(Way(each.name, "baseline", seconds, True, 0.0))
        else:
            ways.append(Way(f"our {each.name}, not kept", "ours", seconds, True, 0.0))
    return ways


def _measured(graphs: Sequence[GraphReport]) -> list[Way]:
    """By the times in the plans; none where one of them has none. A baseline that one of the graphs
    was not compared with is left out: its time would be that of fewer graphs."""
    plan_s, baselines = 0.0, dict[str, float]()
    for each in graphs:
        measured = each.explanation.measured_s
        if measured is None:
            return []
        plan_s += measured * each.times
        for name, seconds in each.baselines:
            baselines[name] = baselines.get(name, 0.0) + seconds * each.times
    ways = [
        Way(name, "baseline", seconds, True, 0.0)
        for name, seconds in baselines.items()
        if all(name in dict(each.baselines) for each in graphs)
    ]
    return [Way(PLAN, "plan", plan_s, True, 0.0), *ways] if graphs else []


def _modelled(graphs: Sequence[GraphReport]) -> list[Way]:
    plan_s = sum(each.predicted_s * each.times for each in graphs)
    apart_s = sum(each.apart_s * each.times for each in graphs)
    ways = [Way(PLAN, "plan", plan_s, False, 0.0), Way(APART, "apart", apart_s, False, 0.0)]
    return ways if graphs else []


def _least(graphs: Sequence[GraphReport], contest: Contest | None) -> list[Way]:
    """Nothing where the report has not all graphs that the contest was about."""
    if not graphs or (contest is not None and contest.graphs != sum(g.times for g in graphs)):
        return []
    seconds = sum(each.least.seconds * each.times for each in graphs)
    return [Way(LEAST, "least", seconds, False, 0.0)]
