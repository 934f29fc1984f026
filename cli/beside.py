"""A model by its stored plans, measured now, in turn with eager and all modes of torch.compile."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import render
from .table import Table

if TYPE_CHECKING:
    from ..planner.plan import Plan
    from ..tuner.measure import Ratio
    from ..tuner.outcome import Timed
    from ..tuning import Place

PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Beside:
    """timings: of the plan and of each baseline that runs, by name. best: the fastest baseline.
    slowdown: the plan's time over its, round by round. plans: one for each graph of the model;
    kernels: of ours in one call."""

    name: str
    device: str
    plans: list[Plan]
    kernels: int
    timings: dict[str, Timed]
    best: str
    slowdown: Ratio

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "device": self.device,
            "graphs": [plan.graph_key for plan in self.plans],
            "evidence": sorted({plan.evidence for plan in self.plans}),
            "kernels": self.kernels,
            "seconds": {name: timed.seconds for name, timed in self.timings.items()},
            "spread_s": {name: timed.spread_s for name, timed in self.timings.items()},
            "rounds": self.timings[PLAN].laps,
            "best": self.best,
            "slowdown": asdict(self.slowdown),
        }


def beside(
    model: str,
    inputs: str | None,
    store: str | None,
    device: str | None,
    dynamic: bool,
    seconds: float,
) -> Beside:
    """Measure for so many seconds. Raises PlanError where a graph has no stored plan, ModelError,
    and DeviceError where there is nothing to measure on."""
    from ..tuning import place_of
    from .modelfile import load_model

    place = place_of(device, None)
    _require_a_device(place)
    # What the model's own code prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr):
        named = load_model(model, inputs, place.device)
        return _measured(named, place, store, dynamic, seconds)


def _measured(named: Any, place: Place, store: str | None, dynamic: bool, seconds: float) -> Beside:
    import torch

    from ..api import executors, load, plans
    from ..tuner.baselines import MODES, Baselines, model_baselines, through
    from ..tuner.live import reporting
    from ..tuner.measure import Timer, stopwatch_for
    from ..tuner.turns import Turns

    on_gpu = place.device.type == "cuda"
    ours = load(named.model, store=store, on_miss="error", dynamic=dynamic or None)
    timer = Timer(stopwatch_for(place.device, place.profile.l2_bytes))
    if not on_gpu:  # the interpreter, where speed means nothing
        timer = Timer(timer.stopwatch, least=2, most=2, overhead_s=0.0)
    with torch.no_grad(), reporting(True, seconds) as told:
        told.phase("plan", "building what the store has")
        turns = Turns.of(named.call)
        call = turns.one_after_another(through(ours, turns))
        for _ in range(3):
            call()
        given = model_baselines(named.model, turns, MODES if on_gpu else ())
        baselines = Baselines(given, told)
        baselines.warm()
        told.phase("measure", f"in turn, {seconds:g} s")
        others = {n: turns.one_after_another(c) for n, c in baselines.ready.items()}
        calls = {PLAN: call, **others}
        result = timer.interleaved(calls, budget_s=seconds)
    timings = {name: result.timing(name) for name in calls}
    best = min(others, key=lambda name: timings[name].seconds)
    return Beside(
        named.name,
        place.profile.name,
        plans(ours),
        sum(runner.kernels_per_call for runner in executors(ours)),
        timings,
        best,
        result.ratio(PLAN, best),
    )


def _require_a_device(place: Place) -> None:
    from ..planner.errors import DeviceError

    if not place.measured:
        raise DeviceError("there is no CUDA device to measure on: run this where one is")


def view(found: Beside) -> Table:
    """The timings as a table, the fastest first."""
    figures = ("time", "spread", "against the plan")
    made = render.table("run as", *figures, right=figures, extra=("spread",))
    own = found.timings[PLAN].seconds
    for name, timed in sorted(found.timings.items(), key=lambda item: item[1].seconds):
        made.add_row(
            name,
            render.duration(timed.seconds),
            render.duration(timed.spread_s),
            render.ratio(timed.seconds / own),
        )
    return made


def verdict(found: Beside) -> str:
    """One sentence: the plan against the fastest baseline, with its interval."""
    r = found.slowdown
    return (
        f"{found.name} on {found.device}: {found.kernels} kernels of fusionplan's; "
        f"{render.ratio(1 / r.median)} ({1 / r.high:.3f} to {1 / r.low:.3f}) times as fast as "
        f"{found.best}, the fastest baseline; {found.timings[PLAN].laps} rounds"
    )
