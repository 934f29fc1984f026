"""Workloads whose plans are sought side by side on one GPU, for `scripts/bench --at-once`.

`planner tune` runs for each of them, so many at a time, and they take turns to time; then each is
measured in a new process, one at a time (see `at_once`).
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path

from .at_once import NO_TIME, PATIENT_S, THREADS, AtOnce
from .result import Missing, WorkloadReport
from .run import BenchError, Children, Say, SoFar, measured_of
from .workloads import WORKLOADS, Workload

TUNE, MEASURE = "--tune", "--measure"

LARGE = 4 << 30
"""Bytes that eager takes besides its inputs; in float64, as a gate computes, it takes four times as
many."""


@dataclass(slots=True)
class Together:
    """found: what is known so far. tune: whether plans are sought; else they are only loaded. keep:
    takes the report after each process. folder: for what they print. until: on the monotonic clock,
    when all have to be done."""

    found: SoFar
    children: Children
    tune: bool
    say: Say
    keep: Callable[[WorkloadReport], object]
    folder: Path
    until: float
    patient_s: float = PATIENT_S
    _began: dict[tuple[str, str], float] = field(default_factory=dict)
    _tuned_s: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, gpus: Sequence[str], count: int) -> None:
        """So many at once on each GPU. What is not measured is in `found` with the reason."""
        jobs = -(-(os.cpu_count() or 1) // (count * len(gpus)))
        self.children = replace(self.children, jobs=jobs)
        names = [w.name for w in mixed(self.found.workloads)]
        work = AtOnce(
            gpus,
            count,
            self.until,
            self.command,
            self.told,
            self.errors_of,
            self.threads,
            self.into,
            self.is_large,
            self.patient_s,
        )
        work.together(names) if self.tune else work.measured(names)
        for name in names:
            if name not in self.found.measured:
                self.found.failed.setdefault(name, NO_TIME)
        self.keep(self.found.report())

    def command(self, step: str, name: str) -> Sequence[str]:
        self._began[step, name] = time.monotonic()
        self.say(f"{name}: {step[2:]}")
        workload = WORKLOADS[name]
        if step == TUNE:
            return self.children.tune_command(workload)
        return self.children.measure_command(workload)

    def told(self, step: str, name: str, wrong: str) -> bool:
        """Several threads tell of their processes."""
        with self._lock:
            seconds = time.monotonic() - self._began[step, name]
            wrong = wrong or (self._measured(name) if step == MEASURE else "")
            if wrong:
                self.found.failed[name] = f"{step[2:]}: {wrong}"
            elif step == TUNE:
                self._tuned_s[name] = seconds
            self.say(f"{name}: {step[2:]} ended after {seconds:.1f} s{': ' * bool(wrong)}{wrong}")
            self.keep(self.found.report())
        return not wrong

    def _measured(self, name: str) -> str:
        """Take what its process has printed; why there is nothing to take."""
        try:
            one = measured_of(self.into(MEASURE, name).read_text())
        except BenchError as error:
            return str(error)
        if isinstance(one, Missing):
            return one.why
        self.found.measured[name] = replace(one, tune_s=self._tuned_s.get(name))
        return ""

    def errors_of(self, step: str, name: str) -> Path:
        return self.folder / f"{name}.{step[2:]}.txt"

    def into(self, step: str, name: str) -> Path:
        return self.folder / f"{name}.{step[2:]}.json"

    def is_large(self, name: str) -> bool:
        return WORKLOADS[name].eager_extra > LARGE

    def threads(self, name: str) -> int:
        return THREADS if WORKLOADS[name].flops else 1


def run_together(
    found: SoFar,
    children: Children,
    *,
    gpus: Sequence[str],
    count: int,
    tune: bool,
    say: Say,
    keep: Callable[[WorkloadReport], object],
    until: float,
    patient_s: float = PATIENT_S,
) -> None:
    """Fill `found`."""
    with tempfile.TemporaryDirectory() as folder:
        each = Together(found, children, tune, say, keep, Path(folder), until, patient_s)
        each.run(gpus, count)


def mixed(workloads: Sequence[Workload]) -> list[Workload]:
    """Those with matrix products, which take long to compile, among the others; first those that
    take much memory, of which one is tuned at a time."""
    workloads = sorted(workloads, key=lambda w: w.eager_extra <= LARGE)
    long = [w for w in workloads if w.flops]
    short = [w for w in workloads if not w.flops]
    return [w for w in chain.from_iterable(zip_longest(long, short)) if w is not None]
