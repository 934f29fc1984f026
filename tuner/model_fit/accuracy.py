"""The accuracy of the cost model on every kernel that was timed and is in the store.

A trial is stored with the prediction of its day. Here each is predicted again, from its group and
its config, with the model and the profile of today.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...db.records import KernelRecord, TrialRecord
from ...planner.config import Config, Layout
from ...planner.costs.cost import timed
from ...planner.costs.device import DeviceProfile
from ...planner.costs.work import Work, work_of
from ...planner.errors import PlanError, Refusal, Refused
from ...planner.graph.graph import Graph, from_json
from ...planner.graph.ops import Contraction, Reduction, row
from ...planner.lower import schedule_of
from ...planner.nests.group_nests import Schedule
from ...planner.space.space import MOST_SPILLED
from ..records.machine_code import GroupMachineCode
from ..trial.outcome import Candidate

ALL = "all"
FAMILIES = (
    "pointwise",
    "held reduction",
    "looped reduction",
    "split reduction",
    "product",
    "product and reduction",
    "several products",
    "attention",
)
LEAST = 5
"""Trials of a kernel from which its own ranks and the model's choice say something."""
_RECALL = 5


class Ledgers(Protocol):
    """The part of `db.Store` that is read."""

    def trials(
        self,
        *,
        level: Any = ...,
        device_key: str | None = ...,
        outcome: Any = ...,
        limit: int | None = ...,
        newest_first: bool = ...,
    ) -> list[TrialRecord]: ...
    def kernel(self, key: str) -> KernelRecord | None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """A generated kernel (or the few of a split) that was timed. kernel: the key of the group;
    workload: of the graph it is from; works: what each launch does. registers, spill_bytes: the
    compiler's; predicted_registers: of the hungriest launch; learned_registers: what is expected
    with the kernels of the group before it known (see `compiled`). A tune knows fewer: as many are
    being compiled as it has compilers."""

    kernel: str
    workload: str
    family: str
    config: Config
    works: tuple[Work, ...]
    measured_s: float
    registers: int | None
    spill_bytes: int | None
    learned_registers: int = 0

    @property
    def predicted_registers(self) -> int:
        return max(work.registers for work in self.works)


@dataclass(frozen=True, slots=True)
class Read:
    """The samples of a device, and how many trials gave none: their group no longer has a kernel of
    that config, or cannot be read. days: of the first and the last trial; versions: of each name
    all that measured."""

    samples: tuple[Sample, ...]
    unread: int
    days: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def samples_of(
    store: Ledgers, device_key: str, profile: DeviceProfile, limit: int | None = None
) -> Read:
    """Every generated kernel that was timed on the device, or the newest so many. Where a config
    was tried under several versions, the last counts."""
    latest: dict[tuple[str, Config], TrialRecord] = {}
    unread = 0
    newest = store.trials(
        level="kernel", device_key=device_key, outcome="timed", limit=limit, newest_first=True
    )
    for trial in reversed(newest):
        if trial.measured_s is None:
            continue
        try:
            candidate = Candidate.from_json(trial.config)
        except ValueError:
            unread += 1
            continue
        if candidate.config is not None:
            latest[trial.subject, candidate.config] = trial
    reader = _Reader(store, profile)
    found = [reader.sample(*key, trial) for key, trial in latest.items()]
    samples = tuple(s for s in found if s is not None)
    days = sorted(f"{trial.created_at:%Y-%m-%d}" for trial in latest.values())
    versions: dict[str, set[str]] = defaultdict(set)
    for trial in latest.values():
        for name, version in trial.versions.items():
            versions[name].add(version)
    return Read(
        samples,
        unread + len(found) - len(samples),
        tuple(sorted({days[0], days[-1]})) if days else (),
        {name: tuple(sorted(versions[name])) for name in sorted(versions)},
    )


class _Reader:
    """Groups and their schedules, each read once."""

    def __init__(self, store: Ledgers, profile: DeviceProfile) -> None:
        self.store, self.profile = store, profile
        self.groups: dict[str, tuple[Graph, str] | None] = {}
        self.schedules: dict[tuple[str, Layout, bool], Schedule | Refusal] = {}
        self.compiled: dict[str, GroupMachineCode] = defaultdict(GroupMachineCode)

    def sample(self, kernel: str, config: Config, trial: TrialRecord) -> Sample | None:
        if kernel not in self.groups:
            self.groups[kernel] = self._group(kernel)
        known = self.groups[kernel]
        if known is None:
            return None
        group, workload = known
        place = kernel, config.layout, config.anywhere
        if place not in self.schedules:
            self.schedules[place] = schedule_of(group, config)
        schedule = self.schedules[place]
        if isinstance(schedule, Refusal):
            return None
        try:
            works = tuple(work_of(k.nest, config, self.profile) for k in schedule.kernels)
        except Refused:
            return None
        assert trial.measured_s is not None
        estimated, before = max(work.registers for work in works), self.compiled[kernel]
        learned = before.registers(config, estimated)
        if trial.registers is not None:
            before.add(config, estimated, trial.registers, trial.spill_bytes or 0)
        return Sample(
            kernel,
            workload,
            family_of(group, config),
            config,
            works,
            trial.measured_s,
            trial.registers,
            trial.spill_bytes,
            learned,
        )

    def _group(self, kernel: str) -> tuple[Graph, str] | None:
        record = self.store.kernel(kernel)
        try:
            return (
                None if record is None else (from_json(record.payload["graph"]), record.graph_key)
            )
        except (KeyError, ValueError, TypeError, PlanError):
            return None


def family_of(group: Graph, config: Config) -> str:
    """The kind of kernel, one of FAMILIES."""
    kinds = [row(node) for node in group.nodes]
    products = sum(isinstance(kind, Contraction) for kind in kinds)
    reduces = any(isinstance(kind, Reduction) for kind in kinds)
    if products > 1:
        return "attention" if reduces else "several products"
    if products:
        return "product and reduction" if reduces else "product"
    if not reduces:
        return "pointwise"
    if config.split > 1:
        return "split reduction"
    return "held reduction" if config.layout.holds else "looped reduction"


def predicted_s(sample: Sample, profile: DeviceProfile) -> float:
    return sum(timed(work, profile).seconds for work in sample.works)


@dataclass(frozen=True, slots=True)
class FamilyAccuracy:
    """The accuracy of the model in one family. spearman: rank correlation over all its trials;
    within: the mean of those of each group, by trials. regret, mean_regret: median and mean of how
    much slower than the best tried the model's choice is; recall: groups whose best is among the
    five that the model likes best (both of groups with LEAST trials; None without one). mape: mean
    absolute error. registers: kernels within 15% or 8 of the compiler's, by the model alone;
    learned: the same with the kernels of the group before known, one at a time."""

    family: str
    trials: int
    groups: int
    spearman: float | None
    within: float | None
    regret: float | None
    mean_regret: float | None
    recall: float | None
    mape: float
    registers: float | None
    learned: float | None


def accuracy(samples: Sequence[Sample], predicted: Sequence[float]) -> list[FamilyAccuracy]:
    """Of every family with trials, and of all together first. predicted: seconds of each."""
    pairs = list(zip(samples, predicted, strict=True))
    found = [_accuracy(ALL, pairs)] if pairs else []
    for family in FAMILIES:
        some = [pair for pair in pairs if pair[0].family == family]
        found += [_accuracy(family, some)] if some else []
    return found


_Pairs = Sequence[tuple[Sample, float]]


def _accuracy(family: str, pairs: _Pairs) -> FamilyAccuracy:
    groups: dict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample, seconds in pairs:
        groups[sample.kernel].append((sample, seconds))
    many = [group for group in groups.values() if len(group) >= LEAST]
    ranks = [(len(group), r) for group in many if (r := _spearman(group)) is not None]
    regrets = [_regret(group) for group in many]
    within = sum(n * r for n, r in ranks) / sum(n for n, _ in ranks) if ranks else None
    close = [_close(s, s.predicted_registers) for s, _ in pairs if s.registers is not None]
    learned = [_close(s, s.learned_registers) for s, _ in pairs if s.registers is not None]
    return FamilyAccuracy(
        family,
        len(pairs),
        len(groups),
        _spearman(pairs),
        within,
        statistics.median(regrets) if regrets else None,
        statistics.mean(regrets) if regrets else None,
        statistics.mean(_is_recalled(group) for group in many) if many else None,
        statistics.mean(abs(seconds / sample.measured_s - 1) for sample, seconds in pairs),
        statistics.mean(close) if close else None,
        statistics.mean(learned) if learned else None,
    )


def _spearman(pairs: _Pairs) -> float | None:
    return spearman([s.measured_s for s, _ in pairs], [seconds for _, seconds in pairs])


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None under three values or where all are equal."""
    if len(a) < 3 or len({*a}) == 1 or len({*b}) == 1:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _regret(group: _Pairs) -> float:
    chosen = min(group, key=lambda pair: pair[1])[0]
    return chosen.measured_s / min(s.measured_s for s, _ in group) - 1


def _is_recalled(group: _Pairs) -> bool:
    liked = sorted(group, key=lambda pair: pair[1])[:_RECALL]
    return min(s.measured_s for s, _ in liked) <= min(s.measured_s for s, _ in group)


def _close(sample: Sample, predicted: int) -> bool:
    assert sample.registers is not None
    return abs(predicted - sample.registers) <= max(8, 0.15 * sample.registers)


@dataclass(frozen=True, slots=True)
class Hopeless:
    """The counts of configs that never should have been tried. spilled: kernels that spill over 512
    bytes a thread; foreseen: those of them of which the model said so. slow: kernels over twice as
    slow as the best of their group; foreseen_slow: those that the model put over twice its own best
    too."""

    spilled: int
    foreseen: int
    slow: int
    foreseen_slow: int


def hopeless(samples: Sequence[Sample], predicted: Sequence[float]) -> Hopeless:
    """Counted over all kernels that were compiled and timed."""
    spilled = [s for s in samples if (s.spill_bytes or 0) > MOST_SPILLED]
    foreseen = sum(max(work.spill_bytes for work in s.works) > 0 for s in spilled)
    best: dict[str, tuple[float, float]] = {}
    for sample, seconds in zip(samples, predicted, strict=True):
        known = best.get(sample.kernel, (math.inf, math.inf))
        best[sample.kernel] = (min(known[0], sample.measured_s), min(known[1], seconds))
    slow = [
        seconds > 2 * best[s.kernel][1]
        for s, seconds in zip(samples, predicted, strict=True)
        if s.measured_s > 2 * best[s.kernel][0]
    ]
    return Hopeless(len(spilled), foreseen, len(slow), sum(slow))
