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
        help="A Python file that has get_model(), model or a class Model. Or FILE.py:OBJECT: the "
        "object is a module, a class whose constructor needs no arguments, or a function.",
        show_default=False,
    ),
]
InputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="The function that returns the arguments of one call. Or their types and shapes, such "
        "as 'float32[8, 1024], int64[8]': floats are then random, and integers are 0 or 1. "
        "Default: get_inputs() or example_inputs in the model's file.",
    ),
]
PlanArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="The plan: its name, the file that was tuned, or the first characters of its key. "
        "Default: the newest plan.",
        show_default=False,
    ),
]
StoreOption = Annotated[str | None, SETTINGS["store"].option()]
TrialsOption = Annotated[int | None, SETTINGS["trials"].option()]
SecondsOption = Annotated[float | None, SETTINGS["seconds"].option()]
EffortOption = Annotated[str, SETTINGS["effort"].option()]
DeviceOption = Annotated[str | None, SETTINGS["device"].option()]
TargetOption = Annotated[str | None, SETTINGS["target"].option()]
TrainingOption = Annotated[bool, typer.Option("--training", help="Plan the backward pass, too.")]
DynamicOption = Annotated[
    bool,
    typer.Option(
        "--dynamic", help="The sizes of the inputs may vary, as with torch.compile(dynamic=True)."
    ),
]
ModelledOption = Annotated[
    bool,
    typer.Option("--modelled", help="Use the cost model's plan, even if the store has a plan."),
]
NumericsOption = Annotated[
    str,
    typer.Option(
        "--numerics",
        metavar="MODE",
        help="fast: between operations on 16-bit floats, values may stay in float32. eager: "
        "every result is rounded to its type, as in eager mode.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="The maximum number of processes that compile on this host. Default: what its cores "
        "allow.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--fail-if-slower",
        metavar="SHARE",
        help="Exit with code 7 if the plan takes longer than the fastest baseline by more than "
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
