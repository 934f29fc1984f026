"""`planner tune`: search for the fastest way to run a model, and keep it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..db import Store
from ..planner.plan import Plan
from . import render
from .errors import INTERRUPTED, UsageError
from .render import ShownPlan
from .show import JsonOption, StoreOption

if TYPE_CHECKING:
    from ..tuner.progress import Progress
    from ..tuning import Tuned


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[.py][:OBJECT]",
        help="A Python file with get_model() or model, or with a class Model; or one object in it: "
        "an instance, a class without arguments, or a function.",
        show_default=False,
    ),
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="What gives the arguments of a call; by default get_inputs() or example_inputs of the "
        "model's file.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(min=1, envvar="PLANNER_TRIALS", help="Most kernels tried for each graph."),
]
SecondsOption = Annotated[
    float | None, typer.Option(envvar="PLANNER_SECONDS", help="Most time for all graphs.")
]
EffortOption = Annotated[
    str,
    typer.Option(
        envvar="PLANNER_EFFORT",
        metavar="NAME",
        help="quick (16 trials, 60 s), default (64, 180 s) or thorough (256, 900 s); --trials and "
        "--seconds take the place of its own.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(envvar="PLANNER_DEVICE", metavar="NAME", help="cuda, cuda:N or cpu."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        envvar="PLANNER_TARGET",
        metavar="GPU",
        help="Plan by the cost model for this GPU: h200, h100 or a100.",
    ),
]


EFFORTS = ("quick", "default", "thorough")


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


def tune(
    model: ModelArgument,
    inputs: InputsOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    effort: EffortOption = "default",
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: Annotated[bool, typer.Option("--training", help="The backward pass too.")] = False,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="For all sizes like those of the inputs.")
    ] = False,
    json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; one line a plan.")] = False,
) -> None:
    """Tune a model: every graph that torch.compile sees in it, for the shapes of its inputs.

    Without a CUDA device, or with --target, plans come from the cost model (evidence: modelled).
    """
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"--seconds {seconds:g}: give a number above zero")
    if effort not in EFFORTS:
        raise UsageError(f"--effort {effort}: give one of {', '.join(EFFORTS)}")
    with Store.open(store) as opened:  # before torch is imported and the model is run
        location = opened.location
    request = _Request(
        model, inputs, trials, seconds, effort, store, device, target, training, dynamic
    )
    try:
        # What the model's own code prints is no result of ours.
        with contextlib.redirect_stdout(sys.stderr), _progress(json or quiet) as progress:
            tuned = _searched(request, progress)
    except KeyboardInterrupt:
        print("planner: interrupted before there was a plan; trials are kept", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _print(tuned, location, json=json, quiet=quiet)
    if tuned.interrupted:
        print("planner: interrupted; the best so far is in the store", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _searched(request: _Request, progress: Progress) -> Tuned:
    from ..tuning import place_of
    from ..tuning import tune as search
    from .modelfile import load_model

    place = place_of(request.device, request.target)
    named = load_model(request.model, request.inputs, place.device)
    return search(
        named.model,
        named.call,
        trials=request.trials,
        seconds=request.seconds,
        effort=request.effort,
        store=request.store,
        device=place.device,
        target=request.target,
        training=request.training,
        dynamic=request.dynamic,
        progress=progress,
        name=named.name,
    )


@contextlib.contextmanager
def _progress(silent: bool) -> Iterator[Progress]:
    from ..tuner.progress import Silent
    from .live import LiveProgress

    if silent:
        yield Silent()
        return
    with LiveProgress(render.err()) as progress:
        yield progress


def _print(tuned: Tuned, location: str, *, json: bool, quiet: bool) -> None:
    views = shown_plans(tuned)
    if json:
        render.print_json(_document(tuned, views, location))
        return
    console = render.out()
    if quiet:
        for view in views:
            console.print(Text(_line(view)))
        return
    for view in views:
        console.print(render.plan_view(view))
        console.print()
    if len(views) > 1 and tuned.speedup is not None:
        console.print(f"speed-up of all graphs together: {render.ratio(tuned.speedup)}")
    if not views:
        console.print("nothing to fuse: the model runs as it is")
    elif tuned.place.measured:
        console.print(Text(_USE.format(store=location)))
    else:
        console.print(Text(_MODELLED.format(device=tuned.place.profile.name)))


def shown_plans(tuned: Tuned) -> list[ShownPlan]:
    """The plans with their graphs, in the order in which the model runs them."""
    device = tuned.place.profile.name
    found = zip(tuned.records, tuned.plans, tuned.captured.parts, strict=False)
    return [
        ShownPlan(record.key, record.name, plan, device, part.captured.graph)
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
Evidence: modelled, for {device}. Nothing was measured, and at run time such a plan is only used
with options={{"evidence": "any"}}. Tune on the device to measure it."""
