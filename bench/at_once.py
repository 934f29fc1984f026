"""Many cases on a few GPUs at a time, for `--at-once` of `bench.real` and `scripts/bench`.

All are tuned first, so many at once on each GPU: they compile side by side and take turns to time
(`tuner/measure/turns.py`). Then they are measured, as many at once: each process compiles all its
ways and waits until the others of its GPU have, too; after that one at a time compares them, and
nothing else runs on the GPU.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Semaphore

from ..tuner.measure.turns import VARIABLE, turn

READY, GO = "PLANNER_TEST_READY", "PLANNER_TEST_GO"
"""The files by which a process that measures says that it is ready, and is told to begin."""

LOOK_S = 0.05
"""Seconds between two looks for a file."""

THREADS = 8
"""With which Inductor compiles where it chooses among many kernels, as for products."""

LARGE_AT_ONCE = 1
"""Tunes on a GPU, at most, of cases that take much of its memory: two, and seven small ones beside
them, filled an H100 of 80 GB."""

STRAGGLES = 2.0
"""Times the seconds in which half of the processes that measure are ready, after which the others
wait for none that is not,"""

PATIENT_S = 20.0
"""and never below these seconds."""

NO_TIME = "no time was left"
STRAGGLED = "it was not ready when the others of its GPU were measured"

_COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"

Command = Callable[[str, str], Sequence[str]]
"""The command of a step, --tune or --measure, and the name of a case."""

Told = Callable[[str, str, str], bool]
"""Told of each process that has ended: its step, its name, and what is wrong with it, if anything
is. Gives whether the case goes on."""


def visible_gpus(count: int) -> list[str]:
    """Those that the environment names, else the first so many."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return seen.split(",") if seen else [str(gpu) for gpu in range(count)]


@contextmanager
def wait_for_the_others() -> Iterator[None]:
    """In a process that measures, when all its ways are compiled: until it is alone."""
    ready, go = os.environ.get(READY), os.environ.get(GO)
    if not ready or not go:
        yield
        return
    Path(ready).touch()
    while not Path(go).exists():
        time.sleep(LOOK_S)
    with turn("measured"):
        yield


@dataclass(frozen=True, slots=True)
class AtOnce:
    """count: processes at once on each GPU. until: on the monotonic clock, when all have to be
    done. errors_of: the file for what the process of a step and a name prints as errors."""

    gpus: Sequence[str]
    count: int
    until: float
    command: Command
    told: Told
    errors_of: Callable[[str, str], Path]
    threads: Callable[[str], int] = lambda name: 1
    """With which Inductor compiles a case when others do beside it."""
    answers: Callable[[str, str], Path] = lambda step, name: Path(os.devnull)
    """The file for what it prints besides."""
    large: Callable[[str], bool] = lambda name: False
    """Whether a case takes much of a GPU's memory."""
    patient_s: float = PATIENT_S

    def one_by_one(self, names: Sequence[str]) -> None:
        """Each case is tuned and then measured, alone on its GPU; after `until` none begins."""
        self._each(
            names, 1, lambda name, gpu: self._tuned(name, gpu, {}) and self._alone(name, gpu)
        )

    def together(self, names: Sequence[str]) -> None:
        """All are tuned and then measured; a case whose tune failed is not measured."""
        with tempfile.TemporaryDirectory() as folder:
            turns = {VARIABLE: folder}
            tuned = self._each(names, self.count, lambda n, gpu: self._tuned(n, gpu, turns))
        self.measured([name for name in names if tuned.get(name)])

    def measured(self, names: Sequence[str]) -> None:
        """All are measured by the plans that there are."""
        with tempfile.TemporaryDirectory() as folder:

            def measure(gpu: int) -> None:
                own = names[gpu :: len(self.gpus)]
                for first in range(0, len(own), self.count):
                    batch = own[first : first + self.count]
                    self._side_by_side(batch, gpu, Path(folder, str(gpu)))

            with ThreadPoolExecutor(len(self.gpus)) as pool:
                list(pool.map(measure, range(len(self.gpus))))

    def _each(
        self, names: Sequence[str], count: int, work: Callable[[str, str], bool]
    ) -> dict[str, bool]:
        """What the work gives for each name, with so many at once on each GPU."""
        places: Queue[str] = Queue()
        for gpu in [*self.gpus] * count:
            places.put(gpu)

        few = Semaphore(LARGE_AT_ONCE * len(self.gpus))

        def one(name: str) -> tuple[str, bool]:
            with few if self.large(name) else nullcontext():
                gpu = places.get()
                try:
                    return name, time.monotonic() < self.until and work(name, gpu)
                finally:
                    places.put(gpu)

        with ThreadPoolExecutor(max(1, len(names))) as pool:
            return dict(pool.map(one, names))

    def _tuned(self, name: str, gpu: str, more: Mapping[str, str]) -> bool:
        return self._ended("--tune", name, self._begun("--tune", name, gpu, more))

    def _alone(self, name: str, gpu: str) -> bool:
        return self._ended("--measure", name, self._begun("--measure", name, gpu, {}))

    @property
    def _left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def _side_by_side(self, names: Sequence[str], gpu: int, turns: Path) -> None:
        """Side by side until each is ready, then one after the other. Where there is a limit, what
        straggles is not measured."""
        turns.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            go, running = Path(folder, "go"), dict[str, tuple[subprocess.Popen[bytes], Path]]()
            for place, name in enumerate(names):
                ready = Path(folder, str(place))
                more = {VARIABLE: str(turns), READY: str(ready), GO: str(go)}
                running[name] = self._begun("--measure", name, self.gpus[gpu], more), ready
            late = self._late(running)
            why = STRAGGLED if self._left else NO_TIME
            for name in late:
                running[name][0].kill()
            go.touch()
            for name, (process, _) in running.items():
                self._ended("--measure", name, process, why if name in late else "")

    def _late(self, running: Mapping[str, tuple[subprocess.Popen[bytes], Path]]) -> list[str]:
        """Those of the processes that are not ready when it is time to begin."""
        began, half, late = time.monotonic(), math.inf, list(running)
        while late and (now := time.monotonic()) < self.until:
            if len(late) <= len(running) / 2:
                half = min(half, now - began)
            limited = not math.isinf(self.until)
            if limited and now - began > max(self.patient_s, STRAGGLES * half):
                break
            time.sleep(LOOK_S)
            late = [n for n in late if running[n][0].poll() is None and not running[n][1].exists()]
        return late

    def _begun(
        self, step: str, name: str, gpu: str, more: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        usual = {"OMP_NUM_THREADS": "1", _COMPILERS: "1"} if more else {}
        threads = self.threads(name)
        many = {_COMPILERS: str(threads)} if more and threads > 1 else {}
        return subprocess.Popen(
            [*self.command(step, name)],
            env={**usual, **os.environ, **many, "CUDA_VISIBLE_DEVICES": gpu, **more},
            stdout=self.answers(step, name).open("w"),
            stderr=self.errors_of(step, name).open("w"),
        )

    def _ended(self, step: str, name: str, process: subprocess.Popen[bytes], why: str = "") -> bool:
        """Whether it did what it should. why: it was ended for that."""
        left = None if math.isinf(self.until) else max(0.1, self._left)
        try:
            process.wait(left)
            lines = self.errors_of(step, name).read_text().strip().splitlines() or ["no message"]
            wrong = (why or lines[-1][:200]) if process.returncode else ""
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            wrong = NO_TIME
        return self.told(step, name, wrong)
