"""`planner bench`: a model by its stored plan, measured now beside eager and torch.compile."""

from __future__ import annotations

from typing import Annotated

import typer

from . import contest_table, render
from .errors import UsageError
from .options import (
    DeviceOption,
    DynamicOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    NumericsOption,
    StoreOption,
    numerics_of,
)
from .time_models import beside, verdict

WithinOption = Annotated[
    float,
    typer.Option(
        "--seconds",
        metavar="S",
        help="The maximum time to measure, in seconds. Compilation does not count.",
    ),
]


def bench(
    model: ModelArgument,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    dynamic: DynamicOption = False,
    numerics: NumericsOption = "fast",
    within: WithinOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Measure a model with its stored plans, with eager, and with every mode of torch.compile.

    The rules are those of the comparison at the end of a tune. All run in turn, under
    torch.no_grad(), and each call gets other inputs. "Cold" is a call by itself after the cache was
    overwritten. "Busy" is a call among many, with the time of the host. Nothing is tuned, and the
    store is not changed. If a graph has no plan, the exit code is 5.
    """
    within_limits(within)
    found = beside(model, inputs, store, device, dynamic, numerics_of(numerics), within)
    if json:
        render.print_json(found.to_json())
        return
    render.out().print(contest_table.view(found.contest))
    render.out().print(verdict(found))


def within_limits(seconds: float) -> None:
    """Raises UsageError for a time in which nothing can be measured."""
    if not 0 < seconds <= 3600:
        raise UsageError(f"--seconds {seconds:g}: give a number above zero, at most 3600")
