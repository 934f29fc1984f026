"""The whole run: one new process for each workload, `planner tune` where a plan is missing."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from pydantic import ValidationError

from ..planner.errors import FusionplanError
from . import ncu
from .at_once import NO_TIME
from .result import (
    CHILD,
    HOST,
    CountedTraffic,
    HostCosts,
    MeasuredWorkload,
    Missing,
    Requirement,
    WorkloadReport,
)
from .workloads import ROOT, Workload

Say = Callable[[str], None]


class BenchError(FusionplanError):
    """A process of the benchmark failed; the text has its last line."""


class Processes(Protocol):
    """Runs parts of a benchmark in processes of their own. Raises BenchError when one fails."""

    def measure(self, workload: Workload) -> MeasuredWorkload | Missing: ...

    def tune(self, workload: Workload) -> float:
        """Seconds on the wall, from the start of the process to its end."""

    def watch(self, workload: Workload) -> CountedTraffic | Missing:
        """The bytes of one call, by ncu. Raises FusionplanError when they cannot be had."""

    def host(self) -> HostCosts: ...


@dataclass(frozen=True, slots=True)
class Children:
    """store: None is the default one. device: as torch names it. budget_s: seconds of a half of
    measuring. tune_s, jobs: the limit, and the number of compiling processes, given to `planner
    tune`; None is its own. modes: of torch.compile; None is all. rounds: of each half at least."""

    store: str | None
    device: str
    budget_s: float
    tune_s: float | None = None
    modes: Sequence[str] | None = None
    rounds: int | None = None
    jobs: int | None = None

    def measure(self, workload: Workload) -> MeasuredWorkload | Missing:
        return measured_of(_answer(self.measure_command(workload)))

    def tune(self, workload: Workload) -> float:
        start = time.monotonic()
        _answer(self.tune_command(workload))
        return time.monotonic() - start

    def measure_command(self, workload: Workload) -> list[str]:
        """Prints what `measured_of` reads."""
        options = ["--budget", str(self.budget_s), *self._stored]
        options += [] if self.modes is None else ["--modes", *self.modes]
        options += [] if self.rounds is None else ["--rounds", str(self.rounds)]
        return [*self._bench, "--measure", workload.name, *options]

    def tune_command(self, workload: Workload) -> list[str]:
        command = [sys.executable, "-P", "-m", "fusionplan.cli.main", "tune", *workload.arguments]
        limit = [] if self.tune_s is None else ["--seconds", str(self.tune_s)]
        limit += [] if self.jobs is None else ["--jobs", str(self.jobs)]
        return [*command, "--quiet", "--device", self.device, *limit, *self._stored]

    def watch(self, workload: Workload) -> CountedTraffic | Missing:
        return ncu.watch([*self._bench, "--watch", workload.name, *self._stored])

    def host(self) -> HostCosts:
        answer = _answer([*self._bench, "--measure", "host"])
        try:
            return HOST.validate_json(answer)
        except ValidationError as error:
            raise BenchError(f"its process gave no result: {answer[-200:]!r}") from error

    @property
    def _bench(self) -> list[str]:
        return [sys.executable, "-P", "-m", "fusionplan.bench", "--device", self.device]

    @property
    def _stored(self) -> list[str]:
        return [] if self.store is None else ["--store", self.store]


@dataclass(slots=True)
class SoFar:
    """Results of a run under way. arguments: of its command line."""

    workloads: Sequence[Workload]
    arguments: Sequence[str]
    measured: dict[str, MeasuredWorkload] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    host: HostCosts | None = None

    def report(self) -> WorkloadReport:
        """The workloads in the order in which they were asked for."""
        names = [w.name for w in self.workloads]
        done = tuple(self.measured[name] for name in names if name in self.measured)
        asked = {w.name: Requirement(w.reach, w.peak_extra) for w in self.workloads}
        return WorkloadReport(
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit(),
            shlex.join(["scripts/bench", *self.arguments]),
            done,
            dict(self.failed),
            {m.name: m.floor_s for m in done if m.floor_s is not None},
            self.host,
            {name: each for name, each in asked.items() if each != Requirement()},
        )


def run(
    found: SoFar,
    processes: Processes,
    *,
    tune: bool,
    say: Say,
    count: bool = False,
    keep: Callable[[WorkloadReport], object] = lambda report: None,
    until: float = math.inf,
) -> None:
    """Measure them all, one after the other; count: their bytes too. A workload that fails is in
    `found` with the reason. keep: takes the report so far after each, for a run that may be ended.
    until: on the monotonic clock, after which nothing is begun."""
    for workload in found.workloads:
        try:
            if time.monotonic() >= until:
                raise BenchError(NO_TIME)
            one = _measured(workload, processes, tune, say)
        except BenchError as error:
            found.failed[workload.name] = str(error)
            say(f"{workload.name}: {error}")
        else:
            one = _counted(one, workload, processes, say) if count else one
            found.measured[workload.name] = one
        keep(found.report())


def add_host(found: SoFar, processes: Processes, say: Say, until: float) -> None:
    """The host cost of a call, or why it is not known."""
    say("host: what a call costs")
    try:
        if time.monotonic() >= until:
            raise BenchError(NO_TIME)
        found.host = processes.host()
    except BenchError as error:
        found.failed["host"] = str(error)
        say(f"host: {error}")


def _measured(workload: Workload, processes: Processes, tune: bool, say: Say) -> MeasuredWorkload:
    say(f"{workload.name}: measuring")
    found = processes.measure(workload)
    tuning_s = None
    if isinstance(found, Missing):
        if not tune:
            raise BenchError(f"{found.why}; --tune makes one")
        say(f"{workload.name}: no plan; tuning")
        tuning_s = processes.tune(workload)
        say(f"{workload.name}: tuned in {tuning_s:.1f} s; measuring")
        found = processes.measure(workload)
    if isinstance(found, Missing):
        raise BenchError(f"tuned, but {found.why}")
    return replace(found, tune_s=tuning_s)


def _counted(
    found: MeasuredWorkload, workload: Workload, processes: Processes, say: Say
) -> MeasuredWorkload:
    """With the bytes of a call, or why they could not be counted: the times stay good."""
    say(f"{workload.name}: counting bytes")
    try:
        traffic = processes.watch(workload)
    except FusionplanError as error:
        traffic = Missing(str(error))
    if isinstance(traffic, Missing):
        say(f"{workload.name}: bytes not counted: {traffic.why}")
    return replace(found, traffic=traffic)


def joined(earlier: WorkloadReport, later: WorkloadReport) -> WorkloadReport:
    """The later report with what only the earlier one has. Raises BenchError when they are of
    different machines."""
    if earlier.machine and later.machine and earlier.machine != later.machine:
        raise BenchError(f"an included report is of {earlier.machine}, not of {later.machine}")
    new = {m.name for m in later.workloads} | set(later.failed)
    kept = tuple(m for m in earlier.workloads if m.name not in new)
    return replace(
        later,
        workloads=(*kept, *later.workloads),
        failed={n: why for n, why in earlier.failed.items() if n not in new} | later.failed,
        floors_s=earlier.floors_s | later.floors_s,
        asked=earlier.asked | later.asked,
        host=later.host or earlier.host,
    )


def commit() -> str:
    """The checkout's commit, "-dirty" with changes; "unknown" without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def measured_of(answer: str) -> MeasuredWorkload | Missing:
    """What a process that measures has printed. Raises BenchError for anything else."""
    try:
        return CHILD.validate_json(answer)
    except ValidationError as error:
        raise BenchError(f"its process gave no result: {answer[-200:]!r}") from error


def _answer(command: Sequence[str]) -> str:
    """What the process prints; its stderr is ours. Raises BenchError when it fails."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env, check=False
    )
    if done.returncode:
        raise BenchError(f"exit code {done.returncode} of {shlex.join(command[1:])}")
    return done.stdout
