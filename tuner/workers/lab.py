"""The lab: worker processes that compile and measure candidates, or a fake of it in tests."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Protocol

from ...planner.config import Config
from ...planner.costs.device import DeviceProfile
from ...planner.covers.sections import sections
from ...planner.graph.graph import Graph, kernel_key, to_json, varying_to_json
from ...planner.graph.graph import key as graph_key
from ...planner.graph.ops import is_compute
from ...planner.lowerings.registry import lowering_of
from ...planner.settings import settings
from ..trial import outcome as outcomes
from ..trial.outcome import (
    Candidate,
    Crashed,
    DeviceFull,
    DeviceLost,
    Failure,
    Miscompiled,
    Outcome,
    ProgramResources,
    Timed,
    TimedOut,
    TunerError,
    is_transient,
)
from ..trial.wire import config_to_json
from . import assembler
from .covering import LOOK_S, Planning, SectionedPlanning
from .first_kernels import FirstKernels
from .forks import Forks, WorkerProgram, forking
from .kernels_ahead import SOURCE, Variant
from .pool import (
    COMPILE_LIMIT_S,
    MEASURE_LIMIT_S,
    PLAN_LIMIT_S,
    Answer,
    Pool,
    WorkerRole,
)
from .ranking import Begun, Ranking
from .worker import FOR_COVERS, FOR_REFERENCES

WORKER = f"{__package__}.worker"
COMPILE_IMPORTS = (f"{__package__}.compile_role", *FOR_COVERS)
_TUNER = (__package__ or "").rpartition(".")[0]
MEASURE_IMPORTS = (f"{_TUNER}.measure.measure_role", *FOR_REFERENCES)
"""What the server imports that forks the workers."""

POLITENESS = 5
"""By how much compilers stand back for what measures, and for the quick modes of torch.compile.
Those that tune products stand back as much (see `modes_ahead`): they would leave nothing to plan
and compile kernels with."""

BUDGET_S = 0.03
"""Seconds of runs for one trial."""
PROBES = 2
"""Times that a device is asked for a known sum before it is taken for lost."""
RELEASE_S = 5.0
"""At most so many seconds are spent waiting until the measuring worker lets go of what it keeps."""
DUEL_BUDGET_S = 0.4
FINAL = 1.1
"""Times the seconds of the best, of a candidate that may be compared with it at the end."""
WHOLE = 300
"""Operations up to which a graph's covers are looked for as a whole, too; of a larger one its
sections have better covers in less time."""
OF_SECTION = 2
"""Covers that are looked for of each section."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group by itself: its graph and what crosses to the workers."""

    key: str
    name: str
    graph: Graph
    data: Mapping[str, Any]

    @staticmethod
    def of(graph: Graph, name: str) -> Group:
        return Group(kernel_key(graph), name, graph, to_json(graph, varying_to_json))


@dataclass(frozen=True, slots=True)
class Duel:
    """Finalists timed in turn: an outcome for each, and the winner's index (None: all failed).
    whole: the process or the device failed, which says nothing of any one of them."""

    outcomes: tuple[Outcome, ...]
    best: int | None
    conditions: Mapping[str, int]
    whole: bool = False

    @staticmethod
    def undecided(outcome: Outcome, count: int) -> Duel:
        return Duel((outcome,) * count, None, {}, whole=True)


class Pending(Protocol):
    """A compilation under way, from `Lab.compile`: done at some time, then with a result."""

    def done(self) -> bool: ...
    def result(self) -> ProgramResources | Failure: ...
    def cancel(self) -> object: ...


class Lab(Protocol):
    """compilers: how many compile at a time."""

    @property
    def compilers(self) -> int: ...
    def compile(self, group: Group, config: Config) -> Pending: ...
    def rank(self, group: Group, profile: DeviceProfile) -> Begun | None:
        """The model's order of its configs, begun elsewhere; None: whoever wants it makes it."""

    def plan(self, graph: Graph, profile: DeviceProfile, count: int) -> Planning | None:
        """The model's best covers of a whole graph, likewise, begun when it is first asked for."""

    def wait(self, pending: Sequence[Pending], timeout_s: float | None = None) -> None:
        """Until one of them is done, or the time is over."""

    def measure(
        self,
        group: Group,
        candidate: Candidate,
        incumbent_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Outcome:
        """Check and time a candidate; `meanwhile` runs here while the device is busy. Raises
        DeviceLost, as `duel`, where the device does nothing any more."""

    def duel(self, group: Group, candidates: Sequence[Candidate]) -> Duel: ...

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        """Have kernels compiled that this process will load: see `KernelCompilers`."""

    def release(self) -> None:
        """Let go of what it keeps on the device, for something is timed in this process."""


class _Compiling:
    def __init__(self, future: Future[Answer]) -> None:
        self.future = future

    def done(self) -> bool:
        return self.future.done()

    def cancel(self) -> bool:
        return self.future.cancel()

    def result(self) -> ProgramResources | Failure:
        answer = self.future.result()
        if isinstance(answer, TimedOut):
            return replace(answer, reason=f"compiling: {answer.reason}")
        if isinstance(answer, Crashed):
            # The compiler died: no device was near.
            return Miscompiled(f"compiling: {answer.reason}", answer.transient)
        try:
            if "outcome" in answer:
                return _failed(outcomes.from_json(answer))
            return ProgramResources(
                int(answer["registers"]),
                int(answer["spill_bytes"]),
                int(answer["shared_bytes"]),
                float(answer["compile_s"]),
            )
        except (TunerError, KeyError, TypeError, ValueError) as error:
            return Miscompiled(f"compiling: {_unreadable(error)}")


class _Ranking:
    """What does not come in time, or with the worker, is made by whoever asks."""

    def __init__(self, future: Future[Answer], is_over: Callable[[], bool]) -> None:
        self.future, self.is_over = future, is_over

    def result(self) -> Ranking | None:
        answer = _awaited(self.future, self.is_over)
        if isinstance(answer, (TimedOut, Crashed)):
            return None
        try:
            return Ranking.from_json(answer)
        except ValueError:
            return None


def usual_compilers() -> int:
    """The default number of processes that compile."""
    return max(1, min(12, len(os.sched_getaffinity(0)) - 3))


_FULL = "out of memory"
"""In the error of a process for which the device has no room."""


class WorkerLab:
    """Compile workers and one measuring worker. `device`: "cuda:0", or "cpu" with `interpret`."""

    def __init__(
        self,
        device: str,
        capability: int,
        *,
        compilers: int | None = None,
        interpret: bool = False,
        seed: int = 0,
        least: int = 10,
        compile_limit_s: float = COMPILE_LIMIT_S,
        measure_limit_s: float = MEASURE_LIMIT_S,
        is_over: Callable[[], bool] = lambda: False,
        forks: Forks | None = None,
    ) -> None:
        """is_over: whether nobody waits for what is not done yet. forks: starts the processes."""
        self._device, self._capability, self._is_over = device, capability, is_over
        self._interpret = interpret
        self._compilers = compilers or usual_compilers()
        # What is measured runs as the user's model does.
        given = {"device": device, "seed": seed, "least": least, "settings": json.dumps(settings())}
        options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        compile_ = WorkerProgram(WORKER, ["compile"], COMPILE_IMPORTS, politeness=POLITENESS)
        measure = WorkerProgram(WORKER, ["measure", *options], MEASURE_IMPORTS, rank=1)
        # A worker that is started again while the baselines are compiled has the ptxas of now.
        own = {assembler.SETTING: assembler.chosen()}
        roles = {
            # No device is visible to a compiler: it needs none, and a context costs a second.
            "compile": WorkerRole(
                compile_.command,
                self._compilers,
                compile_limit_s,
                {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": None, **own},
                POLITENESS,
                forking(forks, compile_),
            ),
            "measure": WorkerRole(
                measure.command,
                1,
                measure_limit_s,
                {"TRITON_INTERPRET": "1" if interpret else None, **own},
                fork=forking(forks, measure),
            ),
        }
        self.pool = Pool(roles)
        self._first = FirstKernels(self.pool, capability)
        self._asked = False
        """Whether the measuring worker was asked for anything."""
        self._suspects: set[tuple[str, Candidate]] = set()
        """What failed for a cause that may lie outside of it: alone in a process next time."""
        self._planned: dict[tuple[str, int], Planning] = {}
        """By graph and count."""

    @property
    def compilers(self) -> int:
        return self._compilers

    def compile(self, group: Group, config: Config) -> Pending:
        begun = self._first.compile(group.key, config)
        if begun is None:
            request = {
                "group": group.data,
                "config": config_to_json(config),
                "capability": self._capability,
            }
            begun = self.pool.submit("compile", request)
        return _Compiling(begun)

    def rank(self, group: Group, profile: DeviceProfile) -> Begun:
        ranked = self._first.rank(group.key, group.data, profile.to_json())
        return _Ranking(ranked, self._is_over)

    def plan(self, graph: Graph, profile: DeviceProfile, count: int) -> Planning:
        known = graph_key(graph), count
        if known not in self._planned:
            self._planned[known] = self._planning(graph, profile, count)
        return self._planned[known]

    def _planning(self, graph: Graph, profile: DeviceProfile, count: int) -> Planning:
        on, over = profile.to_json(), Event()

        def begin(of: Graph, count: int) -> Future[Answer]:
            request = {"cover": to_json(of, varying_to_json), "profile": on, "count": count}
            begun = self.pool.submit("compile", request, PLAN_LIMIT_S, urgent=True, given_up=over)
            self._first.follow(begun, on)
            return begun

        parts = sections(graph)
        small = sum(map(is_compute, graph.nodes)) <= WHOLE
        whole = begin(graph, count) if small or not parts else None
        # The most frequent first: where the time ends, most of the graph is planned.
        kinds = Counter(part.key for part in parts)
        by_key = {part.key: part.graph for part in parts}
        begun = {key: begin(by_key[key], OF_SECTION) for key, _ in kinds.most_common()}
        return SectionedPlanning(graph, parts, begun, whole, over)

    def wait(self, pending: Sequence[Pending], timeout_s: float | None = None) -> None:
        futures = [p.future for p in pending if isinstance(p, _Compiling)]
        wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)

    def measure(
        self,
        group: Group,
        candidate: Candidate,
        incumbent_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Outcome:
        request = {
            "do": "measure",
            "group": group.data,
            "candidate": candidate.to_json(),
            "budget_s": BUDGET_S,
            "incumbent_s": incumbent_s,
        }
        about = (group.key, candidate)
        future = self._send(request, candidate, alone=about in self._suspects)
        if meanwhile is not None:
            meanwhile()
        outcome = _outcome(_awaited(future, self._is_over))
        self._require_device(outcome)
        if is_transient(outcome):
            self._suspects.add(about)
        if isinstance(outcome, Timed) and candidate.config is not None:
            known_s = outcome.seconds if incumbent_s is None else incumbent_s
            if outcome.seconds <= FINAL * known_s:
                self._compile_for_any_address(group, candidate.config)
        return outcome

    def _compile_for_any_address(self, group: Group, config: Config) -> None:
        """Have the variant compiled that a comparison of finalists needs, and the check of a whole
        plan: there it would be waited for. It comes before configs that may be no better."""
        request = {
            "group": group.data,
            "config": config_to_json(config),
            "capability": self._capability,
            "aligned": False,
        }
        self.pool.submit("compile", request, urgent=True)

    def duel(self, group: Group, candidates: Sequence[Candidate]) -> Duel:
        request = {
            "do": "duel",
            "group": group.data,
            "candidates": [c.to_json() for c in candidates],
            "budget_s": DUEL_BUDGET_S,
        }
        answer = _awaited(self._send(request, *candidates), self._is_over)
        try:
            duel = _duel(answer, len(candidates))
        except (TunerError, KeyError, TypeError, ValueError) as error:
            duel = Duel.undecided(Crashed(_unreadable(error)), len(candidates))
        for outcome in duel.outcomes:
            self._require_device(outcome)
        return duel

    def _require_device(self, outcome: Outcome) -> None:
        """Raises DeviceLost where a crash is the device's, which a new process cannot use either:
        it would be taken for that of each candidate to come."""
        if not isinstance(outcome, Crashed) or self._is_over():
            return
        for _ in range(PROBES):
            future = self.pool.submit("measure", {"do": "probe"}, alone=True, urgent=True)
            answer = _awaited(future, self._is_over)
            if isinstance(answer, TimedOut) and self._is_over():
                return
            why = answer.reason if isinstance(answer, Outcome) else answer.get("lost")
            if why is None:
                return
        kind = DeviceFull if _FULL in str(why) else DeviceLost
        raise kind(self._device, str(why))

    def check(self, group: Group, candidate: Candidate) -> Failure | str:
        """Run a candidate over all data sets without timing it: why it fails, or what was
        checked, in words."""
        request = {"do": "check", "group": group.data, "candidate": candidate.to_json()}
        answer = self._send(request, candidate).result()
        if isinstance(answer, dict) and "checked" in answer:
            return str(answer["checked"])
        return _failed(_outcome(answer))

    def compile_ahead(
        self,
        kernels: Sequence[Variant],
        meanwhile: Callable[[], None] | None = None,
        limit_s: float = math.inf,
    ) -> list[Variant]:
        until = time.monotonic() + limit_s
        begun = [
            self.pool.submit(
                "compile",
                {
                    "kernel": SOURCE.dump_python(source, mode="json"),
                    "aligned": aligned,
                    "capability": self._capability,
                },
                urgent=True,
            )
            for source, aligned in kernels
        ]
        if meanwhile is not None:
            meanwhile()
        # One after the other in this process they would take longer.
        left_s = None if math.isinf(limit_s) else max(0.0, until - time.monotonic())
        late = wait(begun, timeout=left_s).not_done
        for future in late:
            future.cancel()
        # One that took a worker too long, or ended it, would take this process as long.
        late |= {of for of in begun if of not in late and isinstance(of.result(), _UNANSWERED)}
        return [kernel for kernel, of in zip(kernels, begun, strict=True) if of in late]

    def release(self) -> None:
        """Have the measuring worker let go of the device's memory. One that is still at a request,
        as after Ctrl-C, is not waited for. Compilations that nobody has asked for end too."""
        self._first.cancel()
        if self._asked:
            wait([self.pool.submit("measure", {"do": "release"})], timeout=RELEASE_S)

    def close(self) -> None:
        self.pool.close()

    def _send(
        self, request: Mapping[str, Any], *candidates: Candidate, alone: bool = False
    ) -> Future[Answer]:
        slow = any(lowering_of(c).slow for c in candidates)
        limit = 180.0 if slow else None
        self._asked = True
        return self.pool.submit("measure", request, limit, alone=alone)

    def __enter__(self) -> WorkerLab:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_UNANSWERED = (TimedOut, Crashed)


def _awaited(future: Future[Answer], is_over: Callable[[], bool]) -> Answer:
    """The answer; where the time is over before it comes, that."""
    while not wait([future], timeout=LOOK_S).done:
        if is_over():
            future.cancel()
            return TimedOut("the time of the tune was over", transient=True)
    return future.result()


def _outcome(answer: Answer) -> Outcome:
    """What an answer says of the candidate; one that cannot be read costs this candidate alone."""
    if isinstance(answer, Outcome):
        return answer
    try:
        return outcomes.from_json(answer)
    except TunerError as error:
        return Crashed(_unreadable(error))


def _duel(answer: Answer, count: int) -> Duel:
    """Raises what an answer raises that is none."""
    if isinstance(answer, Outcome):
        return Duel.undecided(answer, count)
    if "outcomes" not in answer:
        return Duel.undecided(outcomes.from_json(answer), count)
    found, best = tuple(outcomes.from_json(o) for o in answer["outcomes"]), answer["best"]
    winners = [None, *(i for i, outcome in enumerate(found) if isinstance(outcome, Timed))]
    if len(found) != count or best not in winners:
        raise ValueError(f"{len(found)} outcomes of {count}, the best of which is {best}")
    return Duel(found, best, dict(answer["conditions"]))


def _unreadable(error: Exception) -> str:
    said = str(error) if isinstance(error, TunerError) else repr(error)
    return f"the worker's answer cannot be read: {said}"


def _failed(outcome: Outcome) -> Failure:
    if isinstance(outcome, Timed):
        return Crashed(_unreadable(TunerError("it is a time where none was asked for")))
    return outcome
