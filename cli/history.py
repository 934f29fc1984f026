"""`planner history`: what was tried, what came of it, and how the best came down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..db import Outcome, Store, StudySummary, TrialRecord
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
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most rows; the newest count.")
    ] = 50,
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
        trials = _trials(opened, studies) if filtered or json else []
    # Of all trials, before any is left out: the best so far may be older than what is shown.
    least = best_so_far(trials)
    if best:
        trials = improvements(trials)
    trials = [t for t in trials if word in (None, t.outcome)][-limit:]
    if json:
        data = {
            "studies": [_summary(s) for s in studies[:limit]],
            "trials": [_trial(t, least) for t in trials],
        }
        render.print_json(data)
    elif filtered:
        _print_trials(trials, least)
    else:
        _print_studies(studies[:limit])


def improvements(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Trials faster than all before them of the same subject on the same device."""
    found = []
    for trial, before in zip(trials, _bests(trials), strict=True):
        seconds = _seconds(trial)
        if seconds is not None and (before is None or seconds < before):
            found.append(trial)
    return found


def best_so_far(trials: Sequence[TrialRecord]) -> dict[int, float | None]:
    """By the trial's id: the least time of its subject on its device, up to and with it."""
    found: dict[int, float | None] = {}
    for trial, before in zip(trials, _bests(trials), strict=True):
        known = [s for s in (before, _seconds(trial)) if s is not None]
        found[trial.id or 0] = min(known, default=None)
    return found


def _bests(trials: Sequence[TrialRecord]) -> Iterator[float | None]:
    """For each trial the least time before it, of the same subject timed in the same way."""
    least: dict[tuple[str, str, str], float] = {}
    for trial in trials:
        about = (trial.subject, trial.device_key, trial.timing)
        yield least.get(about)
        seconds = _seconds(trial)
        if seconds is not None:
            least[about] = min(seconds, least.get(about, seconds))


def _seconds(trial: TrialRecord) -> float | None:
    return trial.measured_s if trial.outcome == "timed" else None


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


def _trials(store: Store, studies: Sequence[StudySummary]) -> list[TrialRecord]:
    """The trials of these studies, oldest first."""
    wanted = {(s.study, s.level, s.subject, s.device_key) for s in studies}
    return [t for t in store.trials() if (t.study, t.level, t.subject, t.device_key) in wanted]


def _summary(study: StudySummary) -> dict[str, Any]:
    return asdict(study) | {
        "started": study.started.isoformat(),
        "finished": study.finished.isoformat(),
    }


def _trial(trial: TrialRecord, least: Mapping[int, float | None]) -> dict[str, Any]:
    own = {"created_at": trial.created_at.isoformat(), "best_so_far_s": least[trial.id or 0]}
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
            render.duration(least[t.id or 0]),
            "-" if t.registers is None else str(t.registers),
            render.candidate(t.config),
            t.reason or "",
        )
    render.out().print(made)
