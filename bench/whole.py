"""`python -m fusionplan.bench.whole`: whole models by their plans, beside eager and torch.compile.

Models of transformers and timm with random weights in bfloat16 are tuned and then called, or
trained for a step, by each way in turn. Each model has a process of its own, so that what hangs,
crashes or takes all memory is told, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from ..tuner.capture.capture_model import describe
from .result import OURS, Machine
from .run import commit
from .whole_models import MODELS, ModelKind, ModelSize
from .whole_one import WAYS, MeasuredModel, ModelRequest, measure

PATIENCE_S = 1200.0


@dataclass(slots=True)
class ModelReport:
    """One run."""

    date: str
    commit: str
    command: str
    models: list[MeasuredModel] = field(default_factory=list)

    @property
    def machine(self) -> Machine | None:
        return next((m.machine for m in self.models if m.machine), None)


ONE: TypeAdapter[MeasuredModel] = TypeAdapter(MeasuredModel)
REPORT: TypeAdapter[ModelReport] = TypeAdapter(ModelReport)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a model failed, or ours is wrong; 2: usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    for name in options.models:
        if name not in MODELS:
            parser.error(f"{name!r} is no model: give {', '.join(MODELS)}")
    for way in options.ways:
        if way not in WAYS:
            parser.error(f"{way!r} is no way to run a model: give {', '.join(WAYS)}")
    if options.into is not None:
        _child(_asked(options, options.models[0], options.kind), options.into)
        return 0
    command = shlex.join(["python", "-m", "fusionplan.bench.whole", *given])
    report = ModelReport(datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), commit(), command)
    kinds = get_args(ModelKind) if options.kind == "both" else (options.kind,)
    until = time.monotonic() + options.limit
    for name in options.models or MODELS:
        for kind in kinds:
            left = until - time.monotonic()
            found = MeasuredModel(name, kind, ended=f"not begun: {options.limit:g} s are over")
            if left > 0:
                print(f"{name} {kind}: begun", file=sys.stderr, flush=True)
                found = _apart(_asked(options, name, kind), options.patience)
            print(f"{name} {kind}: {found.problem or 'done'}", file=sys.stderr, flush=True)
            report.models.append(found)
            if options.json is not None:
                options.json.write_bytes(REPORT.dump_json(report, indent=1))
    print(markdown(report))
    return int(any(each.problem for each in report.models))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    add("--kind", choices=[*get_args(ModelKind), "both"], default="both")
    add("--ways", nargs="+", metavar="WAY", default=list(WAYS), help=", ".join(WAYS))
    add("--seconds", type=_seconds, default=120.0, help="of each tune; 0: no search (default: 120)")
    add("--limit", type=_seconds, default=math.inf, help="seconds after which no model is begun")
    add("--patience", type=_seconds, default=PATIENCE_S, help="most seconds of one model's process")
    add(
        "--budget",
        type=_seconds,
        default=2.0,
        help="seconds of each of two halves (default: 2)",
    )
    add("--store", default=None, help="path or database URL")
    add("--device", default="cuda", help="cuda, cuda:N or cpu")
    add(
        "--size",
        choices=get_args(ModelSize),
        default="whole",
        help="large: a batch that fills a GPU; block: one layer; tiny: rehearsal",
    )
    add("--json", type=Path, default=None, help="write the figures there")
    add("--into", type=Path, default=None, help=argparse.SUPPRESS)
    return parser


def _seconds(text: str) -> float:
    found = float(text)
    if not found >= 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return found


def _asked(options: argparse.Namespace, name: str, kind: ModelKind) -> ModelRequest:
    return ModelRequest(
        name,
        kind,
        tuple(way for way in WAYS if way in options.ways),
        options.device,
        options.seconds,
        options.budget,
        options.store,
        options.size,
    )


def _apart(asked: ModelRequest, patience_s: float) -> MeasuredModel:
    """What a process of its own found, up to where it ended."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "one.json"
        # -P: the working folder does not come first on the import path.
        command = [sys.executable, "-P", "-m", "fusionplan.bench.whole", *_arguments(asked, into)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        ended = ""
        try:
            status = process.wait(patience_s)
            if status:
                ended = f"its process ended with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {patience_s:g} s"
        finally:
            _kill(process)
        try:
            found = ONE.validate_json(into.read_bytes())
        except (OSError, ValidationError):
            found = MeasuredModel(asked.name, asked.kind)
    found.ended = found.ended or ended
    return found


def _arguments(asked: ModelRequest, into: Path) -> list[str]:
    numbers = ["--seconds", str(asked.seconds), "--budget", str(asked.budget_s)]
    given = [asked.name, "--kind", asked.kind, "--device", asked.device, *numbers]
    given += ["--into", str(into), "--ways", *asked.ways]
    given += ["--size", asked.size]
    return given if asked.store is None else [*given, "--store", asked.store]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and those that it started, which compile and measure."""
    with contextlib.suppress(ProcessLookupError):  # they have all ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _child(asked: ModelRequest, into: Path) -> None:
    """The record goes to the file as it fills, so that a process that hangs leaves what it had."""
    last = MeasuredModel(asked.name, asked.kind)

    def save(record: MeasuredModel) -> None:
        nonlocal last
        last = record
        whole = into.with_suffix(".new")
        whole.write_bytes(ONE.dump_json(record))
        whole.replace(into)

    try:
        save(measure(asked, save))
    except Exception as error:  # noqa: BLE001 - any model under any compiler: told
        last.ended = describe(error)
        save(last)


def markdown(report: ModelReport) -> str:
    """Where and when, and milliseconds of a call by every way."""
    known = report.machine
    on = f"{known.device}, torch {known.torch}, triton {known.triton}" if known else "no device"
    where = f"{report.date}, {on}, commit {report.commit}: `{report.command}`"
    ways = [way for way in WAYS if any(way in each.times for each in report.models)]
    heads = ["model", "kind", *ways, "best baseline / ours", "kernels", "error", "plan s", "tune s"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows += [f"| {' | '.join(_cells(each, ways))} |" for each in report.models]
    notes = [f"- {each.name} {each.kind}: {text}" for each in report.models for text in _told(each)]
    return "\n".join([where, "", *rows, *([""] if notes else []), *notes])


def _cells(each: MeasuredModel, ways: Sequence[str]) -> list[str]:
    times = [f"{each.times[w].seconds * 1e3:.3f} ms" if w in each.times else "-" for w in ways]
    ratio = f"{1 / each.best.median:.2f} ({each.best.baseline})" if each.best else "-"
    error = f"{each.errors[OURS]:.1e}" if OURS in each.errors else "-"
    spent = [f"{s:.0f}" if s is not None else "-" for s in (each.plan_s, each.tune_s)]
    return [each.name, each.kind, *times, ratio, str(each.kernels), error, *spent]


def _told(each: MeasuredModel) -> list[str]:
    """What went wrong, and how our plan runs."""
    found = [f"{way} failed: {why}" for way, why in each.failed.items()]
    if each.problem and each.problem != each.failed.get(OURS):
        found.append(each.problem)
    if each.lowerings:
        graphed = ", as a CUDA graph" if each.cudagraph else ""
        found.append(f"runs by {', '.join(each.lowerings)}{graphed}")
    return found + each.notes


if __name__ == "__main__":
    raise SystemExit(main())
