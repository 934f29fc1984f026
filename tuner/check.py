"""Whether a kernel's numbers are acceptable: against float64, with the framework's own error as
the yardstick.

For each output the reference is the group in float64, *eager* the group in its own dtypes. An
error counts relative to the element's size and the output's root mean square; the largest and the
root mean square of it may each be twice eager's, plus an allowance for rounding. The allowance
has three parts: a few units in the last place of the output's dtype; what the reference itself
moves when its inputs are disturbed in their last float32 place (a kernel that sums in another
order does no worse than that); and, behind a reduction of n elements, the random walk of float32
rounding, sqrt(n). An element that equals eager's is always acceptable, and one where eager is not
finite though the reference is (an intermediate result overflows its dtype) only has to be no
worse: there NaN passes if eager has NaN. Otherwise NaN where the reference has none never passes,
and an infinity must match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..planner.graph.graph import Graph
from ..planner.graph.ops import Reduction, row
from .evaluate import evaluate
from .inputs import places

FACTOR = 2.0
CONDITION = 8.0
_UNITS = {torch.float64: 8.0, torch.float32: 16.0}
_FLOAT32 = torch.finfo(torch.float32).eps
_MOST = torch.finfo(torch.float32).max
_MARGIN = 64
"""Times an element that what it is the sum of may be."""

Judge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""What it finds in each element of a result, of the value in float64 and of eager's result."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One output: `value` in float64 (or exact, for integers and booleans), `eager` as the
    framework computes it. largest, typical: limits for the greatest scaled error and for its root
    mean square; scale: what an error is compared with besides the element itself; differing:
    elements in which eager itself, or eager in float32, is infinite or NaN where the value is not,
    or the reverse (of integers and booleans: in which eager differs)."""

    value: torch.Tensor
    eager: torch.Tensor
    scale: float
    largest: float
    typical: float
    differing: int


def expected(
    graph: Graph, inputs: Sequence[torch.Tensor], device: torch.device
) -> tuple[Expected, ...]:
    """What the outputs of the group must come close to, for these inputs. Raises Outside where an
    index that is computed from them lies outside."""
    eager = evaluate(graph, inputs, device, within=True)
    value = evaluate(graph, inputs, device, wide=torch.float64, within=True)
    named = places(graph)
    pairs = zip(graph.inputs, inputs, strict=True)
    disturbed = [x if node in named else _disturbed(x) for node, x in pairs]
    moved = evaluate(graph, disturbed, device, wide=torch.float64, within=True)
    plain = eager
    doubles = any(n.type and n.type.dtype == "float64" for n in graph.nodes)
    if not doubles and any(map(_may_overflow, value, eager)):
        plain = evaluate(graph, inputs, device, wide=torch.float32, within=True)
    walk = math.sqrt(deepest(graph)) * _FLOAT32
    return tuple(_expected(*item, walk) for item in zip(value, eager, moved, plain, strict=True))


def deepest(graph: Graph) -> int:
    """Elements that go into one result of the longest reduction; 0 where nothing is reduced."""
    longest = 0
    for node in graph.nodes:
        if isinstance(row(node), Reduction) and node.type and node.inputs:
            source = graph.nodes[node.inputs[0]].type
            if source and node.type.numel:
                longest = max(longest, source.numel // node.type.numel)
    return longest


def compare(wanted: Expected, actual: torch.Tensor) -> str | None:
    """Why the output is not acceptable, or None. `actual` was poisoned before the kernel ran."""
    if actual.shape != wanted.value.shape or actual.dtype != wanted.eager.dtype:
        return f"is {actual.dtype} {tuple(actual.shape)}"
    if actual.numel() == 0:
        return None
    if not actual.dtype.is_floating_point:
        return _compare_exact(wanted, actual)
    found, strange = _Errors(), 0
    for piece in _pieces(actual, wanted.value, wanted.eager):
        strange += int(_strange(*piece).sum())
        found.add(_error(wanted.scale, *piece))
    # Where sums overflow to both infinities their order decides, eager's as well as ours.
    if strange > FACTOR * wanted.differing:
        return _describe(wanted, actual, _strange, "element{s} not finite where it should be")
    own = partial(_error, wanted.scale)
    if found.largest > wanted.largest:
        text = f"error {found.largest:.3g} of scale, limit {wanted.largest:.3g}"
        return _describe(wanted, actual, own, f"{text}; element{{s}} beyond it", wanted.largest)
    if found.typical > wanted.typical:
        text = f"error {found.typical:.3g} (root mean square), limit {wanted.typical:.3g}"
        return _describe(wanted, actual, own, f"{text}; element{{s}} beyond it", wanted.typical)
    return None


def greatest(wanted: Expected, actual: torch.Tensor) -> float:
    """The greatest error of an element that is finite, relative to its size and the output's root
    mean square; of integers and booleans, the share of those that differ."""
    if not actual.numel():
        return 0.0
    if not actual.dtype.is_floating_point:
        return float((actual != wanted.value).double().mean())
    pieces = _pieces(actual, wanted.value, wanted.eager)
    return max(float(_error(wanted.scale, *piece).max()) for piece in pieces)


def check(wanted: Sequence[Expected], actual: Sequence[torch.Tensor], data_set: str) -> str | None:
    """Why one of the outputs is not acceptable, naming output, data set and element; or None."""
    for index, (one, tensor) in enumerate(zip(wanted, actual, strict=True)):
        reason = compare(one, tensor)
        if reason is not None:
            return f"output {index} on {data_set} inputs: {reason}"
    return None


def _may_overflow(value: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether sums in float32 may, in one order and not in another."""
    if not (eager.dtype.is_floating_point and eager.numel()):
        return False
    return any(
        bool((one.abs() > _MOST / _MARGIN).any() | ~torch.isfinite(kept).all())
        for one, kept in _pieces(value, eager)
    )


def _expected(
    value: torch.Tensor,
    eager: torch.Tensor,
    moved: torch.Tensor,
    plain: torch.Tensor,
    walk: float,
) -> Expected:
    """plain: in float32, operation by operation; eager's own where that is narrower."""
    if not eager.dtype.is_floating_point:
        differing = int((eager != value).sum()) if eager.numel() else 0
        return Expected(value, eager, 0.0, 0.0, 0.0, differing)
    size, own, condition, differing = _Errors(), _Errors(), _Errors(), 0
    for one, kept in _pieces(value, eager):
        ideal = _rounded(one, kept.dtype)
        size.add(torch.where(torch.isfinite(ideal), ideal, 0.0).abs())
        differing += int(_unlike(kept.double(), ideal).sum())
    for one, kept, other in _pieces(value, eager, plain):
        # A tensor core adds many products before it rounds: in it they do not overflow halfway.
        late = ~torch.isfinite(other) & torch.isfinite(kept) & torch.isfinite(one)
        differing += int(late.sum())
    for one, kept, other in _pieces(value, eager, moved):
        own.add(_error(size.typical, kept, one, kept))
        condition.add(_error(size.typical, other, one, kept))
    unit = torch.finfo(eager.dtype).eps * _UNITS.get(eager.dtype, 1.0)
    if eager.dtype is torch.float64:
        walk *= torch.finfo(torch.float64).eps / _FLOAT32
    rounding = unit + walk
    return Expected(
        value,
        eager,
        size.typical,
        FACTOR * own.largest + CONDITION * condition.largest + rounding,
        FACTOR * own.typical + CONDITION * condition.typical + rounding,
        differing,
    )


def _disturbed(tensor: torch.Tensor) -> torch.Tensor:
    """Each float moved by up to one unit in the last place of float32 (of float64, if it is)."""
    if not tensor.is_floating_point():
        return tensor
    eps = torch.finfo(torch.float64).eps if tensor.dtype is torch.float64 else _FLOAT32
    generator = torch.Generator(device=tensor.device)
    generator.manual_seed(1)
    noise = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float64)
    return noise.mul_(2).sub_(1).mul_(eps).add_(1).mul_(tensor)


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 with what overflows the output's dtype as infinity."""
    limit = torch.finfo(dtype).max
    # Halfway to the next power of two's step is still rounded down to the largest number.
    above = limit * (1 + torch.finfo(dtype).eps / 4)
    big = value.abs() > above
    return torch.where(big, torch.copysign(torch.full_like(value, math.inf), value), value)


def _strange(actual: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Elements that are NaN or infinite where they should not be, or are not where they should."""
    got, ideal, same = actual.double(), _rounded(value, actual.dtype), actual == eager
    # Beyond float32, in which sums are held, infinities of both signs may meet before the last one
    # is rounded: eager overflows there too.
    beyond = (value.abs() > _MOST) & torch.isfinite(value) & ~torch.isfinite(eager)
    nan = torch.isnan(got) & ~torch.isnan(ideal) & ~torch.isnan(eager) & ~beyond
    infinite = torch.isinf(got) | (torch.isinf(ideal) & ~(torch.isnan(got) & beyond))
    excused = (got == ideal) | same | torch.isnan(ideal) | (torch.isnan(got) & torch.isnan(eager))
    # Where only eager overflows on the way, the finite truth is welcome too.
    return nan | (infinite & ~excused)


def _unlike(eager: torch.Tensor, ideal: torch.Tensor) -> torch.Tensor:
    """Elements of which one is infinite or NaN and the other is not the same."""
    both = torch.isnan(eager) & torch.isnan(ideal)
    wild = ~torch.isfinite(eager) | ~torch.isfinite(ideal)
    return wild & ~both & (eager != ideal)


def _error(
    scale: float, got: torch.Tensor, value: torch.Tensor, eager: torch.Tensor
) -> torch.Tensor:
    """Of each element, relative to its size and the scale; 0 where something is not finite."""
    got, ideal = got.double(), _rounded(value, eager.dtype)
    judged = torch.isfinite(ideal) & torch.isfinite(got) & torch.isfinite(eager)
    size = ideal.abs() + scale
    error = (got - ideal).abs() / torch.where(size > 0, size, 1.0)
    return torch.where(judged, error, 0.0)


_PIECE = 1 << 26
"""Elements that are looked at at once: of a large output there is no room for copies in float64."""


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape, a part of each at a time, flat."""
    flat = [t.reshape(-1) for t in tensors]
    for start in range(0, flat[0].numel(), _PIECE):
        yield tuple(t[start : start + _PIECE] for t in flat)


@dataclass(slots=True)
class _Errors:
    """The greatest of many numbers, none below 0, and their root mean square."""

    largest: float = 0.0
    parts: list[tuple[int, float]] = field(default_factory=list)

    def add(self, values: torch.Tensor) -> None:
        self.largest = max(self.largest, float(values.max()))
        self.parts.append((values.numel(), _rms(values)))

    @property
    def typical(self) -> float:
        largest = max((part for _, part in self.parts), default=0.0)
        if largest == 0 or not math.isfinite(largest):
            return largest
        count = sum(n for n, _ in self.parts)
        return largest * math.sqrt(sum(n * (part / largest) ** 2 for n, part in self.parts) / count)


def _rms(values: torch.Tensor) -> float:
    # Squares of large numbers overflow: take the largest out first.
    largest = float(values.max())
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(((values / largest) ** 2).mean()))


def _compare_exact(wanted: Expected, actual: torch.Tensor) -> str | None:
    if actual.dtype is torch.bool:
        raw = actual.contiguous().view(torch.uint8)
        unwritten = raw > 1
        if bool(unwritten.any()):
            return f"{int(unwritten.sum())} elements are no booleans: not written"
    count = sum(int(_differs(*p).sum()) for p in _pieces(actual, wanted.value, wanted.eager))
    # A float compared or cut on the way falls on the other side now and then, eager's too.
    if count <= FACTOR * wanted.differing + 1e-6 * actual.numel():
        return None
    return _describe(wanted, actual, _differs, "element{s} differ")


def _differs(actual: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    return (actual != value) & (actual != eager)


def _describe(
    wanted: Expected, actual: torch.Tensor, judge: Judge, text: str, limit: float = 0.5
) -> str:
    """How many elements a judge finds beyond a limit, and the worst of them."""
    count, place, worst = 0, 0, -1.0
    for number, piece in enumerate(_pieces(actual, wanted.value, wanted.eager)):
        found = judge(*piece).double()
        count += int((found > limit).sum())
        if float(found.max()) > worst:
            worst, place = float(found.max()), number * _PIECE + int(found.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), actual.shape)]

    def at(tensor: torch.Tensor) -> Any:
        value = tensor.reshape(-1)[place].item()
        return f"{value:.6g}" if isinstance(value, float) else value

    return (
        f"{count} of {actual.numel()} {text.format(s='s')}; "
        f"at {index}: {at(actual)}, reference {at(wanted.value)}, eager {at(wanted.eager)}"
    )
