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
the value, or one that rounding alone can make of it (see `doubt`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ...planner.graph.graph import INPUT, Graph, Node
from ...planner.graph.ops import (
    Contraction,
    Cumulative,
    Depthwise,
    IndexedWrite,
    Reduction,
    row,
)
from ..trial.evaluate import evaluate
from .more_samples import FailedSlices, are_few, gathered, unexplained
from .perturbed import Noise, disturbed, summed
from .rounding_flips import Doubt
from .slices import (
    ABOVE,
    BELOW,
    FACTOR,
    FINITE,
    NAN,
    SliceLimits,
    classes,
    errors,
    limits,
    loose,
    overflow,
    place,
    rms,
    rounded,
    slices,
)

_UNITS = {torch.float64: 8.0, torch.float32: 16.0}
_FLOAT32 = torch.finfo(torch.float32).eps
_MOST = torch.finfo(torch.float32).max
_MARGIN = 64
"""Times an element that what it is the sum of may be."""

_AGAIN = 0.1
"""What an element may err where eager's is infinite or NaN and the value is not."""

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
"""Where eager is all there is to compare with: root mean square of the difference in a slice,
relative. By the shortest float of the graph, to which eager rounded on its way."""

_PEAK = 8.0
"""Times that, what the difference of one element may be."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One output: `value` in float64 (or exact, for integers and booleans), `eager` as the
    framework computes it. limits: of a float. also: kinds of numbers (see `classes`) that an
    element may be besides the value's and eager's; None where there are no others. differing:
    elements of which eager's kind, or that of eager in float32, is not the value's. sums: whether
    it may be a sum: then a zero has its sign from where the sum begins, and the order decides what
    overflows on the way. doubt: what else rounding alone can make. by_eager: the value is eager's:
    there was no better."""

    value: torch.Tensor
    eager: torch.Tensor
    limits: SliceLimits | None = None
    also: torch.Tensor | None = None
    differing: int = 0
    sums: bool = True
    doubt: Doubt | None = field(default=None, compare=False)
    by_eager: bool = False

    @property
    def largest(self) -> float:
        """The greatest limit of an element's error; 0 for integers and booleans."""
        return float(self.limits.largest.max()) if self.limits else 0.0


class Reference:
    """The values that one output of a graph must come close to, for given inputs. The whole rule
    takes evaluations with errors, which cost far more than the value: they are made (`expected`)
    when something does not pass by eager's own error alone (`quick`), which is stricter."""

    def __init__(self, evaluations: _Evaluations, place: int) -> None:
        self._evaluations, self._place = evaluations, place
        self.eager = evaluations.eager[place]

    @cached_property
    def quick(self) -> Expected | None:
        """With limits of twice eager's own error; integers and booleans exactly. None where eager's
        error is none that rounding makes."""
        value, eager = self._evaluations.value[self._place], self.eager
        if not _is_judged(eager):
            return Expected(value, eager)
        found = limits(value, eager, value, value, self._evaluations.rounding(eager.dtype))
        return (
            Expected(value, eager, found, sums=self._evaluations.sums)
            if found.is_rounding
            else None
        )

    @property
    def expected(self) -> Expected:
        """By the whole rule."""
        return self._evaluations.expected[self._place]

    @property
    def by_eager(self) -> bool:
        """Whether it was compared with eager's result alone."""
        return self._evaluations.is_complete and self.expected.by_eager


class _Evaluations:
    """A graph evaluated for given inputs: by eager and in float64 at once, with errors when that is
    asked for."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        eager: Sequence[torch.Tensor] | None,
    ) -> None:
        self.graph, self.inputs, self.device = graph, inputs, device
        self.eager = eager or evaluate(graph, inputs, device, within=True)
        self.value = evaluate(graph, inputs, device, wide=torch.float64, within=True)
        self.sums = any(_may_sum(n) for n in graph.nodes)
        self._walk = math.sqrt(deepest(graph)) * _FLOAT32

    def rounding(self, dtype: torch.dtype) -> float:
        """What an element of an output of this type may err whatever it is computed from."""
        walk = self._walk
        if dtype is torch.float64:
            walk *= torch.finfo(torch.float64).eps / _FLOAT32
        return torch.finfo(dtype).eps * _UNITS.get(dtype, 1.0) + walk

    @property
    def is_complete(self) -> bool:
        """Whether it was evaluated with errors, too."""
        return "expected" in self.__dict__

    @cached_property
    def expected(self) -> tuple[Expected, ...]:
        """Of every output, by the whole rule."""
        graph, given = self.graph, (self.inputs, self.device)
        moved = disturbed(graph, *given, Noise(narrow=False))
        narrow = disturbed(graph, *given, Noise(narrow=True)) if _is_narrow(graph) else moved
        outputs = [o for o in graph.outputs if o is not None]
        found = []
        each = zip(self.value, self.eager, moved, narrow, self._plain(), strict=True)
        for output, samples in zip(outputs, map(_Samples._make, each), strict=True):
            if not _is_judged(samples.eager):
                known = (samples.moved, samples.narrow)
                doubt = Doubt(graph, output, *given, expected, known)
                found.append(Expected(samples.value, samples.eager, doubt=doubt))
                continue
            one = _expected(samples, self.rounding(samples.eager.dtype), self.sums)
            assert one.limits is not None
            doubt = Doubt(graph, output, *given, expected)
            loose = by_eager(graph, samples.eager)
            found.append(replace(one, doubt=doubt) if one.limits.is_rounding else loose)
        return tuple(found)

    def _plain(self) -> Sequence[torch.Tensor]:
        """In float32, operation by operation, where the order of sums may decide what overflows."""
        doubles = any(n.type and n.type.dtype == "float64" for n in self.graph.nodes)
        if doubles or not any(map(_may_overflow, self.value, self.eager)):
            return self.eager
        return evaluate(self.graph, self.inputs, self.device, wide=torch.float32, within=True)


def _is_judged(output: torch.Tensor) -> bool:
    """Whether an output has elements with errors: others are compared exactly."""
    return output.dtype.is_floating_point and output.numel() > 0


def expected(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    device: torch.device,
    eager: Sequence[torch.Tensor] | None = None,
) -> tuple[Expected, ...]:
    """What the outputs of the graph must come close to, for these inputs. eager: the framework's
    outputs, where they are known. Raises Outside where an index that is computed from them lies
    outside."""
    return _Evaluations(graph, inputs, device, eager).expected


def references(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    device: torch.device,
    eager: Sequence[torch.Tensor] | None = None,
) -> tuple[Reference, ...]:
    """The same, evaluated with errors only when that is needed: the inputs must stay as they are.
    Of a graph that writes into its inputs all is evaluated at once."""
    made = _Evaluations(graph, inputs, device, eager)
    if any(isinstance(row(n), IndexedWrite) for n in graph.nodes):
        _ = made.expected
    return tuple(Reference(made, place) for place in range(len(made.eager)))


def by_eager(graph: Graph, eager: torch.Tensor) -> Expected:
    """What an output must come close to where nothing but eager's is known: each element, and
    each slice, within a tolerance of it. Integers and booleans are exact."""
    dtypes = {getattr(torch, n.type.dtype) for n in graph.nodes if n.type} | {eager.dtype}
    least = max((TOLERANCE[d] for d in dtypes & TOLERANCE.keys()), default=0.0)
    if not eager.dtype.is_floating_point or not eager.numel():
        return Expected(eager, eager, by_eager=True)
    return Expected(eager, eager, loose(eager, _PEAK * least, least), by_eager=True)


def deepest(graph: Graph) -> int:
    """Elements that go into one result of the longest reduction; 0 where nothing is reduced."""
    reductions = (n for n in graph.nodes if isinstance(row(n), Reduction))
    return max((summed(n, graph) for n in reductions), default=0)


def compare(wanted: Expected | Reference, actual: torch.Tensor) -> str | None:
    """Why the output is not acceptable, or None. `actual` was poisoned before the kernel ran."""
    if isinstance(wanted, Reference):
        quick = wanted.quick
        passed = quick is not None and compare(quick, actual) is None
        return None if passed else compare(wanted.expected, actual)
    if actual.shape != wanted.value.shape or actual.dtype != wanted.eager.dtype:
        return f"is {actual.dtype} {tuple(actual.shape)}"
    if actual.numel() == 0:
        return None
    if wanted.limits is None:
        return _compare_exact(wanted, actual)
    return _compare_floats(wanted, wanted.limits, actual)


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
    for index, (one, tensor) in enumerate(zip(wanted, actual, strict=True)):
        reason = compare(one, tensor)
        if reason is not None:
            return f"output {index} on {data_set} inputs: {reason}"
    return None


def _may_sum(node: Node) -> bool:
    """Whether it adds up elements, or is an operation of which nothing is known."""
    kind = row(node)
    opaque = kind is None and node.op != INPUT and node.type is not None
    return opaque or isinstance(kind, (Reduction, Cumulative, Contraction, Depthwise))


def _is_narrow(graph: Graph) -> bool:
    """Whether eager rounds to a type shorter than float32."""
    kinds = {getattr(torch, n.type.dtype) for n in graph.nodes if n.type is not None}
    return any(k.is_floating_point and k.itemsize < 4 for k in kinds)


def _may_overflow(value: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether sums in float32 may, in one order and not in another."""
    if not (eager.dtype.is_floating_point and eager.numel()):
        return False
    return any(
        bool((one.abs() > _MOST / _MARGIN).any() | ~torch.isfinite(kept).all())
        for _, (one, kept) in slices(1, value, eager)
    )


class _Samples(NamedTuple):
    """One output as several evaluations have it. plain: in float32, operation by operation;
    eager's own where that is narrower. moved, narrow: see `slices.limits`."""

    value: torch.Tensor
    eager: torch.Tensor
    moved: torch.Tensor
    narrow: torch.Tensor
    plain: torch.Tensor


def _expected(samples: _Samples, rounding: float, sums: bool) -> Expected:
    value, eager = samples.value, samples.eager
    dtype = eager.dtype
    found = limits(*samples[:4], rounding)
    differing, kinds = 0, []
    for _, piece in slices(1, *samples):
        one, own, *others, late = (classes(rounded(p.double(), dtype)) for p in piece)
        # A tensor core adds many products before it rounds: in it they do not overflow halfway.
        differing += int(((own != one) | (late != one)).sum())
        kinds.append((others[0] | others[1] | late) & ~(one | own))
    also = torch.cat(kinds).flatten() if any(bool(k.any()) for k in kinds) else None
    return Expected(value, eager, found, also, differing, sums)


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
        kinds = _kinds(value, eager, largest * (value.abs() + scale), actual.dtype)
        if wanted.sums:
            kinds |= _beyond(value, eager)
        wrong = (classes(got) & (kinds | piece[3] if also else kinds)) == 0
        danger = (value.abs() > _MOST / _MARGIN) | ~(torch.isfinite(value) & torch.isfinite(eager))
        one = torch.ones_like(scale)
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
    beyond = (value.abs() > _MOST) & torch.isfinite(value) & ~torch.isfinite(eager)
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
