"""Whether a whole plan computes what its graph does: the gate before it is compared with others.

`case` runs the graph as it was captured, operation by operation; `fault` says why a way to run it
differs from that by more than rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..planner.capture.capture import Captured
from ..planner.errors import FusionplanError
from ..planner.graph.graph import Graph
from .evaluate import evaluate

Run = Callable[..., Sequence[Any]]

_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
"""Root mean square of the difference from eager, relative. Each kernel was checked strictly by
itself: this is to find a wire crossed between them, and float32 allows for TF32."""

_TRUSTED = 0.3
"""Eager's own error, relative: with more, what float64 computes is taken for something else. Means
of what nearly cancels, which a norm saves for its gradient, stray by a tenth in deep models."""

_ASIDE = 0.1
"""What a plan may err more than eager: half as much is a wire crossed."""

_VANISHING = 0.05
"""Of the size of eager's result: truth below it is nothing to eager but rounding. Such is the
gradient of a bias of keys, which no softmax sees."""


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, its inputs, and the outputs that eager gives for them."""

    captured: Captured
    inputs: Sequence[Any]
    eager: Sequence[Any]


def case(captured: Captured, inputs: Sequence[Any]) -> Case:
    """Runs the graph as it was captured."""
    torch.manual_seed(0)
    with torch.no_grad():
        return Case(captured, inputs, list(captured.gm(*inputs)))


def fault(run: Run, given: Case) -> str | None:
    """Why a call does not compute what the graph does, or None. Where eager itself strays, a
    result that is at least as near to float64 is right too."""
    torch.manual_seed(0)
    found = run(*given.inputs)
    graph = given.captured.graph
    states = _states(graph)
    found, eager = [
        [None if place in states else value for place, value in enumerate(values)]
        for values in (found, given.eager)
    ]
    reason = differs(found, eager, _rounding(graph))
    if reason is None or _is_nearer(found, eager, given):
        return None
    return reason


def _states(graph: Graph) -> set[int]:
    """Outputs, by place, that are the state of an attention's random numbers: without dropout
    nobody reads or writes them, and what lies in that memory is chance."""
    found = set()
    for place, output in enumerate(graph.outputs):
        node = graph.nodes[output] if output is not None else None
        if node is None or node.type is None or "float" in node.type.dtype or not node.inputs:
            continue
        if "getitem" in node.op and "attention" in graph.nodes[node.inputs[0]].op:
            found.add(place)
    return found


def _is_nearer(found: Sequence[Any], eager: Sequence[Any], given: Case) -> bool:
    graph = given.captured.graph
    try:
        torch.manual_seed(0)
        truth = evaluate(graph, given.inputs, given.captured.device, wide=torch.float64)
    except (FusionplanError, RuntimeError):  # a constant of the model, or no memory for it
        return False
    places = [i for i, o in enumerate(graph.outputs) if o is not None]
    least = _rounding(graph)
    for place, exact in zip(places, truth, strict=True):
        got, own = found[place], eager[place]
        if differs([got], [own], least) is None:
            continue
        if not isinstance(own, torch.Tensor) or not own.dtype.is_floating_point:
            return False
        if got.dtype != own.dtype or not got.shape == own.shape == exact.shape:
            return False
        if not _is_as_near(got.double(), own.double(), exact, _TOLERANCE.get(own.dtype, 0.1)):
            return False
    return True


def _is_as_near(
    got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, tolerance: float
) -> bool:
    """Whether a result is about as near to float64 as eager's own."""
    size = float(own.norm())
    if math.isfinite(size) and float(exact.norm()) <= _VANISHING * size:
        return float((got - exact).norm()) <= 2 * float((own - exact).norm())
    error = _error(own, exact)
    limit = max(min(2 * error, error + _ASIDE), tolerance)
    return error <= _TRUSTED and _error(got, exact) <= limit


def _error(a: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square, relative; NaN where one of them is NaN or infinite."""
    scale = max(float(exact.norm()), 1e-30)
    return float((a - exact).norm()) / scale


def _rounding(graph: Graph) -> float:
    """The tolerance of the shortest float in a graph: eager has rounded to it on its way even to an
    output in float32, such as the row maxima of scores in bfloat16, where a kernel need not."""
    found = {getattr(torch, node.type.dtype) for node in graph.nodes if node.type}
    return max((_TOLERANCE[dtype] for dtype in found & _TOLERANCE.keys()), default=0.0)


def differs(actual: Sequence[Any], wanted: Sequence[Any], least: float = 0.0) -> str | None:
    """Why the outputs of a whole graph are not those of eager, or None. least: the tolerance that
    every output has at least."""
    if len(actual) != len(wanted):
        return f"{len(actual)} outputs instead of {len(wanted)}"
    for index, (got, want) in enumerate(zip(actual, wanted, strict=True)):
        if not isinstance(want, torch.Tensor):
            if got != want:
                return f"output {index} is {got!r}, not {want!r}"
            continue
        reason = _differs(got, want, least)
        if reason is not None:
            return f"output {index}: {reason}"
    return None


def _differs(got: torch.Tensor, want: torch.Tensor, least: float) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
    if want.numel() == 0:
        return None
    if not want.dtype.is_floating_point:
        share = float((got != want).double().mean())
        # Which of two nearly equal numbers is the larger is a matter of rounding.
        most = 1e-3 if least < _TOLERANCE[torch.float16] else 0.5
        return f"{share:.2%} of its elements differ from eager's" if share > most else None
    a, b = got.double(), want.double()
    if bool((torch.isnan(a) & ~torch.isnan(b)).any()):
        return "NaN where eager has none"
    both = torch.isfinite(a) & torch.isfinite(b)
    a, b = torch.where(both, a, 0.0), torch.where(both, b, 0.0)
    scale = float(b.norm()) / math.sqrt(b.numel())
    error = float((a - b).norm()) / math.sqrt(b.numel())
    limit = max(least, _TOLERANCE.get(want.dtype, 0.1)) * max(scale, 1e-30)
    return f"differs from eager by {error:.3g} of {scale:.3g}" if error > limit else None
