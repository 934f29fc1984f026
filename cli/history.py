"""`planner history`: what was tried, what came of it, and how the best came down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..db import About, Outcome, Store, StudySummary, TrialRecord
from . import render
from .errors import UsageError
from .options import JsonOption, StoreOption

OUTCOMES: tuple[Outcome, ...] = (
    "timed",
    "miscompiled",
    "wrong",
    "timed_out",
    "crashed",
    "rejected",
)


def history(
    store: StoreOption = None,
    kernel: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Show trials of the kernel whose key starts with KEY."),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Show trials of the graph whose key starts with KEY."),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Show trials of the studies whose name starts with NAME."
        ),
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="WORD", help=f"One of {', '.join(OUTCOMES)}.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="The maximum number of rows. The newest rows are shown."
        ),
    ] = 50,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Show only trials that were faster than all trials before them."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the studies. With a filter, list trials and their outcomes, the newest last.

    A study is the search for one kernel or one plan in one tune.
    """
    filtered = best or any(value is not None for value in (kernel, graph, study, outcome))
    about, word = About(study, kernel, graph), _outcome(outcome)
    studies: list[StudySummary] = []
    trials: list[TrialRecord] = []
    with Store.open(store, create=False, read_only=True) as opened:
        if json or not filtered:
            studies = opened.studies(about=about, limit=limit)
        if json or filtered:
            trials = opened.trials(
                about=about, outcome=word, best=best, limit=limit, newest_first=True
            )
        least = opened.best_so_far([t.id for t in trials if t.id is not None])
    trials.reverse()
    if json:
        data = {
            "studies": [_summary(s) for s in studies],
            "trials": [_trial(t, least) for t in trials],
        }
        render.print_json(data)
    elif filtered:
        _print_trials(trials, least)
    else:
        _print_studies(studies)


def _outcome(word: str | None) -> Outcome | None:
    found = next((o for o in OUTCOMES if o == word), None)
    if word is not None and found is None:
        raise UsageError(f"--outcome {word}: no such outcome; outcomes are {', '.join(OUTCOMES)}")
    return found


def _summary(study: StudySummary) -> dict[str, Any]:
    return asdict(study) | {
        "started": study.started.isoformat(),
        "finished": study.finished.isoformat(),
    }


def _trial(trial: TrialRecord, least: Mapping[int, float | None]) -> dict[str, Any]:
    own = {"created_at": trial.created_at.isoformat(), "best_so_far_s": least.get(trial.id or 0)}
    return asdict(trial) | own


def _print_studies(studies: Sequence[StudySummary]) -> None:
    if not studies:
        render.out().print("no studies yet: planner tune makes them")
        return
    figures = ("trials", "failed", "best")
    columns = ("study", "level", "subject", *figures, "config", "finished")
    extra = ("subject", "finished", "level")
    made = render.table(*columns, right=figures, wide=("study", "config"), extra=extra)
    for s in studies:
        made.add_row(
            s.study,
            s.level,
            s.subject[: render.KEY],
            str(s.trials),
            str(s.failures),
            render.duration(s.best_s),
            render.candidate(s.best_config or {}),
            f"{s.finished:%Y-%m-%d %H:%M:%S}",
        )
    render.out().print(made)


def _print_trials(trials: Sequence[TrialRecord], least: Mapping[int, float | None]) -> None:
    if not trials:
        render.out().print("no trials match")
        return
    figures = ("predicted", "measured", "best so far", "registers")
    columns = ("trial", "study", "outcome", *figures, "config", "reason")
    made = render.table(
        *columns,
        right=("trial", *figures),
        wide=("study", "config", "reason"),
        extra=("study", "registers", "predicted"),
    )
    for t in trials:
        made.add_row(
            str(t.id),
            t.study,
            t.outcome,
            render.duration(t.predicted_s),
            render.duration(t.measured_s),
            render.duration(least.get(t.id or 0)),
            "-" if t.registers is None else str(t.registers),
            render.candidate(t.config),
            t.reason or "",
        )
    render.out().print(made)
