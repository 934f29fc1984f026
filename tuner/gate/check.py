"""The accuracy rule: numbers are judged against float64, with the framework's own error as the
yardstick. Kernels and whole plans are judged by it alike.

For each output the *value* is the graph in float64, *eager* the graph in its own dtypes. An error
counts relative to the element's size and the root mean square of its slice (see `slices`). In
every slice the largest error and the root mean square of all may each be twice eager's own, plus
an allowance for rounding. Eager's own error is the larger of two: what eager did, and what the
graph does when each result is rounded to its type at random. The allowance has three parts: a few
units in the last place of the output's dtype; what the value itself moves when operations err in
their last float32 place (a kernel that sums in another order does no worse than that); and,
behind a reduction of n elements, the random walk of float32 rounding, sqrt(n). The few slices that
fail are judged once more, by more evaluations with errors (see `more_samples`).

NaN and each infinity must be where eager or the value has them. Where sums come near the largest
float32, their order decides whether they overflow on the way, eager's as well as ours: there as
many elements may differ as eager's do, twice. An integer or a boolean is that of eager, that of
the value, or one that rounding alone can make of it (see `rounding_flips`). What an output is
compared with, and the units and tolerances of each type, come from `reference`; the factors of the
limits from `slices`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .more_samples import FailedSlices, are_few, gathered, unexplained
from .reference import Expected, Reference
from .rounding_flips import Doubt
from .slices import (
    ABOVE,
    BELOW,
    FACTOR,
    FINITE,
    MOST_FLOAT32,
    NAN,
    SliceLimits,
    classes,
    errors,
    is_near_overflow,
    overflow,
    place,
    rms,
    rounded,
    slices,
)

_FAR_FROM_OVERFLOW = 128.0
"""Times an element that sums on its way, or what it may err, could be."""

_AGAIN = 0.1
"""What an element may err where eager's is infinite or NaN and the value is not."""


def compare(wanted: Expected | Reference, actual: torch.Tensor) -> str | None:
    """Why the output is not acceptable, or None. `actual` was poisoned before the kernel ran."""
    if isinstance(wanted, Reference):
        return None if passes(wanted, actual) else compare(wanted.expected, actual)
    if actual.shape != wanted.value.shape or actual.dtype != wanted.eager.dtype:
        return f"is {actual.dtype} {tuple(actual.shape)}"
    if actual.numel() == 0:
        return None
    if wanted.limits is None:
        return _compare_exact(wanted, actual)
    return _compare_floats(wanted, wanted.limits, actual)


def passes(wanted: Reference, actual: torch.Tensor) -> bool:
    """Whether the output is right by eager's own error alone, without evaluations with errors."""
    return wanted.quick is not None and compare(wanted.quick, actual) is None


def doubtful(
    wanted: Sequence[Expected | Reference],
    actual: Sequence[torch.Tensor],
    passes: Callable[[Reference, torch.Tensor], bool] = passes,
) -> list[tuple[int, Expected | Reference]]:
    """What has to be compared with an output by the whole rule, with its place. All of them then
    share the evaluations with errors."""
    each = enumerate(zip(wanted, actual, strict=True))
    found = [
        (place, one)
        for place, (one, output) in each
        if not (isinstance(one, Reference) and passes(one, output))
    ]
    for _, one in found:
        if isinstance(one, Reference):
            one.announce()
    return found


def greatest(wanted: Expected, actual: torch.Tensor) -> float:
    """The greatest error of an element that is finite, relative to its size and the root mean
    square of its slice; of integers and booleans, the share of those that differ."""
    if not actual.numel():
        return 0.0
    if wanted.limits is None:
        return float((actual != wanted.value).double().mean())
    most, of = 0.0, wanted.limits
    for first, piece in slices(of.width, actual, wanted.value, wanted.eager):
        got, value, eager = (t.double() for t in piece)
        scale = of.scale[first : first + len(got)]
        most = max(most, float(errors(got, value, eager, scale, actual.dtype).max()))
    return most


def check(
    wanted: Sequence[Expected | Reference], actual: Sequence[torch.Tensor], data_set: str
) -> str | None:
    """Why one of the outputs is not acceptable, naming output, data set and element; or None."""
    for index, one in doubtful(wanted, actual):
        reason = compare(one.expected if isinstance(one, Reference) else one, actual[index])
        if reason is not None:
            return f"output {index} on {data_set} inputs: {reason}"
    return None


_FAR = "element{s} beyond it: error {error:.3g} of scale, limit {limit:.3g}"
_TYPICAL = (
    "element{s} beyond it: error {error:.3g} (root mean square of a slice), limit {limit:.3g}"
)


@dataclass(slots=True)
class _Fault:
    """Elements with one sort of fault: how many, and the worst. text: says what they are, with
    its `error` and the `limit` there."""

    text: str
    count: int = 0
    ratio: float = -1.0
    at: int = 0
    error: float = 0.0
    limit: float = 0.0

    def add(
        self,
        numbers: torch.Tensor,
        numel: int,
        bad: torch.Tensor,
        error: torch.Tensor,
        limit: torch.Tensor,
    ) -> None:
        """Of the slices with these numbers. limit: one for each slice."""
        found = int(bad.sum())
        if not found:
            return
        self.count += found
        ratio = torch.where(bad, error / limit.clamp(min=1e-300), -1.0).flatten()
        worst = int(ratio.argmax())
        if float(ratio[worst]) > self.ratio:
            wide = bad.shape[1]
            self.at = place(wide, numel, int(numbers[worst // wide]), worst % wide)
            self.ratio = float(ratio[worst])
            self.error = float(error.flatten()[worst])
            self.limit = float(limit.expand_as(bad).flatten()[worst])


def _compare_floats(wanted: Expected, of: SliceLimits, actual: torch.Tensor) -> str | None:
    strange = _Fault("element{s} not finite where it should be, or finite where it should not")
    zero = _Fault("zero{s} have the wrong sign")
    far, typical = _Fault(_FAR), _Fault(_TYPICAL)
    risky, numel = _Fault(strange.text), actual.numel()
    failed: list[torch.Tensor] = []
    also = () if wanted.also is None else (wanted.also,)
    for first, piece in slices(of.width, actual, wanted.value, wanted.eager, *also):
        got, value, eager = (t.double() for t in piece[:3])
        rows = torch.arange(first, first + len(got), device=got.device)
        scale, largest, most = (t[rows] for t in (of.scale, of.largest, of.typical))
        one = torch.ones_like(scale)
        if not _are_all_small(got, value, eager, actual.dtype):
            kinds = _kinds(value, eager, largest * (value.abs() + scale), actual.dtype)
            if wanted.sums:
                kinds |= _beyond(value, eager)
            wrong = (classes(got) & (kinds | piece[3] if also else kinds)) == 0
            danger = is_near_overflow(value) | ~(torch.isfinite(value) & torch.isfinite(eager))
            strange.add(rows, numel, wrong & ~danger, wrong.double(), one)
            risky.add(rows, numel, wrong & danger, wrong.double(), one)
        if not wanted.sums:
            other = _is_other_zero(got, value, eager)
            zero.add(rows, numel, other, other.double(), one)
        error = errors(got, value, eager, scale, actual.dtype)
        lost = _is_lost(value, eager)
        beyond = error > _allowed(lost, largest)
        far.add(rows, numel, beyond, error, largest)
        mean = rms(torch.where(lost, 0.0, error))
        rough = (mean > most) & (error >= most)
        typical.add(rows, numel, rough, mean.expand_as(error), most)
        failed.append(rows[(beyond | rough).any(1)])
    # Where sums overflow to both infinities their order decides, eager's as well as ours.
    sure = [strange, zero]
    if risky.count > FACTOR * wanted.differing:
        sure.insert(0, risky)
    again = torch.cat(failed)
    passed = not any(fault.count for fault in sure)
    few = len(again) > 0 and are_few(len(again), len(of.scale))
    if passed and few and wanted.doubt is not None:
        far, typical = _judged_again(wanted.doubt, wanted, of, actual, again)
    faults = (*sure[:-1], far, typical, zero)
    return next((_describe(wanted, actual, fault) for fault in faults if fault.count), None)


def _judged_again(
    doubt: Doubt, wanted: Expected, of: SliceLimits, actual: torch.Tensor, rows: torch.Tensor
) -> tuple[_Fault, _Fault]:
    """What more evaluations with errors leave unexplained in the slices with these numbers."""
    tensors = (actual, wanted.value, wanted.eager)
    got, value, eager = (gathered(t, of.width, rows) for t in tensors)
    scale, largest, most = (t[rows] for t in (of.scale, of.largest, of.typical))
    lost = _is_lost(value, eager)
    allowed = _allowed(lost, largest)
    slices = FailedSlices(got, value, eager, lost, scale, allowed, most, actual.dtype)
    beyond, rough, error = unexplained(doubt, slices, of.width, rows)
    far, typical = _Fault(_FAR), _Fault(_TYPICAL)
    far.add(rows, actual.numel(), beyond, error, largest)
    mean = rms(torch.where(lost, 0.0, error)).expand_as(error)
    typical.add(rows, actual.numel(), rough, mean, most)
    return far, typical


def _is_lost(value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Where an intermediate result overflows in eager, nothing is known of its error."""
    return torch.isfinite(value) & ~torch.isfinite(eager)


def _allowed(lost: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """The error of each element. largest: that of a slice."""
    return torch.where(lost, largest.clamp(min=_AGAIN), largest)


def _are_all_small(
    got: torch.Tensor, value: torch.Tensor, eager: torch.Tensor, dtype: torch.dtype
) -> bool:
    """Whether all elements of all three are finite and none is near to where its type, or a sum in
    float32, overflows: then none is of a wrong kind. To find out takes a tenth of what looking at
    the kinds takes."""
    ends = torch.stack([end for each in (got, value, eager) for end in each.aminmax()])
    most = float(ends.abs().max())
    return most < min(overflow(dtype), MOST_FLOAT32) / _FAR_FROM_OVERFLOW  # not so of NaN


def _kinds(
    value: torch.Tensor, eager: torch.Tensor, margin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Kinds of numbers that an element may be, as bits: the value's and eager's, and either of two
    where the value is as near to where its type overflows as it may err. margin: that error."""
    found = classes(rounded(value, dtype)) | classes(eager)
    infinite = torch.where(value > 0, ABOVE, BELOW).to(torch.uint8)
    near = (value.abs() - overflow(dtype)).abs() <= margin
    found |= torch.where(near, infinite | FINITE, 0).to(torch.uint8)
    return found


def _beyond(value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Kinds that a sum may be beyond float32, in which it is held: infinities of both signs may
    meet before the last is rounded. Eager overflows there too."""
    beyond = (value.abs() > MOST_FLOAT32) & torch.isfinite(value) & ~torch.isfinite(eager)
    return torch.where(beyond, ABOVE | BELOW | NAN, 0).to(torch.uint8)


def _is_other_zero(got: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Zeros whose sign is neither the value's nor eager's."""
    sure = (value == 0) & (eager == 0) & (value.signbit() == eager.signbit())
    return sure & (got == 0) & (got.signbit() != eager.signbit())


def _compare_exact(wanted: Expected, actual: torch.Tensor) -> str | None:
    if actual.dtype is torch.bool:
        raw = actual.contiguous().view(torch.uint8)
        unwritten = raw > 1
        if bool(unwritten.any()):
            return f"{int(unwritten.sum())} elements are no booleans: not written"
    wrong = (actual != wanted.value) & (actual != wanted.eager)
    if bool(wrong.any()) and wanted.doubt is not None:
        wrong = wanted.doubt.unjustified(wrong, actual, wanted.value, wanted.eager)
    if not bool(wrong.any()):
        return None
    fault = _Fault("element{s} differ", int(wrong.sum()), at=int(wrong.flatten().byte().argmax()))
    return _describe(wanted, actual, fault)


def _describe(wanted: Expected, actual: torch.Tensor, fault: _Fault) -> str:
    """How many elements have the fault, and the worst of them."""
    index = [int(i) for i in torch.unravel_index(torch.tensor(fault.at), actual.shape)]

    def at(tensor: torch.Tensor) -> Any:
        value = tensor.reshape(-1)[fault.at].item()
        return f"{value:.6g}" if isinstance(value, float) else value

    text = fault.text.format(s="s" * (fault.count != 1), error=fault.error, limit=fault.limit)
    reference = "" if wanted.by_eager else f"reference {at(wanted.value)}, "
    return (
        f"{fault.count} of {actual.numel()} {text}; "
        f"at {index}: {at(actual)}, {reference}eager {at(wanted.eager)}"
    )
