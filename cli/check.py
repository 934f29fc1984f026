"""`planner check`: whether a stored plan still holds against today's baselines."""

from __future__ import annotations

from typing import Annotated

import typer

from . import render
from .bench import WithinOption, within_limits
from .errors import SlowerError
from .options import (
    DeviceOption,
    DynamicOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    NumericsOption,
    StoreOption,
    numerics_of,
    share_of,
)
from .time_models import Beside, beside, verdict


def check(
    model: ModelArgument,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    dynamic: DynamicOption = False,
    numerics: NumericsOption = "fast",
    fail_if_slower: Annotated[
        str,
        typer.Option(
            "--fail-if-slower",
            metavar="SHARE",
            help="How much longer than the fastest baseline the plan may take.",
        ),
    ] = "2%",
    within: WithinOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Measure as `planner bench` does, and fail if the stored plan is too slow. Made for CI.

    The exit code is 0 if the plan is fast enough. It is 7 if the plan takes longer than the fastest
    baseline by more than --fail-if-slower allows, and the difference is larger than the noise. It
    is 5 if a graph of the model has no stored plan.
    """
    allowed = share_of(fail_if_slower) or 0.0
    within_limits(within)
    found = beside(model, inputs, store, device, dynamic, numerics_of(numerics), within)
    is_slower = slower(found, allowed)
    if json:
        render.print_json(found.to_json() | {"allowed": allowed, "holds": not is_slower})
    else:
        render.out().print(verdict(found))
    if is_slower:
        # Not by an exception: with --json the document is on stdout already.
        text = f"the plan takes {found.own.behind - 1:.1%} longer than {found.contest.winner}"
        render.err().print(f"planner: {text}; {allowed:.1%} is allowed", soft_wrap=True)
        raise typer.Exit(SlowerError.exit_code)


def slower(found: Beside, allowed: float) -> bool:
    """By more than is allowed, and above noise."""
    return found.own.behind > 1 + allowed and found.own.low > 1
