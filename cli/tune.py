"""`planner tune`: search for the fastest way to run a model, and keep it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..db import PlanRecord, Store
from ..planner.graph.graph import Numerics
from ..planner.plan import Plan
from ..tuner.session.effort import allowance
from . import render, stored
from .errors import INTERRUPTED, SlowerError, UsageError
from .options import (
    DeviceOption,
    DynamicOption,
    EffortOption,
    InputsOption,
    JobsOption,
    JsonOption,
    ModelArgument,
    NumericsOption,
    SecondsOption,
    ShareOption,
    StoreOption,
    TargetOption,
    TrainingOption,
    TrialsOption,
    numerics_of,
    share_of,
)
from .render import ShownPlan
from .settings import SETTINGS

if TYPE_CHECKING:
    from ..tuned import Tuned
    from ..tuner.progress.progress import Progress


@dataclass(frozen=True, slots=True)
class _Request:
    """What the command line asks for; see `tune`."""

    model: str
    inputs: str | None
    trials: int | None
    seconds: float | None
    effort: str
    store: str | None
    device: str | None
    target: str | None
    training: bool
    dynamic: bool
    numerics: Numerics
    gpus: str | None
    ray: str | None
    jobs: int | None

    def check(self) -> None:
        """Raises UsageError for limits that are none."""
        seconds, efforts = self.seconds, SETTINGS["effort"].choices
        if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
            raise UsageError(f"--seconds {seconds:g}: give a number above zero")
        if self.effort not in efforts:
            raise UsageError(f"--effort {self.effort}: give one of {', '.join(efforts)}")


def tune(
    model: ModelArgument,
    inputs: InputsOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    effort: EffortOption = "default",
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: TrainingOption = False,
    dynamic: DynamicOption = False,
    numerics: NumericsOption = "fast",
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="all|N|0,2",
            help="The GPUs of this host that share the search: all, a number of them, or their "
            "indices.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="The address of a Ray cluster whose GPUs share the search. It needs "
            "fusionplan[fleet], and a store that every node can reach.",
        ),
    ] = None,
    jobs: JobsOption = None,
    fail_if_slower: ShareOption = None,
    json: JsonOption = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress. Print one line for each plan.")
    ] = False,
) -> None:
    """Search for the fastest way to run a model on its example inputs, and store the plan.

    Each graph that torch.compile captures gets a plan. At the end the best plans are compared with
    eager and every mode of torch.compile, and the fastest is kept.

    Without a CUDA device, or with --target, the plans come from the cost model and nothing is
    measured (evidence: modelled).
    """
    least = share_of(fail_if_slower)
    how = training, dynamic, numerics_of(numerics)
    shared = gpus, ray, jobs
    request = _Request(model, inputs, trials, seconds, effort, store, device, target, *how, *shared)
    request.check()
    tuned, location = _run(request, json=json, quiet=quiet)
    _print(tuned, location, json=json, quiet=quiet)
    if tuned.interrupted:
        print("planner: interrupted; the best so far is in the store", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if least is not None:
        _require(tuned.speedup, least)


def _run(request: _Request, *, json: bool, quiet: bool) -> tuple[Tuned, str]:
    """The result, and where its plans are. Ctrl-C before there is one ends the command."""
    began = datetime.now(UTC)
    with Store.open(request.store) as opened:  # before torch is imported and the model is run
        location = opened.location
    limit = allowance(request.effort, request.trials, request.seconds).seconds
    try:
        # What the model's own code prints is no result of ours.
        with (
            contextlib.redirect_stdout(sys.stderr),
            _progress(json or quiet, limit) as progress,
        ):
            return _searched(request, progress), location
    except KeyboardInterrupt as error:
        told = _interrupted(request, began)
        render.err().print(f"planner: {told}", soft_wrap=True)
        if json:
            render.print_json(
                {"error": {"code": INTERRUPTED, "name": "interrupted", "message": told}}
            )
        raise typer.Exit(INTERRUPTED) from error


def _interrupted(request: _Request, began: datetime) -> str:
    """What is left of a tune that was stopped: the store knows, not how far the call came."""
    name = stored.title(request.model)
    with Store.open(request.store, create=False, read_only=True) as opened:
        plans = opened.plans()
    saved = [r for r in plans if r.updated_at >= began]
    if saved:
        return f"interrupted; stored before that: {_listed(saved)}"
    told = "interrupted before there was a plan; the trials so far are in the store"
    earlier = [r for r in plans if r.name == name or r.name.startswith(f"{name} ")]
    return f"{told}, as is an earlier plan: {_listed(earlier[:3])}" if earlier else told


def _listed(records: Sequence[PlanRecord]) -> str:
    return ", ".join(f"{r.key[: render.KEY]} ({r.name}, {r.evidence})" for r in records)


def _require(speedup: float | None, allowed: float) -> None:
    """Raises SlowerError for a plan that is slower than its baselines by more than allowed, and
    UsageError where nothing was measured."""
    if speedup is None:
        raise UsageError(
            "--fail-if-slower: nothing was measured, so nothing can be compared; tune on a CUDA "
            "device, without --target"
        )
    if speedup < 1 / (1 + allowed):
        raise SlowerError(
            f"the plan takes {1 / speedup - 1:.1%} longer than the fastest baseline; "
            f"{allowed:.1%} is allowed"
        )


def _searched(request: _Request, progress: Progress) -> Tuned:
    from ..tuner.fleet.local_gpus import local_gpus
    from ..tuner.session.place import place_of
    from ..tuning import device_among
    from ..tuning import tune as search
    from .modelfile import load_model

    gpus = None if request.gpus is None else local_gpus(request.gpus)
    place = place_of(device_among(gpus, request.device), request.target)
    named = load_model(request.model, request.inputs, place.device)
    return search(
        named.model,
        named.call,
        trials=request.trials,
        seconds=request.seconds,
        effort=request.effort,
        store=request.store,
        device=place.device if gpus is None else None,
        target=request.target,
        training=request.training,
        dynamic=request.dynamic,
        numerics=request.numerics,
        gpus=request.gpus,
        ray=request.ray,
        jobs=request.jobs,
        progress=progress,
        name=named.name,
    )


@contextlib.contextmanager
def _progress(silent: bool, seconds: float) -> Iterator[Progress]:
    from ..tuner.progress.live_panel import LiveProgress
    from ..tuner.progress.progress import Silent

    if silent:
        yield Silent()
        return
    with LiveProgress(render.err(), seconds) as progress:
        yield progress


def _print(tuned: Tuned, location: str, *, json: bool, quiet: bool) -> None:
    views = shown_plans(tuned)
    if json:
        render.print_json(_document(tuned, views, location))
        return
    console = render.out()
    if quiet:
        for view in views:
            console.print(_line(view), soft_wrap=True)
        return
    for view in views:
        console.print(render.plan_view(view))
        console.print()
    if len(views) > 1 and tuned.speedup is not None:
        console.print(f"speed-up of all graphs together: {render.ratio(tuned.speedup)}")
    if not views:
        console.print("nothing to fuse: the model runs as it is")
    elif tuned.place.measured:
        console.print(_USE.format(store=location), soft_wrap=True)
    else:
        console.print(_MODELLED.format(device=tuned.place.profile.name))
        if tuned.unloadable is None:
            console.print(_LOADABLE)
        else:
            console.print(_UNLOADABLE.format(why=tuned.unloadable), markup=False)


def shown_plans(tuned: Tuned) -> list[ShownPlan]:
    """The plans with their graphs, in the order in which the model runs them."""
    device = tuned.place.profile.name
    found = zip(tuned.records, tuned.plans, tuned.captured.parts, strict=False)
    return [
        ShownPlan(
            record.key,
            record.name,
            plan,
            device,
            part.captured.graph,
            *stored.about(record, part.captured.graph),
        )
        for record, plan, part in found
    ]


def _document(tuned: Tuned, views: list[ShownPlan], location: str) -> dict[str, Any]:
    parts = tuned.captured.parts
    plans = [
        view.to_json() | {"stage": part.stage, "times": part.times}
        for view, part in zip(views, parts, strict=False)
    ]
    return {
        "device": tuned.place.profile.name,
        "evidence": "measured" if tuned.place.measured else "modelled",
        "store": location,
        "unloadable": tuned.unloadable,
        "speedup": tuned.speedup,
        "interrupted": tuned.interrupted,
        "notes": list(tuned.captured.notes),
        "plans": plans,
    }


def _line(view: ShownPlan) -> str:
    plan: Plan = view.plan
    time = render.duration(plan.measured if plan.measured is not None else plan.predicted)
    best = f", {render.ratio(plan.speedup)}" if plan.speedup is not None else ""
    return f"{view.key[: render.KEY]} {view.name}: {time} {plan.evidence}{best}"


_USE = """\
To run by it, under torch.no_grad() unless tuned with --training:
    torch.compile(model, backend="planner")        or        fusionplan.load(model)
with the store {store}"""

_MODELLED = """\
Evidence: modelled, for {device}. Nothing was measured. Tune on the device to measure it."""

_LOADABLE = """\
At run time such a plan is only used with options={"evidence": "any"}."""

_UNLOADABLE = """\
You can read this plan but not run it: on a GPU torch.compile may capture another graph.
{why}."""
