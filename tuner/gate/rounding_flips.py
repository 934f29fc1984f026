"""Other integers and booleans that rounding alone can make of an output.

A comparison of two floats, the place of the largest of several, a float cut to an integer: each
falls on the other side where the floats that decide are nearer than they may err. That is found
out only where an element differs, by what the same graph gives with errors as large as the
accuracy rule allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...planner.errors import PlanError
from ...planner.graph.graph import Graph, Node
from ...planner.graph.op import Op
from ...planner.graph.ops import EXTREMUM_PLACES, MAX, MIN, PLACES, Reduction, bound, op_of, row
from .comparisons import Comparisons, margin
from .noisy_outputs import NoisyOutputs
from .perturbed import Noise
from .slices import CONDITION, FACTOR

_SAMPLES, _PATIENCE = 96, 16
"""Evaluations with errors, at most, and how many of them in a row may explain nothing more. Every
second has the errors of the one before it the other way round."""

_KEPT = 1 << 26
"""Bytes of their results that are kept for the next candidate."""

_RARE = 2.0**-18
"""Of all elements, those that compare floats as near to each other as both may err, and are taken
for right though no evaluation explains them: T5-small's step saves masks of a million elements, and
one of them was such. Elsewhere as many may differ from float64 as eager's do, twice: of a million
masks in bfloat16 those are thousands, and to find evaluations that explain each took minutes."""

_EXTREMES = (MAX, MIN)


@dataclass(slots=True)
class Doubt:
    """The values that one output of a graph may have, for given inputs. noisy, comparisons: what
    all outputs share. known: what two other evaluations with errors gave. expected:
    `reference.expected`, for the floats that decide."""

    noisy: NoisyOutputs
    comparisons: Comparisons
    output: int
    expected: Callable[..., Sequence[Any]]
    known: Sequence[torch.Tensor] = ()
    slices: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Slices of evaluations, by the number of each, with the numbers of the slices; see
    `more_samples`."""
    _more: list[torch.Tensor] = field(default_factory=list)

    def unjustified(
        self, wrong: torch.Tensor, got: torch.Tensor, value: torch.Tensor, eager: torch.Tensor
    ) -> torch.Tensor:
        """Those of the elements marked that no rounding explains."""
        places = self._is_place
        reach = torch.zeros_like(value) if got.dtype is not torch.bool and not places else None
        rare, flips = int(_RARE * wrong.numel()), 0
        for sample in (eager, *self.known):
            wrong = wrong & (got != sample)
            flips = max(flips, int((sample != value).sum()))
            if reach is not None:
                reach = torch.maximum(reach, (sample - value).abs())
        wrong = self._chosen(wrong, got, value)
        if int((got != value).sum()) <= FACTOR * flips + rare:
            wrong = self._without_near(wrong)
        left, since = wrong.numel() + 1, 0
        for number in range(_SAMPLES):
            count = int(wrong.sum())
            since = since + 1 if count == left else 0
            if count == 0 or since == _PATIENCE:
                break
            left, sample = count, self._sample(number)
            wrong = wrong & (got != sample)
            if reach is not None:
                reach = torch.maximum(reach, (sample - value).abs())
                wrong = wrong & ((got - value).abs() > FACTOR * reach)
        return self._without_near(wrong) if int(wrong.sum()) <= rare else wrong

    def _without_near(self, wrong: torch.Tensor) -> torch.Tensor:
        """Without comparisons of floats that are as near to each other as both may err."""
        if not bool(wrong.any()):
            return wrong
        near = self.comparisons.near(self.output)
        return wrong if near is None or near.shape != wrong.shape else wrong & ~near

    def _sample(self, number: int) -> torch.Tensor:
        """The output with errors as large as are allowed."""
        if number < len(self._more):
            return self._more[number]
        pair, other = divmod(number, 2)
        narrow = pair % 2 == 0
        times, sign = (FACTOR if narrow else CONDITION), (-1 if other else 1)
        found = self.evaluated(Noise(narrow, 100 + pair, times, extreme=True, sign=sign))
        if number == len(self._more) and found.nbytes * (number + 1) <= _KEPT:
            self._more.append(found)
        return found

    def evaluated(self, noise: Noise) -> torch.Tensor:
        """The output with such errors."""
        return self.noisy.output(self.output, noise)

    @property
    def graph(self) -> Graph:
        return self.noisy.graph

    @property
    def _is_place(self) -> bool:
        """Whether a choice among elements made the output."""
        return any(
            op_of(node) is Op.BITCAST or node.op in PLACES
            for node in _whole(self.graph, self.output)
        )

    def _chosen(self, wrong: torch.Tensor, got: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Without places of elements that are as near to the largest (or smallest) as both may
        err."""
        found = _chooser(self.graph, self.output)
        if found is None or not bool(wrong.any()):
            return wrong
        source, dims = found
        try:
            only = Graph(self.graph.nodes, (source,))
            (of,) = self.expected(only, self.noisy.inputs, self.noisy.device)
        except (torch.OutOfMemoryError, PlanError):
            return wrong
        if of.limits is None:
            return wrong
        true = _rows(of.value.double(), dims)
        margins = _rows(margin(of.limits, of.value.double()), dims)
        inside = (got >= 0) & (got < true.shape[1])
        index, best = torch.where(inside, got, 0).reshape(-1, 1), value.reshape(-1, 1)
        if len(index) != len(true) or bool((best < 0).any() | (best >= true.shape[1]).any()):
            return wrong
        ours, theirs = true.gather(1, index.long()), true.gather(1, best.long())
        extreme = (theirs == true.amax(1, True)) | (theirs == true.amin(1, True))
        slack = margins.gather(1, index.long()) + margins.gather(1, best.long())
        near = (extreme & ((ours - theirs).abs() <= slack)).reshape(got.shape)
        return wrong & ~(near & inside)


def _whole(graph: Graph, output: int) -> list[Node]:
    """The integers and booleans that an output is computed from, the last first."""
    made, found = {output}, []
    for node in reversed(graph.nodes):
        if node.id in made and not (node.type is not None and "float" in node.type.dtype):
            found.append(node)
            made.update(node.inputs)
    return found


def _chooser(graph: Graph, output: int) -> tuple[int, tuple[int, ...]] | None:
    """The floats of whose largest or smallest an output is the place, and the dimensions along
    which it is looked for; None where it is something else. Capture makes such a place of the bits
    of the floats, the index beside them (see `capture.losses`)."""
    behind = _whole(graph, output)
    folds = [n for n in behind if isinstance(k := row(n), Reduction) and k.monoid in _EXTREMES]
    opaque = [n for n in behind if n.op in EXTREMUM_PLACES]
    bits = [n for n in behind if op_of(n) is Op.BITCAST]
    if len(bits) == 1 and len(folds) == 1:
        source, named = graph.nodes[bits[0].inputs[0]], bound(folds[0])
        operand = graph.nodes[folds[0].inputs[0]].type
    elif len(opaque) == 1 and not bits:
        source, named = graph.nodes[opaque[0].inputs[0]], bound(opaque[0])
        operand = source.type
    else:
        return None
    if source.type is None or operand is None or source.type.shape != operand.shape:
        return None
    dim = named.get("dim")
    each = dim if isinstance(dim, tuple) else (dim,) if isinstance(dim, int) else ()
    count = len(operand.shape)
    chosen = tuple(d % count for d in each if isinstance(d, int))
    return source.id, chosen or tuple(range(count))


def _rows(value: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Everything along some dimensions as one row for each place in the others."""
    others = [d for d in range(value.ndim) if d not in dims]
    kept = math.prod(value.shape[d] for d in others)
    return value.permute(*others, *dims).reshape(kept, -1)
