"""`python -m fusionplan.bench.conformance`: what scripts/conformance runs.

Every sample that PyTorch has of an operation goes through our backend by a modelled plan, forward
and backward, and is compared with eager against float64.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..planner.errors import summary_of
from ..planner.versions import CODEGEN
from .conformance_jobs import ConformanceRecord, Failure, OperationJob, records
from .samples import SampledCall, SampleOutcome, is_fatal, judge, operations, samples
from .table_age import Figures

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "bfloat16", "int64", "bool", "float16", "float64", "int32", "uint8")
}
DEFAULT = ("float32", "bfloat16", "int64", "bool")
_START, _END = "<!-- conformance: start -->", "<!-- conformance: end -->"


def run(job: OperationJob) -> ConformanceRecord:
    """All samples of one operation in one dtype."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    info, started = operations()[job.name], time.monotonic()
    counts: Counter[str] = Counter()
    opaque: Counter[str] = Counter()
    failures, kernels, unseen, broken = [], 0, False, False
    for number, sample in enumerate(_drawn(info, job)):
        try:
            own = isinstance(sample, SampleOutcome)
            outcome = sample if own else judge(SampledCall.of(info, sample, job.inside))
        except Exception as error:  # noqa: BLE001 - the other operations are to be judged too
            outcome, broken = SampleOutcome("failed", message=summary_of(error)), is_fatal(error)
        counts[outcome.status] += 1
        opaque.update(outcome.opaque)
        kernels += outcome.kernels
        if outcome.status == "failed":
            failures.append(Failure(job.dtype, number, outcome.message))
        if broken or time.monotonic() - started > job.seconds:
            unseen = True
            break
    seconds = time.monotonic() - started
    found = (dict(counts), kernels, tuple(failures), seconds, dict(opaque), unseen, broken)
    return ConformanceRecord(job.name, job.dtype, *found)


def _drawn(info: Any, job: OperationJob) -> Iterator[Any]:
    """The samples; an outcome in place of those that cannot be made on this device."""
    try:
        yield from samples(info, DTYPES[job.dtype], job.device, job.limit)
    except Exception as error:
        if is_fatal(error):
            raise
        # Torch's own samples of a rare library.
        yield SampleOutcome("left out", message=f"no sample: {error}")


@dataclass(slots=True)
class ConformanceReport:
    """By operation, over all dtypes."""

    command: str
    device: str
    records: list[ConformanceRecord] = field(default_factory=list)

    def by_operation(self) -> dict[str, list[ConformanceRecord]]:
        found: dict[str, list[ConformanceRecord]] = {}
        for record in sorted(self.records, key=lambda r: (r.name.lower(), r.dtype)):
            found.setdefault(record.name, []).append(record)
        return found

    def failures(self) -> list[tuple[str, Failure]]:
        return [(n, f) for n, rs in self.by_operation().items() for r in rs for f in r.failures]

    def markdown(self) -> str:
        """The tables of docs/conformance.md."""
        groups = self.by_operation()
        ours = {n: rs for n, rs in groups.items() if _count(rs, "ours", "failed")}
        rows = [r for rs in ours.values() for r in rs]
        lines = [
            f"{datetime.now(UTC):%Y-%m-%d}, {self.device}, torch {torch.__version__}: "
            f"`{self.command}`",
            "",
            *self._told(),
            "| dtype | operations | samples | ours | kernels | failures | not ours | random "
            "| left out |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for dtype in (*DTYPES, "all"):
            some = [r for r in rows if dtype in (r.dtype, "all")]
            if some:
                names = len({r.name for r in some if _count([r], "ours", "failed")})
                lines.append(f"| {dtype} | {names} | {_cells(some)} |")
        shares = [
            f"{name} {_count(rs, 'ours')}/{sum(r.samples for r in rs)}" for name, rs in ours.items()
        ]
        lines += ["", f"Samples of ours, of all ({len(shares)} operations): {', '.join(shares)}."]
        if self.failures():
            lines += ["", "Failures:", "", "| operation | dtype | sample | message |"]
            lines += ["|---|---|---|---|"]
            for name, f in self.failures():
                message = f.message.replace("|", "\\|")
                lines.append(f"| {name} | {f.dtype} | {f.sample} | {message} |")
        left: Counter[str] = Counter()
        for record in self.records:
            left.update(record.opaque)
        named = ", ".join(f"{op} ({count})" for op, count in left.most_common())
        lines += ["", f"Beside kernels of ours these ran by ATen (samples): {named or 'nothing'}."]
        rest = [n for n, rs in groups.items() if n not in ours and _count(rs, "not ours")]
        odd = [n for n, rs in groups.items() if n not in ours and not _count(rs, "not ours")]
        lines += ["", f"Without a kernel of ours ({len(rest)}): {', '.join(rest)}."]
        lines += ["", f"Without a sample to judge ({len(odd)}): {', '.join(odd)}."]
        cut = [f"{r.name} ({r.dtype})" for rs in groups.values() for r in rs if r.unseen]
        if cut:
            lines += ["", f"Cut off, by the time limit or an error: {', '.join(cut)}."]
        return "\n".join(lines) + "\n"

    def _told(self) -> tuple[str, str, str]:
        """How old a table is."""
        made = Figures((int(CODEGEN),), f"{datetime.now(UTC):%Y-%m-%d}", self.device)
        return made.comment(), made.told(int(CODEGEN)), ""


def _count(records: Sequence[ConformanceRecord], *statuses: str) -> int:
    return sum(r.counts.get(s, 0) for r in records for s in statuses)


def _cells(records: Sequence[ConformanceRecord]) -> str:
    cells = [sum(r.samples for r in records), _count(records, "ours")]
    cells += [sum(r.kernels for r in records)]
    cells += [_count(records, s) for s in ("failed", "not ours", "random", "left out")]
    return " | ".join(map(str, cells))


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no failure; 1: failures, or nothing was ours; 2: usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        print("conformance: on the CPU set TRITON_INTERPRET=1", file=sys.stderr)
        return 2
    known = operations()
    wanted = options.ops.split(",") if options.ops else list(known)
    names = [
        n for n in known if n in wanted or n.split(".")[0] in wanted or known[n].name in wanted
    ]
    dtypes = options.dtypes.split(",")
    if options.resume and not options.json:
        print("conformance: --resume goes on with the file that --json names", file=sys.stderr)
        return 2
    if not names or set(dtypes) - DTYPES.keys():
        print(f"conformance: unknown operations or dtypes; known: {', '.join(DTYPES)}")
        return 2
    jobs = [
        OperationJob(n, d, options.device, options.limit, options.seconds, options.inside)
        for n in names
        for d in dtypes
        if DTYPES[d] in known[n].supported_dtypes(options.device)
    ]
    report = ConformanceReport(" ".join(["scripts/conformance", *given]), _device(options.device))
    if options.resume:
        report.records += _resumed(options.json)
    done = {(r.name, r.dtype) for r in report.records}
    jobs = [job for job in jobs if (job.name, job.dtype) not in done]
    total = len(done) + len(jobs)
    for record in records(jobs, options.jobs, run, time.monotonic() + options.until):
        report.records.append(record)
        _tell(record, len(report.records), total)
        if options.json:
            _keep(options.json, report.records)
    if len(report.records) < total:
        print(f"{len(report.records)} of {total} were run, for want of time")
    if options.markdown:
        _write(options.markdown, report.markdown())
    ours = _count(report.records, "ours")
    print(f"{ours} samples ours, {len(report.failures())} failures")
    return 1 if report.failures() or not ours else 0


def _resumed(path: Path) -> list[ConformanceRecord]:
    """The records that a run before this one wrote."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    return [
        ConformanceRecord(**{**r, "failures": tuple(Failure(**f) for f in r["failures"])})
        for r in found
    ]


def _keep(path: Path, records: Sequence[ConformanceRecord]) -> None:
    """Writes the records so that a run that is ended meanwhile leaves the file whole."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps([asdict(r) for r in records], indent=1))
    new.replace(path)


def _tell(record: ConformanceRecord, number: int, total: int) -> None:
    told = ", ".join(f"{n} {s}" for s, n in sorted(record.counts.items())) or "no samples"
    cut = f"; by ATen: {', '.join(sorted(record.opaque))}" if record.opaque else ""
    cut += ", cut off" if record.unseen else ""
    print(
        f"[{number}/{total}] {record.name} {record.dtype}: {told}, {record.kernels} kernels, "
        f"{record.seconds:.1f} s{cut}",
        *(f"    {f.dtype} {f.sample}: {f.message}" for f in record.failures),
        sep="\n",
        flush=True,
    )


def _device(device: str) -> str:
    if device == "cpu":
        return "Triton's interpreter on a CPU"
    return str(torch.cuda.get_device_name(device))


def _write(path: Path, tables: str) -> None:
    """Between the markers, if the file has any; else the whole file."""
    text = path.read_text() if path.exists() else ""
    head, start, rest = text.partition(_START)
    _, end, tail = rest.partition(_END)
    if start and end:
        tables = f"{head}{_START}\n{tables}{_END}{tail}"
    path.write_text(tables)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    add = parser.add_argument
    add("--device", default="cpu", help="cpu (Triton's interpreter) or cuda (default: cpu)")
    add("--ops", help="names, with commas: an operation's, or one with its variant")
    add("--dtypes", default=",".join(DEFAULT), help=f"with commas (default: {','.join(DEFAULT)})")
    add("--limit", type=int, help="samples of an operation in a dtype at most")
    add("--seconds", type=float, default=300.0, help="for one operation and dtype (default: 300)")
    add(
        "--inside",
        action="store_true",
        help="each operation between two others: only what is wholly in kernels of ours counts",
    )
    add("--jobs", type=int, default=1, help="processes")
    add("--until", type=float, default=math.inf, help="begin no operation after so many seconds")
    add(
        "--resume", action="store_true", help="leave out what the file of --json has, and add to it"
    )
    add("--json", type=Path, help="write the records there")
    add("--markdown", type=Path, help="write the tables there, between the markers if it has any")
    return parser


if __name__ == "__main__":
    sys.exit(main())
