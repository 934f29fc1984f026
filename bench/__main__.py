"""`python -m fusionplan.bench`: what scripts/bench runs."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from ..planner.errors import FusionplanError, line_of
from ..planner.lowerings.inductor import MODES
from . import run as running
from .at_once import visible_gpus
from .result import CHILD, HOST, PREDICTED, REPORT, ROUNDS, Missing, WorkloadReport
from .table import markdown, write
from .together import run_together
from .verdict import faults
from .workloads import CONTRACTIONS, EXAMPLES, WORKLOADS, Workload

HOST_NAME = "host"


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: --check found a fault, or a workload failed; 2: usage."""
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.at_once and options.ncu:
        parser.error("--ncu has no place beside --at-once")
    try:
        if options.measure or options.watch:
            return _child(options)
        return _run(options, given)
    except FusionplanError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    known = ", ".join(WORKLOADS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures workloads by their stored plans, beside eager and torch.compile.",
        epilog=f"Workloads: {known}. Default: those of examples/.",
    )
    add = parser.add_argument
    add("workloads", nargs="*", type=_workload, metavar="WORKLOAD", help="a workload's name")
    add("--all", action="store_true", help="every workload")
    add("--contractions", action="store_true", help="those around matrix products")
    add(
        "--store",
        help="path or database URL; by default PLANNER_STORE or a file in the user's data folder",
    )
    add("--device", default="cuda", help="cuda or cuda:N")
    add(
        "--tune",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run `planner tune` where the store has no plan (default: --tune)",
    )
    add("--seconds", type=_positive, help="limit given to `planner tune`, for each workload")
    add(
        "--budget",
        type=_positive,
        default=1.0,
        help="seconds of each of two halves (default: 1)",
    )
    add("--rounds", type=int, default=ROUNDS, help=f"of each half, at least (default: {ROUNDS})")
    add(
        "--host",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the host cost of a call too (default: --host)",
    )
    add("--modes", nargs="+", choices=MODES, default=MODES, help="of torch.compile (default: all)")
    add(
        "--at-once",
        type=int,
        default=0,
        metavar="N",
        help="tune N workloads at a time on each GPU, in turns; then measure each alone",
    )
    add("--limit", type=_positive, default=math.inf, help="seconds of the whole run")
    add("--ncu", action="store_true", help="the bytes of a call too, counted by Nsight Compute")
    add("--include", type=Path, action="append", default=[], help="an earlier --json to add to")
    add("--json", type=Path, help="write the report there")
    add("--markdown", type=Path, help="write the tables there, between the markers if it has any")
    add("--check", action="store_true", help="exit with 1 when a requirement is not met")
    add("--measure", metavar="NAME", help=argparse.SUPPRESS)
    add("--watch", metavar="NAME", help=argparse.SUPPRESS)
    return parser


def _workload(name: str) -> Workload:
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise argparse.ArgumentTypeError(f"unknown workload {name!r}; known are {known}")
    return WORKLOADS[name]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    named = [*options.workloads, *(CONTRACTIONS if options.contractions else ())]
    workloads = list(WORKLOADS.values()) if options.all else named or list(EXAMPLES)
    earlier = [_read(path) for path in options.include]

    def keep(report: WorkloadReport) -> WorkloadReport:
        for other in earlier:
            report = running.joined(other, report)
        if options.json:
            options.json.write_bytes(REPORT.dump_json(report, indent=1) + b"\n")
        if options.markdown:
            write(options.markdown, markdown(report))
        return report

    found = running.SoFar(list(dict.fromkeys(workloads)), given)
    report = keep(_measured(found, options, keep))
    print(markdown(report), end="")
    if options.check:
        return _judged(report)
    uncounted = any(isinstance(m.traffic, Missing) for m in report.workloads)
    return int(uncounted or bool(report.failed))


def _measured(
    found: running.SoFar,
    options: argparse.Namespace,
    keep: Callable[[WorkloadReport], WorkloadReport],
) -> WorkloadReport:
    """keep: takes the report so far."""
    children = running.Children(
        *(options.store, options.device, options.budget),
        *(options.seconds, options.modes, options.rounds),
    )
    until = time.monotonic() + options.limit
    common: Any = {"tune": options.tune, "say": _say, "keep": keep, "until": until}
    if options.at_once:
        gpus = visible_gpus(max(1, torch.cuda.device_count()))
        run_together(found, children, gpus=gpus, count=options.at_once, **common)
    else:
        running.run(found, children, count=options.ncu, **common)
    if options.host:
        running.add_host(found, children, _say, until)
    return found.report()


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _judged(report: WorkloadReport) -> int:
    found = faults(report, WORKLOADS)
    for line in found:
        print(f"check: {line}", file=sys.stderr)
    return 1 if found else 0


def _read(path: Path) -> WorkloadReport:
    try:
        return REPORT.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise FusionplanError(f"{path} is no report: {line_of(error)}") from error


def _child(options: argparse.Namespace) -> int:
    """One JSON document on stdout, and nothing else there, whatever a compiler says."""
    from .host import host_costs
    from .measure import measure
    from .traffic import watched

    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise FusionplanError(
                f"device {device}: torch {torch.__version__} finds no CUDA device"
            )
        device = torch.device(
            "cuda", torch.cuda.current_device() if device.index is None else device.index
        )
        torch.cuda.set_device(device)
    with _stdout_to_stderr():
        if options.watch:
            answer = PREDICTED.dump_json(watched(_workload(options.watch), device, options.store))
        elif options.measure == HOST_NAME:
            answer = HOST.dump_json(host_costs(device))
        else:
            workload = _workload(options.measure)
            given = (workload, device, options.store, options.budget)
            how = {"modes": options.modes, "rounds": options.rounds}
            answer = CHILD.dump_json(measure(*given, **how))
    print(answer.decode())
    return 0


class _stdout_to_stderr(contextlib.AbstractContextManager[None]):
    """File descriptor 1 goes to 2: what compilers print from other processes included."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        self._kept = os.dup(1)
        os.dup2(2, 1)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self._kept, 1)
        os.close(self._kept)


if __name__ == "__main__":
    sys.exit(main())
