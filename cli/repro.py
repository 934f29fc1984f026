"""`planner repro`: one group of a plan as a script that runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..db import Store
from ..planner.errors import PlanError
from . import render, stored
from .errors import UsageError
from .options import JsonOption, PlanArgument, StoreOption
from .render import ShownPlan


def repro(
    plan: PlanArgument = None,
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="N", help="The number of the group, as `planner show` prints it."
        ),
    ] = "0",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.py", help="The file to write. Default: stdout."
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write a script that runs one kernel of a plan alone. It has the generated kernel, random
    inputs, the same operations in eager mode, a check against float64, and timings.

    The script needs torch and Triton, but not fusionplan. It exits with 1 if the check fails.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        found = stored.find(opened, plan)
    text = script(found, group)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    if json:
        render.print_json({"key": found.key, "group": group, "script": text})
    elif output is None:
        render.print_text(text)
    else:
        render.out().print(f"written to {output}", soft_wrap=True)


def script(found: ShownPlan, number: str) -> str:
    """Raises PlanError where the graph is not in the store or the group has no kernel of ours, and
    UsageError for a number that no group has."""
    from ..planner.lowerings.nested import groups_within
    from ..planner.standalone import standalone

    if found.graph is None:
        raise PlanError(f"the graph of plan {found.key} is not in the store: tune the model again")
    groups = list(groups_within(found.graph, found.plan))
    chosen = next((each for each in groups if each.number == number), None)
    if chosen is None:
        known = ", ".join(each.number for each in groups) or "none"
        raise UsageError(f"--group {number}: there is no such group; groups are {known}")
    if chosen.group.config is None:
        raise PlanError(
            f"group {number} is run by {chosen.group.lowering}, not by a generated kernel: choose "
            "another group"
        )
    return standalone(chosen.graph, found.plan, chosen.group)
