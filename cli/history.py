"""`planner history`: what was tried, what came of it, and how the best came down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from ..db import Outcome, Store, StudySummary, TrialRecord
from . import render
from .errors import UsageError
from .show import JsonOption, StoreOption

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
        str | None, typer.Option(metavar="KEY", help="Trials of the kernel whose key starts so.")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(metavar="KEY", help="Trials for the graph whose key starts so.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Trials of studies whose name starts so.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(metavar="WORD", help=f"One of {', '.join(OUTCOMES)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most rows; the newest count.")] = 50,
    best: Annotated[
        bool, typer.Option("--best", help="Only trials that were the best of their subject so far.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the studies; with a filter, the trials and their outcomes, newest last."""
    word = _outcome(outcome)
    filtered = best or any(value is not None for value in (kernel, graph, study, outcome))
    with Store.open(store, create=False, read_only=True) as opened:
        studies = _studies(opened, kernel, graph, study)
        trials = _trials(opened, studies, word) if filtered or json else []
        if best:
            trials = improvements(trials)
    trials = trials[-limit:]
    if json:
        data = {
            "studies": [_summary(s) for s in studies[:limit]],
            "trials": [_trial(t) for t in trials],
        }
        render.print_json(data)
    elif filtered:
        _print_trials(trials)
    else:
        _print_studies(studies[:limit])


def improvements(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Trials faster than all before them of the same subject on the same device."""
    least: dict[tuple[str, str, str], float] = {}
    found = []
    for trial in trials:
        about = (trial.subject, trial.device_key, trial.timing)
        if trial.measured_s is None or trial.outcome != "timed":
            continue
        if trial.measured_s < least.get(about, float("inf")):
            least[about] = trial.measured_s
            found.append(trial)
    return found


def _outcome(word: str | None) -> Outcome | None:
    found = next((o for o in OUTCOMES if o == word), None)
    if word is not None and found is None:
        raise UsageError(f"--outcome {word}: no such outcome; outcomes are {', '.join(OUTCOMES)}")
    return found


def _studies(
    store: Store, kernel: str | None, graph: str | None, study: str | None
) -> list[StudySummary]:
    """The studies that match all that is given, the latest first."""
    found = store.studies()
    if study is not None:
        found = [s for s in found if s.study.startswith(study)]
    if kernel is not None:
        found = [s for s in found if s.level == "kernel" and s.subject.startswith(kernel)]
    if graph is not None:
        graph_of = _graph_of(store)
        found = [s for s in found if graph_of(s).startswith(graph)]
    return found


def _graph_of(store: Store) -> Callable[[StudySummary], str]:
    def graph_of(study: StudySummary) -> str:
        if study.level == "partition":
            return study.subject
        record = store.kernel(study.subject)
        return record.graph_key if record is not None else ""

    return graph_of


def _trials(
    store: Store, studies: Sequence[StudySummary], outcome: Outcome | None
) -> list[TrialRecord]:
    """The trials of these studies, oldest first."""
    wanted = {(s.study, s.level, s.subject, s.device_key) for s in studies}
    return [
        t
        for t in store.trials(outcome=outcome)
        if (t.study, t.level, t.subject, t.device_key) in wanted
    ]


def _summary(study: StudySummary) -> dict[str, Any]:
    return asdict(study) | {
        "started": study.started.isoformat(),
        "finished": study.finished.isoformat(),
    }


def _trial(trial: TrialRecord) -> dict[str, Any]:
    return asdict(trial) | {"created_at": trial.created_at.isoformat()}


def _print_studies(studies: Sequence[StudySummary]) -> None:
    if not studies:
        render.out().print("no studies yet: planner tune makes them")
        return
    figures = ("trials", "failed", "best")
    made = render.table("study", "level", "subject", *figures, "config", "finished", right=figures)
    for s in studies:
        made.add_row(
            Text(s.study),
            s.level,
            s.subject[: render.KEY],
            str(s.trials),
            str(s.failures),
            render.duration(s.best_s),
            Text(render.candidate(s.best_config or {})),
            f"{s.finished:%Y-%m-%d %H:%M:%S}",
        )
    render.out().print(made)


def _print_trials(trials: Sequence[TrialRecord]) -> None:
    if not trials:
        render.out().print("no trials match")
        return
    figures = ("predicted", "measured", "best so far", "registers")
    made = render.table("trial", "study", "outcome", *figures, "config", "reason", right=figures)
    least: dict[str, float] = {}
    for t in trials:
        if t.measured_s is not None and t.outcome == "timed":
            least[t.subject] = min(t.measured_s, least.get(t.subject, t.measured_s))
        made.add_row(
            str(t.id),
            Text(t.study),
            t.outcome,
            render.duration(t.predicted_s),
            render.duration(t.measured_s),
            render.duration(least.get(t.subject)),
            "-" if t.registers is None else str(t.registers),
            Text(render.candidate(t.config)),
            Text(t.reason or ""),
        )
    render.out().print(made)
