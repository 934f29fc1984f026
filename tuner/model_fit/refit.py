"""A device's profile fitted to its own trials: a few factors on its rates, used where they help.

Robust least squares on the logarithm of the seconds, by Gauss and Newton with numerical slopes.
Each factor is drawn towards 1, so that one on which the trials say nothing stays as it is. What
the fit is worth is asked of trials it has not seen: those of whole workloads, left out in turn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from ...db.records import CalibrationRecord
from ...planner.costs.device import DeviceProfile
from .accuracy import Ledgers, Sample, accuracy, predicted_s, samples_of

Apply = Callable[[DeviceProfile, float], DeviceProfile]
Vector = np.ndarray[Any, np.dtype[np.float64]]

ENOUGH = 60
"""Trials from which a profile is fitted, and new ones from which it is fitted again."""
LATEST, FITTED = 2000, 500
"""Of the trials, a tune reads at most the newest 2000, and fits to at most 500 of them, evenly
spread: where the device has many trials, all of them would take longer than the tune."""
GROWTH = 0.1
"""By how much, too, the trials have to grow before the profile is fitted again."""
_WORKLOADS = 2
"""Fewer workloads are not fitted: one is always left out."""
_ROUNDS = 8
_HUBER = 0.3  # Errors of the logarithm beyond weigh less.
_PRIOR = 0.5  # The logarithm of a factor weighs as much as this many groups of trials.
_STEP = 0.02
_WIDEST = math.log(4.0)  # No factor is more: it would stand for something else.
_GAIN = 0.98
"""The error of unseen trials has to fall below this part of what it was."""
_FOLDS = 6


def _scaled(name: str) -> Apply:
    return lambda profile, factor: replace(profile, **{name: getattr(profile, name) * factor})


def _memory(profile: DeviceProfile, factor: float) -> DeviceProfile:
    """Beyond the launch the curve is scaled."""
    least = profile.launch_s
    curve = tuple((size, least + (s - least) / factor) for size, s in profile.copy_s)
    return replace(profile, copy_s=curve)


def _launch(profile: DeviceProfile, factor: float) -> DeviceProfile:
    """The curve holds a launch as well."""
    more = profile.launch_s * (factor - 1)
    curve = tuple((size, s + more) for size, s in profile.copy_s)
    return replace(profile, launch_s=profile.launch_s * factor, copy_s=curve)


COEFFICIENTS: Mapping[str, Apply] = {
    "bandwidth": _memory,
    "l2_bandwidth": _scaled("l2_bandwidth"),
    "launch_s": _launch,
    "latency_s": _scaled("latency_s"),
    "fma_rate": _scaled("fma_rate"),
    "sfu_rate": _scaled("sfu_rate"),
    "div_rate": _scaled("div_rate"),
    "libdevice_rate": _scaled("libdevice_rate"),
    "generated": _scaled("generated"),
}
"""What is fitted, each by one factor."""


def with_factors(profile: DeviceProfile, factors: Mapping[str, float]) -> DeviceProfile:
    for name, factor in factors.items():
        profile = COEFFICIENTS[name](profile, factor)
    return profile


@dataclass(frozen=True, slots=True)
class Refit:
    """factors: on the rates of the profile it began with. before_s, unseen_s: seconds expected of
    each sample by that profile, and by fits that left its workload out. is_better: whether those
    err less; else the profile is better left as it was."""

    profile: DeviceProfile
    factors: Mapping[str, float]
    before_s: tuple[float, ...]
    unseen_s: tuple[float, ...]
    is_better: bool

    def evidence(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The record that the store keeps beside the profile."""
        before, after = (accuracy(samples, s)[0] for s in (self.before_s, self.unseen_s))
        return {
            "trials": len(samples),
            "groups": before.groups,
            "factors": {name: round(f, 4) for name, f in self.factors.items()},
            "mape": [round(before.mape, 4), round(after.mape, 4)],
            "spearman": [before.spearman, after.spearman],
            "regret": [before.mean_regret, after.mean_regret],
        }


def refit(samples: Sequence[Sample], profile: DeviceProfile) -> Refit | None:
    """The profile fitted to the samples; None where they are too few to fit and to judge it."""
    folds = _folds(samples)
    if len(samples) < ENOUGH or len(folds) < _WORKLOADS:
        return None
    before = tuple(predicted_s(s, profile) for s in samples)
    unseen = list(before)
    for fold in folds:
        rest = [s for i, s in enumerate(samples) if i not in fold]
        fitted = with_factors(profile, fit(rest, profile))
        for i in fold:
            unseen[i] = predicted_s(samples[i], fitted)
    factors = fit(samples, profile)
    better = _error(samples, unseen) < _GAIN * _error(samples, before)
    ranked = [accuracy(samples, each)[0].within for each in (before, unseen)]
    if ranked[0] is not None and ranked[1] is not None:
        better = better and ranked[1] >= ranked[0] - 0.01
    return Refit(with_factors(profile, factors), factors, before, tuple(unseen), better)


def fit(samples: Sequence[Sample], profile: DeviceProfile) -> dict[str, float]:
    """The factors that bring the profile nearest to the samples."""
    names = list(COEFFICIENTS)
    measured = np.log([s.measured_s for s in samples])
    weights = _weights(samples)

    def errors(at: Vector) -> Vector:
        made = with_factors(profile, dict(zip(names, np.exp(at), strict=True)))
        return np.log([predicted_s(s, made) for s in samples]) - measured

    at = np.zeros(len(names))
    for _ in range(_ROUNDS):
        error = errors(at)
        slopes = np.stack(
            [(errors(at + _STEP * unit) - error) / _STEP for unit in np.eye(len(names))], axis=1
        )
        scale = weights / np.sqrt(np.maximum(1.0, np.abs(error) / _HUBER))
        left = np.vstack([slopes * scale[:, None], math.sqrt(_PRIOR) * np.eye(len(names))])
        right = np.concatenate([-error * scale, -math.sqrt(_PRIOR) * at])
        step = np.linalg.lstsq(left, right, rcond=None)[0]
        at = np.clip(at + 0.7 * step, -_WIDEST, _WIDEST)
        if float(np.abs(step).max()) < 0.005:
            break
    return dict(zip(names, (float(f) for f in np.exp(at)), strict=True))


def _weights(samples: Sequence[Sample]) -> Vector:
    """Together the trials of a group weigh as the root of their number: none drowns the others."""
    counts = Counter(s.kernel for s in samples)
    return np.array([counts[s.kernel] ** -0.25 for s in samples])


def _error(samples: Sequence[Sample], predicted: Sequence[float]) -> float:
    """Mean absolute error of the logarithm."""
    weights = _weights(samples) ** 2
    errors = [abs(math.log(p / s.measured_s)) for s, p in zip(samples, predicted, strict=True)]
    return float(np.average(errors, weights=weights))


def _folds(samples: Sequence[Sample]) -> list[set[int]]:
    """The samples of whole workloads, shared out so that the folds are of like size."""
    counts = Counter(s.workload for s in samples)
    folds: list[set[int]] = [set() for _ in range(min(_FOLDS, len(counts)))]
    for workload, _ in counts.most_common():
        smallest = min(folds, key=len)
        smallest |= {i for i, s in enumerate(samples) if s.workload == workload}
    return folds


class Calibrations(Ledgers, Protocol):
    """The part of `db.Store` that is read and written."""

    def count_trials(
        self, *, level: Any = ..., device_key: str = ..., outcome: Any = ...
    ) -> int: ...
    def calibration(self, device_key: str) -> CalibrationRecord | None: ...
    def calibrations(self, device_key: str) -> list[CalibrationRecord]: ...
    def add_calibration(self, calibration: CalibrationRecord) -> int: ...


def calibrated(store: Calibrations, profile: DeviceProfile) -> DeviceProfile:
    """The profile that the store has for the device, else the given one. A record that is no
    profile of this device (it was written by another version) is as good as none."""
    record = store.calibration(profile.key)
    if record is None:
        return profile
    try:
        found = DeviceProfile.from_json(record.profile)
    except ValueError:
        return profile
    return found if found.key == profile.key else profile


def refitted_after_tune(store: Calibrations, shipped: DeviceProfile) -> str | None:
    """Fit the device's profile again when enough trials are new, and keep it where it is better;
    what came of it in a sentence, None where it was not yet time."""
    known = next((c for c in store.calibrations(shipped.key) if c.source == "refitted"), None)
    timed = store.count_trials(level="kernel", device_key=shipped.key, outcome="timed")
    before = 0
    if known is not None:
        before = int(known.evidence.get("timed", known.evidence.get("trials", 0)))
    if timed < before + max(ENOUGH, GROWTH * before):
        return None
    read = samples_of(store, shipped.key, shipped, LATEST).samples
    samples = read[:: -(-len(read) // FITTED) or 1]
    found = refit(samples, start_of(store, shipped))
    if found is None:
        return None
    keep(store, found, samples)
    if not found.is_better:
        return f"the cost model's profile stays: {len(samples)} trials make no better one"
    return f"the cost model's profile is fitted to {len(samples)} trials"


def start_of(store: Calibrations, shipped: DeviceProfile) -> DeviceProfile:
    """The profile with which a fit begins: the one measured on the device, else the shipped one, so
    that factors are never multiplied by factors."""
    for record in store.calibrations(shipped.key):
        if record.source == "measured" and record.undone_at is None:
            return DeviceProfile.from_json(record.profile)
    return shipped


def keep(store: Calibrations, found: Refit, samples: Sequence[Sample]) -> int:
    """Write the profile down; from now on it is its device's. One that is no better is written down
    as undone, so that the next fit waits for new trials."""
    now = datetime.now(UTC)
    timed = store.count_trials(level="kernel", device_key=found.profile.key, outcome="timed")
    return store.add_calibration(
        CalibrationRecord(
            device_key=found.profile.key,
            source="refitted",
            profile=found.profile.to_json(),
            evidence={**found.evidence(samples), "timed": timed},
            created_at=now,
            undone_at=None if found.is_better else now,
        )
    )
