"""A model by its stored plans, measured now, in turn with eager and all modes of torch.compile.

By the rules of the contest at the end of a tune, so that both say the same of the same plan.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import render

if TYPE_CHECKING:
    from ..planner.graph.graph import Numerics
    from ..planner.plan import Contest, Contestant, Plan
    from ..tuner.session.place import Place

PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Beside:
    """plans: one for each graph of the model; kernels: of ours in one call. contest: of the plan
    and each baseline that runs."""

    name: str
    device: str
    plans: list[Plan]
    kernels: int
    contest: Contest

    @property
    def own(self) -> Contestant:
        """The model by its stored plans."""
        return next(each for each in self.contest.contestants if each.name == PLAN)

    def gains(self) -> tuple[float, float]:
        """The fastest baseline's time over the plan's: of a cold call, and of a busy one."""
        others = [each for each in self.contest.contestants if each.name != PLAN]
        cold, busy = min(o.cold_s for o in others), min(o.busy_s for o in others)
        return cold / self.own.cold_s, busy / self.own.busy_s

    def to_json(self) -> dict[str, Any]:
        cold, busy = self.gains()
        return {
            "name": self.name,
            "device": self.device,
            "graphs": [plan.graph_key for plan in self.plans],
            "evidence": sorted({plan.evidence for plan in self.plans}),
            "kernels": self.kernels,
            "gain_cold": cold,
            "gain_busy": busy,
            "contest": asdict(self.contest),
        }


def beside(
    model: str,
    inputs: str | None,
    store: str | None,
    device: str | None,
    dynamic: bool,
    numerics: Numerics,
    seconds: float,
) -> Beside:
    """Measure for so many seconds. Raises PlanError where a graph has no stored plan, ModelError,
    and DeviceError where there is nothing to measure on."""
    from ..api import load
    from ..tuner.session.place import place_of
    from .modelfile import load_model

    place = place_of(device, None)
    _require_a_device(place)
    # What the model's own code prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr):
        named = load_model(model, inputs, place.device)
        ours = load(
            named.model,
            store=store,
            on_miss="error",
            dynamic=dynamic or None,
            numerics=numerics,
        )
        return _measured(named, place, ours, seconds)


def _measured(named: Any, place: Place, ours: Any, seconds: float) -> Beside:
    import torch

    from ..api import executors, plans
    from ..planner.lowerings.inductor import MODES
    from ..tuner.capture.rotating_inputs import RotatingInputs
    from ..tuner.decision.baselines import Baselines, model_baselines, through
    from ..tuner.measure.contest import Ring, Rules
    from ..tuner.measure.host_caches import cooler
    from ..tuner.measure.timing import stopwatch_for
    from ..tuner.progress.live_panel import reporting
    from ..tuner.session.tune_site import RULES_ON_CPU

    on_gpu = place.device.type == "cuda"
    # In the interpreter speed means nothing.
    rules = Rules(budget_s=seconds) if on_gpu else RULES_ON_CPU
    with torch.no_grad(), reporting(True, seconds) as told:
        told.phase("plan", "building what the store has")
        turns = RotatingInputs.of(named.call)
        calls = {PLAN: through(ours, turns)}
        for turn in range(2):
            calls[PLAN](turn)
        given = model_baselines(named.model, turns, MODES if on_gpu else ())
        baselines = Baselines(given, told)
        baselines.warm()
        told.phase("measure", f"in turn, at most {seconds:g} s")
        stopwatch = stopwatch_for(place.device, place.profile.l2_bytes)
        ring = Ring(stopwatch, turns, rules, cooler(place.device))
        contest = ring.contest(calls | baselines.ready)
    kernels = sum(runner.kernels_per_call for runner in executors(ours))
    return Beside(named.name, place.profile.name, plans(ours), kernels, contest)


def _require_a_device(place: Place) -> None:
    from ..planner.errors import DeviceError

    if not place.measured:
        raise DeviceError("there is no CUDA device to measure on: run this where one is")


def verdict(found: Beside) -> str:
    """One sentence: the plan against the fastest baseline, cold and busy."""
    cold, busy = found.gains()
    return (
        f"{found.name} on {found.device}, {found.kernels} kernels of fusionplan's: as fast as the "
        f"fastest baseline times {render.ratio(cold)} cold, {render.ratio(busy)} busy"
    )
