"""The numbers that outputs must come close to: the graph in float64, by eager, and with errors.

`references` gives one `Reference` for each output of a graph. The evaluations with errors, which
say what rounding may make of an output, are made only when something asks for them. Here are also
the units in the last place of each type, and the tolerances where there is no float64. The factors
of a limit are in `slices`. How outputs are compared with all of these is in `check`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

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
from .comparisons import Comparisons
from .noisy_outputs import NoisyOutputs
from .perturbed import Noise, disturbed, summed
from .rounding_flips import Doubt
from .slices import SliceLimits, classes, is_near_overflow, limits, loose, rounded, slices

_UNITS = {torch.float64: 8.0, torch.float32: 16.0}
_FLOAT32 = torch.finfo(torch.float32).eps

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
"""Where eager is all there is to compare with: root mean square of the difference in a slice,
relative. By the shortest float of the graph, to which eager rounded on its way."""

_MANY = 8
"""Outputs of a graph beyond which evaluations with errors are kept: a kernel has fewer."""

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
        return self._evaluations.expected(self._place)

    def announce(self) -> None:
        """Say that `expected` will be asked for: evaluations with errors then have this output,
        too, for whichever they are made first."""
        self._evaluations.announced.add(self._place)

    @property
    def by_eager(self) -> bool:
        """Whether it was compared with eager's result alone."""
        found = self._evaluations.known.get(self._place)
        return found is not None and found.by_eager


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
        self.announced: set[int] = set()
        """Places of outputs of which more is wanted than `value`."""
        self.known: dict[int, Expected] = {}
        """By the whole rule, those that were asked for and those that were announced by then."""

    def rounding(self, dtype: torch.dtype) -> float:
        """The error that an element of an output of this type may have in any case."""
        walk = self._walk
        if dtype is torch.float64:
            walk *= torch.finfo(torch.float64).eps / _FLOAT32
        return torch.finfo(dtype).eps * _UNITS.get(dtype, 1.0) + walk

    def expected(self, place: int) -> Expected:
        """Of an output, by the whole rule; with it those that were announced are found."""
        if place not in self.known:
            places = sorted(({place} | self.announced) - self.known.keys())
            self.announced.clear()  # Without memory for all of them the next comes alone.
            self.known |= dict(zip(places, self._expected(places), strict=True))
        return self.known[place]

    def all_expected(self) -> tuple[Expected, ...]:
        """Of every output."""
        self.announced.update(range(len(self.eager)))
        return tuple(self.expected(place) for place in range(len(self.eager)))

    def _expected(self, places: Sequence[int]) -> Iterator[Expected]:
        """Of these outputs, for which the graph is evaluated with errors."""
        outputs = [o for o in self.graph.outputs if o is not None]
        chosen = tuple(outputs[place] for place in places)
        graph, given = Graph(self.graph.nodes, chosen), (self.inputs, self.device)
        moved = disturbed(graph, *given, Noise(narrow=False))
        narrow = disturbed(graph, *given, Noise(narrow=True)) if _is_narrow(graph) else moved
        comparisons = Comparisons(graph, *given, expected)
        noisy = NoisyOutputs(graph, *given, keeps=len(outputs) > _MANY)
        plain = self._plain()
        for number, place in enumerate(places):
            own = self.value[place], self.eager[place]
            samples = _Samples(*own, moved[number], narrow[number], plain[place])
            is_judged = _is_judged(samples.eager)
            known = () if is_judged else (samples.moved, samples.narrow)
            doubt = Doubt(noisy, comparisons, chosen[number], expected, known)
            if not is_judged:
                yield Expected(*own, doubt=doubt)
                continue
            one = _expected(samples, self.rounding(samples.eager.dtype), self.sums)
            assert one.limits is not None
            loose = by_eager(self.graph, samples.eager)
            yield replace(one, doubt=doubt) if one.limits.is_rounding else loose

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
    """The references of the outputs of the graph, for these inputs. eager: the framework's
    outputs, where they are known. Raises Outside where an index that is computed from them lies
    outside."""
    return _Evaluations(graph, inputs, device, eager).all_expected()


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
        made.all_expected()
    return tuple(Reference(made, place) for place in range(len(made.eager)))


def by_eager(graph: Graph, eager: torch.Tensor) -> Expected:
    """The reference of an output where only eager's result is known: each element, and each slice,
    must be within a tolerance of it. Integers and booleans are exact."""
    dtypes = {getattr(torch, n.type.dtype) for n in graph.nodes if n.type} | {eager.dtype}
    least = max((TOLERANCE[d] for d in dtypes & TOLERANCE.keys()), default=0.0)
    if not eager.dtype.is_floating_point or not eager.numel():
        return Expected(eager, eager, by_eager=True)
    return Expected(eager, eager, loose(eager, _PEAK * least, least), by_eager=True)


def deepest(graph: Graph) -> int:
    """Elements that go into one result of the longest reduction; 0 where nothing is reduced."""
    reductions = (n for n in graph.nodes if isinstance(row(n), Reduction))
    return max((summed(n, graph) for n in reductions), default=0)


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
        bool(is_near_overflow(one).any() | ~torch.isfinite(kept).all())
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
