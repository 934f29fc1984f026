"""Limits of the few slices of an output that fail, drawn from more evaluations with errors.

Where a function is ill-conditioned, rounding alone makes large errors in few places: a softmax of
scores near 1e8 chooses one row of values, and a near tie is decided otherwise by the smallest
error. Whether eager, and the one evaluation that `slices.limits` has seen, err in the same slice is
chance, and of 100,000 slices chance fails some of a right kernel. So those that fail are judged
once more: an element may err twice as far as other evaluations with errors move this very element,
and the root mean square of a slice may be twice that of any of them. That hides no fault: where a
function is well-conditioned, no rounding moves an element so far.

A limit is meant to be twice the largest of `slices.LEAST` errors. Where a relu leaves few elements
of a slice, or all of them are equal, there are not so many. So some evaluations err twice as far at
every operation, in some of which they round as a kernel does that holds the rest in float32; and
the root mean square of few errors is no limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .perturbed import Noise
from .rounding_flips import Doubt
from .slices import CONDITION, FACTOR, UP_OR_DOWN, errors, rms

_SAMPLES, _PATIENCE = 96, 16
"""Evaluations at most, and how many of them in a row may explain nothing more."""

_ELEMENTS, _LEAST = 5e10, 24
"""Elements that all evaluations together compute at most, some seconds of a GPU, and how many
evaluations there may be of a graph however large. With 4 of them chance refused 45 of 400 right
plans that decide by near ties, with 24 none of 1,590 (`tests/tuner/made_up_plans.py`); a right plan
rarely takes many."""

_KEPT = 1 << 26
"""Bytes of slices of an evaluation that are kept for the next look at the same slices: a plan runs
with its inputs at odd addresses too, and as a CUDA graph."""

_FEW = 1 / 8
"""The share of the slices of an output that may fail by chance. What fails in more of them is
wrong, and no evaluation is spent on it."""

_DIFFERENT = 32
"""Values of a slice of which the root mean square of the errors is left to chance too much."""

_SEED = 1000
"""Of the first evaluation's errors, which no limit has seen."""


@dataclass(frozen=True, slots=True)
class FailedSlices:
    """Slices that fail, as matrices: what the kernel gave, the value and eager's result in float64,
    and which elements say nothing of the root mean square. scale, largest, typical: of each slice,
    as in `SliceLimits`; allowed: what each element may err."""

    got: torch.Tensor
    value: torch.Tensor
    eager: torch.Tensor
    lost: torch.Tensor
    scale: torch.Tensor
    allowed: torch.Tensor
    typical: torch.Tensor
    dtype: torch.dtype

    def errors(self, moved: torch.Tensor) -> torch.Tensor:
        """Of each element, beside the value with what rounding may have moved it by."""
        return errors(self.got, self.value + moved, self.eager, self.scale, self.dtype)


def are_few(failed: int, slices: int) -> bool:
    """Whether so many of the slices of an output may fail by chance."""
    return failed <= max(1.0, _FEW * slices)


def gathered(tensor: torch.Tensor, wide: int, numbers: torch.Tensor) -> torch.Tensor:
    """Slices of a tensor by their numbers, as a matrix of float64."""
    begin = (numbers * wide).clamp(max=tensor.numel() - wide)
    places = begin[:, None] + torch.arange(wide, device=numbers.device)
    return tensor.reshape(-1)[places].double()


def unexplained(
    doubt: Doubt, failed: FailedSlices, wide: int, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The errors of the slices with these numbers that no evaluation explains: elements that err
    too far, elements of slices whose root mean square is too large, and the errors of all."""
    low = torch.zeros_like(failed.value)
    high, most = low.clone(), failed.typical
    first = failed.errors(low)
    beyond = first > failed.allowed
    mean = rms(torch.where(failed.lost | beyond, 0.0, first))
    mean = torch.where(_different(failed.value) < _DIFFERENT, 0.0, mean)
    error, far, left, since = first, beyond, first.numel() + 1, 0
    for number in range(_affordable(doubt)):
        typical = (mean > most) & (first >= most) & ~beyond
        count = int(far.sum() + typical.any(1).sum())
        since = since + 1 if count == left else 0
        if count == 0 or since == _PATIENCE:
            break
        left = count
        noise, times = _noise(number)
        sample = _sample(doubt, number, noise, wide, numbers)
        moved = (times * (sample - failed.value)).nan_to_num(0.0, 0.0, 0.0)
        low, high = torch.minimum(low, moved), torch.maximum(high, moved)
        theirs = errors(sample, failed.value, sample, failed.scale, failed.dtype)
        most = torch.maximum(most, times * rms(theirs))
        error = failed.errors(torch.clamp(failed.got - failed.value, low, high).nan_to_num(0.0))
        far = error > failed.allowed
    return far, typical, torch.where(beyond, error, first)


def _sample(
    doubt: Doubt, number: int, noise: Noise, wide: int, numbers: torch.Tensor
) -> torch.Tensor:
    """Slices of an evaluation by their numbers."""
    known, kept = doubt.slices.get(number, (numbers[:0], torch.empty(0, device=numbers.device)))
    every: torch.Tensor = torch.cat([known, numbers]).unique()  # type: ignore[no-untyped-call]
    if len(every) > len(known):
        kept = gathered(doubt.evaluated(noise), wide, every)
        if kept.nbytes <= _KEPT:
            doubt.slices[number] = (every, kept)
    return kept[torch.searchsorted(every, numbers)]


def _different(value: torch.Tensor) -> torch.Tensor:
    """How many different values each row has."""
    ordered = value.sort(1).values
    return 1 + (ordered.diff(dim=1) != 0).sum(1, keepdim=True)


def _affordable(doubt: Doubt) -> int:
    """How many evaluations there may be."""
    elements = sum(node.type.numel for node in doubt.graph.nodes if node.type is not None)
    return max(_LEAST, min(_SAMPLES, int(_ELEMENTS // max(1, elements))))


def _noise(number: int) -> tuple[Noise, float]:
    """The errors of an evaluation, and how many times as far as it a kernel may go: errors of the
    types of the graph, twice as large and at some of its operations; those of float32; and those of
    the types as they are."""
    seed = _SEED + number
    match number % 4:
        case 1:
            return Noise(narrow=False, seed=seed, times=CONDITION), 1.0
        case 2:
            return Noise(narrow=True, seed=seed), FACTOR / UP_OR_DOWN
    return Noise(narrow=True, seed=seed, times=FACTOR, extreme=True, mixed=True), 1.0
