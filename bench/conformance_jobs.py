"""The jobs of a conformance run, in processes of their own. Needs no torch, so that a process which
starts without it starts at once."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from queue import SimpleQueue

from ..planner.errors import summary_of


@dataclass(frozen=True, slots=True)
class Failure:
    dtype: str
    sample: int
    message: str


@dataclass(frozen=True, slots=True)
class ConformanceRecord:
    """The results of one operation's samples in one dtype. counts: samples by `SampleStatus`.
    kernels: launches of ours. opaque: operations that ran by ATen, by samples. unseen: not all
    samples ran, for want of time or because the process broke. broken: its process is of no use
    any more."""

    name: str
    dtype: str
    counts: dict[str, int]
    kernels: int
    failures: tuple[Failure, ...]
    seconds: float
    opaque: dict[str, int]
    unseen: bool = False
    broken: bool = False

    @property
    def samples(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class OperationJob:
    """limit: samples at most. seconds: after so many no further sample is begun. inside: see
    `samples.SampledCall`."""

    name: str
    dtype: str
    device: str
    limit: int | None
    seconds: float
    inside: bool = False


def records(
    jobs: Sequence[OperationJob],
    processes: int,
    work: Callable[[OperationJob], ConformanceRecord],
    until: float = math.inf,
) -> Iterator[ConformanceRecord]:
    """What `work` makes of the jobs, in the order in which they are done. A job that raises, or
    that ends its process, is a failure of its operation alone: the next one gets a new process.
    until: no job is begun after this time of the monotonic clock."""
    if processes <= 1 and all(job.device == "cpu" for job in jobs):
        for job in jobs:
            if time.monotonic() < until:
                yield work(job)
        return
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(max(1, processes)):
        idle.put(_worker())

    def done(job: OperationJob) -> ConformanceRecord | None:
        if time.monotonic() > until:
            return None
        worker = idle.get()
        try:
            record = worker.submit(work, job).result()
        except Exception as error:  # noqa: BLE001 - the job's own, or that its process is no more
            failure = Failure(job.dtype, 0, summary_of(error))
            record = ConformanceRecord(
                job.name, job.dtype, {"failed": 1}, 0, (failure,), 0.0, {}, unseen=True, broken=True
            )
        if record.broken:
            worker.shutdown(wait=False)
            worker = _worker()
        idle.put(worker)
        return record

    with ThreadPoolExecutor(max(1, processes)) as threads:
        for each in as_completed([threads.submit(done, job) for job in jobs]):
            record = each.result()
            if record is not None:
                yield record
    while not idle.empty():
        idle.get().shutdown()


def _worker() -> ProcessPoolExecutor:
    """One process; it starts with its first job."""
    # A forked child of a process with CUDA cannot use it.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
