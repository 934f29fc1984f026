"""A report as Markdown, and where it goes in a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ..planner.errors import FusionplanError
from .result import (
    EAGER,
    OURS,
    REWRITTEN,
    CountedTraffic,
    HostCosts,
    MeasuredWorkload,
    Missing,
    Predicted,
    Requirement,
    WorkloadReport,
)

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"

BASELINES = (EAGER, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def markdown(report: WorkloadReport) -> str:
    """Where and when, the tables, what failed."""
    parts = [_where(report)]
    if report.workloads:
        parts += [_times(report), _plans(report)]
    if any(isinstance(m.traffic, CountedTraffic) for m in report.workloads):
        parts.append(_bytes(report))
    if report.host:
        parts.append(_host(report.host))
    notes = [f"- {m.name}: {note}" for m in report.workloads for note in _notes(m)]
    if notes:
        parts.append("\n".join(notes))
    if report.failed:
        parts.append("\n".join(f"- {name} failed: {why}" for name, why in report.failed.items()))
    return "\n\n".join(parts) + "\n"


def write(path: Path, text: str) -> None:
    """Between the two markers of the file, or as a new file. Raises FusionplanError for a file
    without the markers."""
    if not path.exists():
        path.write_text(f"{BEGIN}\n{text}{END}\n", encoding="utf-8")
        return
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FusionplanError(f"{path} has no lines {BEGIN} and {END} to write between")
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers, at least one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _where(report: WorkloadReport) -> str:
    machine = report.machine
    lines = [f"{report.date}, commit {report.commit}"]
    if machine is not None:
        lines[0] += f", {machine.device}"
        driver = f", driver {machine.driver}" if machine.driver else ""
        lines.append(
            f"torch {machine.torch}, triton {machine.triton}, Python {machine.python}{driver}"
        )
    return "  \n".join([*lines, f"`{report.command}`"])


def _times(report: WorkloadReport) -> str:
    """Columns that no workload has anything for are left out."""
    rewritten = any(REWRITTEN in m.times for m in report.workloads)
    reach = any(_asked(report, m).reach_s is not None for m in report.workloads)
    others = [*BASELINES, *([REWRITTEN] if rewritten else [])]
    titles = [f"{n} (rewritten by hand)" if n == REWRITTEN else n for n in others]
    head = ["workload", *titles, *(["reach"] if reach else []), OURS]
    head += ["± halves", f"best baseline / {OURS}", f"{OURS} / floor"]
    rows = []
    for m in report.workloads:
        baselines = [_us(m.times[p].seconds) if p in m.times else "-" for p in others]
        wanted = _asked(report, m).reach_s
        baselines += ["-" if wanted is None else _us(wanted)] if reach else []
        ours = m.times[OURS]
        share = f"{ours.seconds / report.floors_s[m.name]:.2f}"
        speed = f"{1 / m.best.median:.3f} ({1 / m.best.high:.3f}-{1 / m.best.low:.3f})"
        rows.append(
            [m.name, *baselines, f"**{_us(ours.seconds)}**", f"{ours.spread:.1%}", speed, share]
        )
    speeds = geometric_mean([1 / m.best.median for m in report.workloads])
    floors = geometric_mean(
        [m.times[OURS].seconds / report.floors_s[m.name] for m in report.workloads]
    )
    blank = [""] * (len(head) - 3)
    rows.append(["geometric mean", *blank, f"**{speeds:.3f}**", f"**{floors:.2f}**"])
    return "Microseconds of a call.\n\n" + _table(head, rows)


def _plans(report: WorkloadReport) -> str:
    head = ["workload", "kernels", "plan", "error / eager's", "memory MiB (eager)", "tuning s"]
    return _table(head, [_plan_row(m, _asked(report, m)) for m in report.workloads])


def _plan_row(m: MeasuredWorkload, asked: Requirement) -> list[str]:
    accuracy = f"{m.accuracy.ratio:.2f}" + (" **wrong**" if m.accuracy.problem else "")
    memory = [_mib(m.extra_bytes.get(name, 0)) for name in (OURS, EAGER)]
    if asked.peak_extra is not None:
        memory[0] += f" of {_mib(asked.peak_extra)}"
    tuning = "-" if m.tune_s is None else f"{m.tune_s:.0f}"
    plan = m.plan + (", CUDA graph" if m.cudagraph else "")
    return [m.name, str(m.kernels), plan, accuracy, f"{memory[0]} ({memory[1]})", tuning]


def _bytes(report: WorkloadReport) -> str:
    """ncu's counts beside the model's."""
    head = [
        "workload",
        "HBM read",
        "HBM written",
        "model",
        "counted / model",
        "L2",
        "kernels",
        "us",
    ]
    counted = [
        (m.name, m.traffic) for m in report.workloads if isinstance(m.traffic, CountedTraffic)
    ]
    rows = [[name, *_byte_row(traffic)] for name, traffic in counted]
    return "MiB of a call, by ncu and by the cost model.\n\n" + _table(head, rows)


def _byte_row(traffic: CountedTraffic) -> list[str]:
    expected, share = _expected(traffic.predicted), "-"
    if traffic.predicted.hbm_bytes:
        share = f"{traffic.hbm_bytes / traffic.predicted.hbm_bytes:.2f}"
    moved = [_mib(traffic.read_bytes), _mib(traffic.written_bytes)]
    ran = [str(traffic.kernels), _us(traffic.seconds)]
    return [*moved, expected, share, _mib(traffic.l2_bytes), *ran]


def _expected(predicted: Predicted) -> str:
    if predicted.hbm_bytes is None:
        return "-"
    return ("" if predicted.whole else "at least ") + _mib(predicted.hbm_bytes)


def _notes(m: MeasuredWorkload) -> list[str]:
    found = list(m.notes)
    if isinstance(m.traffic, Missing):
        found.append(f"bytes not counted: {m.traffic.why}")
    return found


def _asked(report: WorkloadReport, m: MeasuredWorkload) -> Requirement:
    return report.asked.get(m.name, Requirement())


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def _host(host: HostCosts) -> str:
    names = list(dict.fromkeys(name for cost in host.costs for name in cost.microseconds))
    head = ["call of one kernel", *(f"{cost.elements} elements" for cost in host.costs)]
    rows = [
        [n, *(f"{c.microseconds[n]:.2f}" if n in c.microseconds else "-" for c in host.costs)]
        for n in names
    ]
    return "Microseconds of the host for a call.\n\n" + _table(head, rows)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
