"""`planner repro`: one group of a plan, or one trial of a search, as a script that runs alone."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ..db import Store, TrialRecord
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
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial",
            metavar="ID",
            min=1,
            help="Use the kernel of this trial, not one of a plan. `planner history --kernel` "
            "lists the IDs. The trial may have failed, or been wrong.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.py", help="The file to write. Default: stdout."
        ),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write a script that runs one kernel of a plan, or of a trial, alone. It has the generated
    kernel, random inputs, the same operations in eager mode, a check against float64, and timings.

    The script needs torch and Triton, but not fusionplan. It exits with 1 if the check fails.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        if trial is not None:
            if plan is not None:
                raise UsageError("--trial names what to run: give no plan beside it")
            key, text = f"trial {trial}", script_of_trial(opened, trial)
        else:
            found = stored.find(opened, plan)
            key, text = found.key, script(found, group)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    if json:
        render.print_json({"key": key, "group": None if trial else group, "script": text})
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


def script_of_trial(store: Store, number: int) -> str:
    """Raises UsageError where there is no such trial, or it ran no kernel of ours, and PlanError
    where the store has no graph for it, or today's versions have no such kernel."""
    from ..planner.graph.graph import INPUT
    from ..planner.plan import GroupPlan, Plan
    from ..planner.standalone import standalone
    from ..tuner.trial.outcome import Candidate

    trial = next(iter(store.trials(after=number - 1, limit=1)), None)
    if trial is None or trial.id != number:
        raise UsageError(f"--trial {number}: there is no such trial; planner history lists them")
    try:
        candidate = Candidate.from_json(trial.config) if trial.level == "kernel" else None
    except ValueError as error:
        raise PlanError(f"trial {number} cannot be read: {error}") from error
    if candidate is None or candidate.config is None:
        ran = "a whole plan" if candidate is None else candidate.lowering
        raise UsageError(f"--trial {number}: it ran {ran}, not one generated kernel")
    graph = stored.graph_of_kernel(store, trial.subject)
    if graph is None:
        raise PlanError(f"the graph of trial {number} is not in the store: tune the model again")
    nodes = tuple(node.id for node in graph.nodes if node.op != INPUT)
    group = GroupPlan(nodes, candidate.lowering, trial.subject, candidate.config)
    versions = tuple(sorted(trial.versions.items()))
    plan = Plan(trial.subject, trial.device_key, versions, "searched", (group,))
    return f"# {_told(trial)}\n{standalone(graph, plan, group)}"


def _told(trial: TrialRecord) -> str:
    """A comment of one line: what is stored is text, and never code."""
    reason = f", {dumps(trial.reason)}" if trial.reason else ""
    return f"Trial {trial.id} of {dumps(trial.study)}: {trial.outcome}{reason}"
