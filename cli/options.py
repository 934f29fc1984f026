"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from ..planner.graph.graph import Numerics
from .errors import UsageError
from .settings import SETTINGS

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="FILE.py with get_model() or model, or with a class Model; or FILE.py:OBJECT, one "
        "object in it: an instance, a class without arguments, or a function.",
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
PlanArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="Its name, the file that was tuned, or the start of its key; by default the newest.",
        show_default=False,
    ),
]
StoreOption = Annotated[str | None, SETTINGS["store"].option()]
TrialsOption = Annotated[int | None, SETTINGS["trials"].option()]
SecondsOption = Annotated[float | None, SETTINGS["seconds"].option()]
EffortOption = Annotated[str, SETTINGS["effort"].option()]
DeviceOption = Annotated[str | None, SETTINGS["device"].option()]
TargetOption = Annotated[str | None, SETTINGS["target"].option()]
TrainingOption = Annotated[bool, typer.Option("--training", help="The backward pass too.")]
DynamicOption = Annotated[
    bool, typer.Option("--dynamic", help="For all sizes like those of the inputs.")
]
NumericsOption = Annotated[
    str,
    typer.Option(
        "--numerics",
        metavar="MODE",
        help="fast: what lies between operations of 16-bit floats may stay in float32; eager: each "
        "result is rounded as eager stores it.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--fail-if-slower",
        metavar="SHARE",
        help="Exit with code 7 where the plan takes longer than the fastest baseline by more than "
        "this share, such as 2%.",
    ),
]


def numerics_of(text: str) -> Numerics:
    """Raises UsageError for anything but "fast" and "eager"."""
    for mode in get_args(Numerics):
        if mode == text:
            return cast("Numerics", mode)
    raise UsageError(f"--numerics {text}: give one of {', '.join(get_args(Numerics))}")


def share_of(text: str | None) -> float | None:
    """`2%` and `0.02` as 0.02. Raises UsageError for anything else."""
    if text is None:
        return None
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 1:
        raise UsageError(f"--fail-if-slower {text}: give a share below 1, such as 2% or 0.02")
    return value
