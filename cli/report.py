"""`planner report`: everything that is known of a model's plans, as one HTML file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..db import Store, StoreCorrupt
from ..planner.errors import PlanError
from . import render, stored
from .captured import captured_model, note, opened_store, titles
from .errors import UsageError
from .options import (
    DeviceOption,
    InputsOption,
    JsonOption,
    ModelledOption,
    NumericsOption,
    StoreOption,
    TargetOption,
    TrainingOption,
    numerics_of,
)

if TYPE_CHECKING:
    from ..planner.costs.device import DeviceProfile
    from ..report.collect import Subject
    from ..report.data import Report
    from ..tuner.capture.capture_model import CapturedModel, ModelGraph
    from ..tuner.session.place import Place

SubjectArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN|MODEL",
        help="A model's file (or FILE.py:OBJECT): its stored plans are shown, else the cost "
        "model's, with the lines of its source. Or a plan: its name, or the first "
        "characters of its key. Default: the newest plan.",
        show_default=False,
    ),
]


def report(
    subject: SubjectArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.html", help="The file to write. Default: report.html."
        ),
    ] = None,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: TrainingOption = False,
    numerics: NumericsOption = "fast",
    modelled: ModelledOption = False,
    json: JsonOption = False,
) -> None:
    """Write a report of a model's plans as one HTML file, which needs no network.

    It shows the speed-up over every baseline, the least time that the device needs, and what was
    fused. For each kernel it shows the source, the loops, the costs, the search, and why it was not
    fused with its neighbours. If something was not measured or not stored, the report says so.

    --json prints the same data on stdout; a file is then written only with --output.
    """
    with contextlib.ExitStack() as stack:
        if subject is not None and _is_model(subject):
            opened = None if modelled else opened_store(store, stack)
            name, captured, place = captured_model(
                *(subject, inputs, device, target),
                training=training,
                numerics=numerics_of(numerics),
            )
            made = _of_model(name, captured, place, opened)
        else:
            _require_a_model(subject, inputs=inputs, training=training, modelled=modelled)
            found = stack.enter_context(Store.open(store, create=False, read_only=True))
            made = _of_plan(found, subject)
    if output is None and not json:
        output = Path("report.html")
    if output is not None:
        size = _write(made, output)
    if json:
        render.print_json(made.to_json())
    elif output is not None:
        render.out().print(f"written to {output}, {size // 1024} KiB", soft_wrap=True)


def _is_model(text: str) -> bool:
    """Whether it names a file that is there, not a plan of the store."""
    path, colon, _ = text.rpartition(":")
    return any(p.endswith(".py") and Path(p).is_file() for p in (text, path if colon else ""))


def _write(made: Report, output: Path) -> int:
    """The bytes of the page."""
    from ..report.page import page
    from ..report.plots import MISSING, library

    data = page(made).encode()
    if library() is None:
        render.err().print(f"note: {MISSING}", soft_wrap=True)
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    return len(data)


def _require_a_model(subject: str | None, **options: object) -> None:
    """Raises UsageError for an option that says how a model is captured, where none is."""
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        named = "the newest plan" if subject is None else f"the plan {subject}"
        raise UsageError(f"--{given} is for a model's file, and {named} is of the store")


def _of_model(name: str, captured: CapturedModel, place: Place, opened: Store | None) -> Report:
    from ..report.collect import collect

    subjects = [
        _subject(title, part, place, opened)
        for title, part in zip(titles(name, captured), captured.parts, strict=True)
    ]
    profile = place.profile if opened is None else _calibrated(opened, place.profile)
    return collect(name, subjects, profile, opened, captured.notes)


def _subject(name: str, part: ModelGraph, place: Place, opened: Store | None) -> Subject:
    from ..planner.capture.source_lines import source_texts
    from ..report.collect import Subject
    from ..tuner.records.found_plan import found_plan

    graph = part.captured.graph
    found = found_plan(graph, place.profile, opened)
    _, inputs = ("", "") if found.record is None else stored.about(found.record, graph)
    return Subject(
        name,
        graph,
        found.plan,
        note(found, place, opened),
        key=found.key,
        stage=part.stage,
        inputs=inputs,
        times=part.times,
        measured=found.measured,
        sources=source_texts(part.captured.fx_nodes),
    )


def _of_plan(opened: Store, wanted: str | None) -> Report:
    from ..planner.costs.device import DeviceProfile
    from ..report.collect import Subject, collect
    from ..tuner.records.found_plan import measured_in

    found = stored.find(opened, wanted)
    if found.graph is None:
        raise PlanError(f"the graph of plan {found.key} is not in the store: tune the model again")
    record = opened.device(found.plan.device)
    if record is None:
        raise PlanError(f"the device of plan {found.key} is not in the store: tune the model again")
    try:
        profile = DeviceProfile.from_json(record.profile)
    except ValueError as error:
        raise StoreCorrupt(f"the device {record.name} in {opened.location}: {error}") from error
    told = f"stored as {found.key[: render.KEY]} in {opened.location}"
    subject = Subject(
        found.name,
        found.graph,
        found.plan,
        told,
        key=found.key,
        stage=found.stage,
        inputs=found.inputs,
        measured=measured_in(opened, found.plan),
        sources=found.sources,
    )
    return collect(found.name, [subject], _calibrated(opened, profile), opened)


def _calibrated(opened: Store, profile: DeviceProfile) -> DeviceProfile:
    from ..tuner.model_fit.refit import calibrated

    return calibrated(opened, profile)
