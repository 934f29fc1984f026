"""A worker: searches the graphs of open jobs, from the store alone.

It measures what no other tuner has claimed, on its own device, and leaves what it finds in the
store. It compares no finalists and keeps no plan: the tune whose jobs they are does that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from ...db.errors import StoreError
from ...db.jobs import OpenJob
from ...db.store import Store
from ...planner.versions import differences, installed
from ..model_fit.refit import calibrated
from ..progress.progress import Progress
from ..records.findings import Findings
from ..records.jobs import COVERING, Job, covering_of
from ..records.ledger import Ledger
from ..search.graph_search import GraphSearch
from ..search.group_trials import Budget
from ..search.runoff import SharedSearch
from ..search.tuned_groups import Identity, Tasks
from ..trial.outcome import DeviceLost
from ..workers.lab import Lab
from .gpu_claim import held
from .site import WorkerSite

POLL_S, LOOK_S = 0.5, 0.5
"""Seconds between looks for a job, and between looks whether the job at hand is open still."""
LINGER_S = 30.0
"""Seconds without a job after which the device and its processes are let go of."""


@dataclass(slots=True)
class JobClock:
    """A clock for the search of a job, which passes its end as soon as the job is closed."""

    store: Store
    key: str
    until: float
    _looked: float = 0.0
    _over: bool = False

    def __call__(self) -> float:
        now = time.monotonic()
        if not self._over and now - self._looked >= LOOK_S:
            self._looked = now
            self._over = not self.store.jobs.is_open(self.key)
        return max(now, self.until + 1.0) if self._over else now


@dataclass(slots=True)
class FleetWorker:
    """`run` shares the jobs of a store. place: its own among workers, by which their searches
    differ. measured: trials made so far."""

    store: Store
    site: WorkerSite
    progress: Progress
    place: int = field(default_factory=lambda: random.SystemRandom().randrange(1, 1 << 16))
    measured: int = 0
    _seen: set[str] = field(default_factory=set)
    """Jobs that were shared, or left alone."""

    def run(self, idle_s: float | None = None, tune: str | None = None, early: bool = False) -> int:
        """Share jobs until there was none for so many seconds (None: for ever); with a tune its
        jobs alone, until none is open. early: the tune opens its jobs later, when it has captured
        its model; the lab is opened meanwhile. Gives the number of trials that were made. Raises
        StoreError, and DeviceLost where our GPU does nothing any more."""
        idle_since = time.monotonic()
        with ExitStack() as opened:
            lab = self._lab(opened) if early else None
            while True:
                found = self.store.jobs.open(tune)
                if tune is not None and not found and not early:
                    return self.measured
                early = early and not found
                chosen = next(filter(self._is_for_us, found), None)
                if chosen is not None:
                    lab = self._lab(opened) if lab is None else lab
                if chosen is not None and lab is not None:
                    self._seen.add(chosen.job.key)
                    self._share(chosen, lab)
                    idle_since = time.monotonic()
                    continue
                idle = time.monotonic() - idle_since
                if idle_s is not None and idle >= idle_s:
                    return self.measured
                if lab is not None and idle >= LINGER_S and not early:
                    opened.close()
                    lab = None
                time.sleep(POLL_S)

    def _lab(self, opened: ExitStack) -> Lab | None:
        """The lab on our device; None while another process has the device."""
        with ExitStack() as attempt:
            if not attempt.enter_context(held(self.store, self.site.gpu)):
                self._tell(f"another process measures on this {self.site.profile.name}")
                return None
            lab = attempt.enter_context(self.site.lab())
            opened.push(attempt.pop_all())
        return lab

    def _is_for_us(self, found: OpenJob) -> bool:
        """Whether the job is new, of our kind of device, and for what is installed here."""
        job = found.job
        if job.key in self._seen:
            return False
        reason = self.mismatch(job.device_key, job.versions)
        if reason is not None:
            self._seen.add(job.key)
            self._tell(f"{job.name} is left alone: {reason}")
        return reason is None

    def mismatch(self, device_key: str, versions: Mapping[str, str]) -> str | None:
        """Why the results of this worker would not be those of such a job; None where they are.
        torch's settings do not count: processes that measure have its defaults, here as there."""
        if device_key != self.site.profile.key:
            device = self.store.device(device_key)
            name = device.name if device is not None else "of another kind"
            return f"its device is {name}, here it is {self.site.profile.name}"
        here = installed()
        found = differences({n: versions[n] for n in here if n in versions}, here)
        return "; ".join(found) or None

    def _share(self, found: OpenJob, lab: Lab) -> None:
        """Search the job's graph beside the others. What one job has in store for us costs the
        other jobs nothing."""
        self.progress.phase("search", found.job.name)
        try:
            made = self._searched(Job.of(found.job), found, lab)
        except (StoreError, DeviceLost):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's
            self.progress.note(f"{found.job.name} is left alone: {type(error).__name__}: {error}")
            return
        self.progress.note(f"{found.job.name}: {made} trials")

    def _searched(self, job: Job, found: OpenJob, lab: Lab) -> int:
        profile = calibrated(self.store, self.site.profile)
        tasks = Tasks(job.graph, profile, self.site.cover)
        ledger = Ledger(self.store, job.device_key, job.versions, job.graph_key)
        seed = job.limits.seed + self.place
        shared = SharedSearch(lab, ledger, Findings(), self.progress, seed, settles=False)
        clock = JobClock(self.store, job.key, time.monotonic() + found.left_s)
        if tasks.is_large and not self._has_planned(tasks, found, lab, clock):
            return 0
        tasks.begin(tasks.first, lab)
        trials = max(job.limits.trials, job.limits.each * tasks.different)
        identity = Identity(job.graph_key, job.device_key, job.versions)
        try:
            GraphSearch(tasks, shared, identity, Budget(trials, clock.until, clock)).run()
        finally:
            self.measured += len(ledger.written)
        return len(ledger.written)

    def _has_planned(self, tasks: Tasks, found: OpenJob, lab: Lab, clock: JobClock) -> bool:
        """Takes over the covers of a large graph, which are waited for as long as its tune is at no
        other graph; else looks for them here. False: the job was over before."""
        key = found.job.key
        while (said := self.store.jobs.payload(key)) is not None and COVERING not in said:
            others = (j.job for j in self.store.jobs.open(found.job.tune) if j.job.key != key)
            if any(COVERING in job.payload for job in others):
                return tasks.plan(lab, is_over=lambda: clock() >= clock.until)
            time.sleep(POLL_S)
        if said is not None and (covering := covering_of(said)) is not None:
            tasks.take(covering)
        return said is not None

    def _tell(self, text: str) -> None:
        """Each thing once."""
        if text not in self._seen:
            self._seen.add(text)
            self.progress.note(text)


SayLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProgressLines:
    """Progress in lines: of each job that it begins, and of each that ends."""

    say: SayLine

    def phase(self, name: str, text: str) -> None:
        self.say(f"{text}: begun")

    def trial(self, done: object) -> None:
        pass

    def group_done(self, group: str, best: object, seconds: float) -> None:
        pass

    def note(self, text: str) -> None:
        self.say(text)
