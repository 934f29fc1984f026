"""The peers of a plan made from the user's own model: eager, and the modes of torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from ..planner.graph.graph import Graph
from ..planner.graph.ops import is_compute
from .capture_model import Call, Model, Origin, Part
from .measure import Call as Run
from .peers import EAGER

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
"""Of torch.compile, the quickest to compile first."""

LARGE = 200
"""Operations of a graph from which on launches alone decide between a mode and its twin with CUDA
graphs: the slower of the two to compile is then timed as the latter only, and of a training step
both are."""

TRAINING_MODES = ("default", "max-autotune-no-cudagraphs")
"""Of a graph of training: without CUDA graphs, which reuse the memory that a backward pass run
again still reads. A whole step is timed with them, too; where one of its graphs is large nothing
but that."""

_STATISTICS = 1 << 20
"""Most bytes of a tensor of statistics that a model keeps while it learns."""

WITH_GRAPHS = {"default": "reduce-overhead", "max-autotune-no-cudagraphs": "max-autotune"}
"""The mode with the same kernels in CUDA graphs."""


def modes_for(graph: Graph) -> tuple[str, ...]:
    """The modes of torch.compile that an inference graph is compared with."""
    large = _is_large(graph)
    return tuple(m for m in MODES if not (large and m == "max-autotune-no-cudagraphs"))


def training_modes_for(step: Sequence[Graph]) -> tuple[str, ...]:
    """The modes of torch.compile that each graph of a training step is compared with by itself: a
    mode counts only where it ran all of them."""
    return () if any(map(_is_large, step)) else TRAINING_MODES


def _is_large(graph: Graph) -> bool:
    return sum(map(is_compute, graph.nodes)) >= LARGE


def model_peers(model: Model, call: Call, modes: Sequence[str]) -> dict[str, Run]:
    """Calls of the whole model by name: eager, and modes of torch.compile. To be called under
    no_grad, as the plan was captured."""

    def run(compiled: Model) -> Run:
        return lambda: call.run(compiled)

    return {EAGER: run(model)} | {m: run(_compiled(model, m)) for m in modes}


def part_peers(part: Part, modes: bool, step: Sequence[Graph] = ()) -> dict[str, Run] | None:
    """Calls of one graph of a model that has several: the graph as Dynamo took it from the model,
    by itself. step: the graphs of its training step. None where the model's is not at hand."""
    origin = part.origin
    if origin is None:
        return None
    if part.stage == "inference":
        given = modes_for(part.captured.graph) if modes else ()
        return model_peers(origin.gm, Call(origin.inputs), given)
    make = _forward if part.stage == "forward" else _backward
    peers = {EAGER: make(origin.gm, origin)}
    names = training_modes_for(step) if modes else ()
    return peers | {m: make(_graph_compiled(origin, m), origin) for m in names}


def in_order(gm: fx.GraphModule) -> Model:
    """A graph from Dynamo, to be traced by it once more into the same graph: Dynamo numbers inputs
    as it meets them, and in the user's code a shape or a type may have been asked for first."""
    # Else its code is made in its first call, into which Dynamo does not look.
    _LazyGraphModule.force_recompile(gm)

    def run(*inputs: Any) -> Any:
        for each in inputs:
            if isinstance(each, torch.Tensor):
                each.dim()
        return gm(*inputs)

    # Of one code Dynamo compiles a few graphs and runs all others eagerly.
    run.__code__ = run.__code__.replace()
    return run


def step_of(model: Model, origin: Origin) -> Run:
    """A whole training step of a graph: forward and backward pass, its gradients let go of."""

    def run() -> object:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.enable_grad():
            outputs = [t for t in _tensors(model(*origin.inputs)) if t.requires_grad]
            ones = [torch.ones_like(t) for t in outputs]
            return torch.autograd.grad(outputs, _leaves(origin), ones, allow_unused=True)

    return run


def step_by(origin: Origin, mode: str) -> Run:
    """The same by torch.compile in this mode."""
    return step_of(_compiled(origin.gm, mode), origin)


def _graph_compiled(origin: Origin, mode: str) -> Model:
    """Once for the forward and the backward graph."""
    if mode not in origin.compiled:
        origin.compiled[mode] = _compiled(origin.gm, mode)
    return origin.compiled[mode]


def _compiled(model: Model, mode: str) -> Model:
    # torch.compile itself does nothing before the first call.
    compiled: Model = torch.compile(model, mode=mode, dynamic=False)
    return compiled


def _forward(model: Model, origin: Origin) -> Run:
    def run() -> object:
        with torch.enable_grad():
            return model(*origin.inputs)

    return run


def _backward(model: Model, origin: Origin) -> Run:
    """The backward pass alone, again and again over one forward pass, which has statistics of its
    own: other peers' forward passes write into the model's, and autograd forbids that."""
    leaves = _leaves(origin)
    inputs = [x.clone() if _may_be_statistics(x) else x for x in origin.inputs]
    held: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []

    def run() -> object:
        # A compiled graph may otherwise give away what the next run needs.
        with torch.enable_grad(), torch._functorch.config.patch(donated_buffer=False):
            if not held:
                outputs = [t for t in _tensors(model(*inputs)) if t.requires_grad]
                held.append((outputs, [torch.ones_like(t) for t in outputs]))
            results, ones = held[0]
            return torch.autograd.grad(results, leaves, ones, retain_graph=True, allow_unused=True)

    return run


def _may_be_statistics(value: Any) -> bool:
    """Running means and the like, which a forward pass may write."""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and not value.requires_grad and value.nbytes <= _STATISTICS


def _leaves(origin: Origin) -> list[torch.Tensor]:
    return [x for x in origin.inputs if isinstance(x, torch.Tensor) and x.requires_grad]


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]
