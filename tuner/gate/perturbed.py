"""A graph in float64 whose operations err at random, as those of a real run do.

Each such evaluation is one more sample of what rounding alone can make of the outputs. What
rounding cannot change, it leaves as it is: a copy, a comparison of inputs, a product of two
numbers that fits its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from ...planner.costs.depthwise import taps_of
from ...planner.graph.graph import Graph, Node, refs
from ...planner.graph.ops import (
    PROD,
    SUM,
    Cast,
    Contraction,
    Cumulative,
    Depthwise,
    Pointwise,
    Reduction,
    Row,
    bound,
    row,
)
from ..trial.evaluate import Evaluator, has_effects, seeded
from .slices import CONDITION

_SUMMING = (SUM, PROD)
"""Reductions that round; the others choose one of their operands."""

_EXPONENT = 0x7FF << 52
"""The bits of a float64 that say between which powers of two it lies."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The errors that are put on the results of operations. narrow: each result is rounded to its
    own type, else to float32 where it has 16 bits: kernels may hold it so. mixed: one or the other,
    of each operation by chance: a kernel rounds what a product reads, and holds the rest. times:
    more than rounding does. extreme: each error is as large as it may be, one way or the other.
    sign: -1 for the same errors the other way round. Equal seeds give equal errors."""

    narrow: bool
    seed: int = 1
    times: float = 1.0
    extreme: bool = False
    sign: int = 1
    mixed: bool = False


class Disturbed(Evaluator):
    """As `Evaluator` with wide=torch.float64, and errors at every operation that can have them.

    The operands of a sum, a matmul or a function are wrong by up to one unit in the last place of
    float32, at random; the result of a sum of n by sqrt(n) / CONDITION units, which times CONDITION
    is the random walk of its rounding. The result is rounded, up or down at random, to the type
    that it has in the graph.
    """

    def __init__(self, graph: Graph, device: torch.device, noise: Noise) -> None:
        super().__init__(graph, device, wide=torch.float64, within=True)
        self.noise = noise
        self._generator = torch.Generator(device=device)
        self._narrow = noise.narrow
        """Of the operation at hand."""
        self._rows: dict[int, Row | None] = {n.id: row(n) for n in graph.nodes}
        self._types = {n.id: _float(n.type.dtype) for n in graph.nodes if n.type is not None}
        self._parts = _parts(graph)
        self._walk = {n.id: max(1.0, math.sqrt(summed(n, graph)) / CONDITION) for n in graph.nodes}

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        self._generator.manual_seed(self.noise.seed)
        return super().__call__(*inputs)

    def apply(
        self, node: int, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """The operation's result, with errors."""
        if self.noise.mixed:
            self._narrow = self.noise.narrow and Random(f"{self.noise.seed} {node}").random() < 0.5
        kind, dtype = self._rows[node], self._types.get(node)
        if node in self._parts:
            return self._opaque(self._parts[node], function, args, named)
        if dtype is None:  # integers, booleans
            return function(*args, **named)
        if isinstance(kind, (Pointwise, Cast)):
            return self._pointwise(dtype, function, args, named)
        summing = isinstance(kind, Reduction) and kind.monoid in _SUMMING
        if isinstance(kind, (Contraction, Depthwise)) or summing:
            result = function(*self._noisy(args, dtype), **self._noisy(named, dtype))
            return self._rounded(self._noisy(result, dtype, self._walk[node]), dtype)
        if kind is None or isinstance(kind, Cumulative):
            return self._opaque({-1: dtype}, function, args, named)
        return function(*args, **named)

    def _pointwise(
        self,
        dtype: torch.dtype,
        function: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        result = function(*args, **named)
        fits = self._fits(result, dtype)
        if bool(fits.all()):
            return result
        moved = function(*self._noisy(args, dtype), **self._noisy(named, dtype))
        return self._rounded(torch.where(fits, result, moved), dtype)

    def _opaque(
        self,
        dtypes: Mapping[int, torch.dtype],
        function: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        """One without a row, of one result or of several. Where all that it gives are numbers of
        the type it has, it chose among its operands, as a sort does."""
        result = function(*args, **named)
        # It must not be called twice.
        if has_effects(function) or not isinstance(result, (torch.Tensor, tuple, list)):
            return result
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        kinds = {place % len(results): dtype for place, dtype in dtypes.items()}
        fits = {place: self._fits(results[place], dtype) for place, dtype in kinds.items()}
        if all(bool(each.all()) for each in fits.values()):
            return result
        least = min(kinds.values(), key=lambda dtype: torch.finfo(dtype).eps)
        moved = function(*self._noisy(args, least), **self._noisy(named, least))
        found = [moved] if isinstance(moved, torch.Tensor) else list(moved)
        for place, dtype in kinds.items():
            kept = torch.where(fits[place], results[place], found[place])
            found[place] = self._rounded(kept, dtype)
        return found[0] if isinstance(moved, torch.Tensor) else found

    def _fits(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Elements that are numbers of the type, or NaN, so that nothing has to be rounded."""
        kept = value.to(self._precision(dtype)).to(value.dtype)
        return (kept == value) | (value != value)

    def _precision(self, dtype: torch.dtype) -> torch.dtype:
        if dtype is torch.float64 or self._narrow:
            return dtype
        return torch.float32

    def _rounded(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The value, rounded up or down at random where it is no number of the type."""
        to = self._precision(dtype)
        if to is torch.float64:
            noisy: torch.Tensor = self._noisy(value, to)
            return noisy
        # Half a unit in the last place: from so far below, rounding to nearest may go up.
        wide = value.double()
        power = (wide.view(torch.int64) & _EXPONENT).view(torch.float64)
        above = self._uniform(wide, torch.finfo(to).eps / 2).mul_(power)
        del power  # Of logits each of these takes gigabytes.
        above.add_(wide)
        above.copy_(above.to(to))
        return torch.where(self._fits(value, dtype), value, above.to(value.dtype))

    def _noisy(self, value: Any, dtype: torch.dtype, units: float = 1.0) -> Any:
        """A value, or arguments, with every float wrong by up to so many units in its last
        place."""
        if isinstance(value, Mapping):
            return {k: self._noisy(v, dtype) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._noisy(v, dtype) for v in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        eps = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
        return self._uniform(value, units * eps).add_(1).mul_(value)

    def _uniform(self, like: torch.Tensor, most: float) -> torch.Tensor:
        """From -most to most, times what is asked for."""
        found = torch.empty_like(like, dtype=torch.float64)
        most *= self.noise.times
        if self.noise.extreme:
            found.uniform_(-1, 1, generator=self._generator).sign_().mul_(most)
        else:
            found.uniform_(-most, most, generator=self._generator)
        return found if self.noise.sign > 0 else found.neg_()


def disturbed(
    graph: Graph, inputs: Sequence[torch.Tensor], device: torch.device, noise: Noise
) -> list[torch.Tensor]:
    """The outputs of the graph with errors (see `Disturbed`), in float64."""
    with seeded(device):
        return Disturbed(graph, device, noise)(*inputs)


def summed(node: Node, graph: Graph) -> int:
    """Elements that go into one result of a sum, a matmul or another reduction; else 0."""
    kind = row(node)
    if isinstance(kind, Contraction):
        left = next(iter(refs(bound(node)[kind.left])))
        operand = graph.nodes[left].type
        return operand.shape[-1] if operand else 0
    if isinstance(kind, Depthwise):
        return taps_of(graph, node.id)
    source = graph.nodes[node.inputs[0]].type if isinstance(kind, Reduction) else None
    if source is None or node.type is None or not node.type.numel:
        return 0
    return source.numel // node.type.numel


def _parts(graph: Graph) -> dict[int, dict[int, torch.dtype]]:
    """By node with several results, the types of those that are floats, by place."""
    found: dict[int, dict[int, torch.dtype]] = {}
    for node in graph.nodes:
        if "getitem" in node.op and node.inputs and isinstance(node.args[1], int):
            dtype = _float(node.type.dtype) if node.type is not None else None
            places = found.setdefault(node.inputs[0], {})
            if dtype is not None:
                places[node.args[1]] = dtype
    return {node: places for node, places in found.items() if _is_opaque(graph.nodes[node])}


def _is_opaque(node: Node) -> bool:
    return node.type is None and bool(node.inputs)


def _float(name: str) -> torch.dtype | None:
    dtype = getattr(torch, name)
    return dtype if dtype.is_floating_point else None
