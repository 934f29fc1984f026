"""The peers of a plan made from the user's own model: eager, and the modes of torch.compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .capture_model import Call, Model, Origin, Part
from .measure import Call as Run
from .peers import EAGER

MODES = ("default", "max-autotune-no-cudagraphs", "max-autotune")
"""Of torch.compile, the quickest to compile first."""

TRAINING_MODES = ("default", "max-autotune-no-cudagraphs")
"""Without CUDA graphs, which reuse the memory that a backward pass run again still reads."""


def model_peers(model: Model, call: Call, modes: bool) -> dict[str, Run]:
    """Calls of the whole model by name; modes: those of torch.compile too. To be called under
    no_grad, as the plan was captured."""

    def run(compiled: Model) -> Run:
        return lambda: call.run(compiled)

    return {EAGER: run(model)} | {m: run(_compiled(model, m)) for m in MODES if modes}


def part_peers(part: Part, modes: bool) -> dict[str, Run] | None:
    """Calls of one graph of a model that has several: the graph as Dynamo took it from the model,
    by itself. None where that is not at hand."""
    origin = part.origin
    if origin is None:
        return None
    if part.stage == "inference":
        return model_peers(origin.gm, Call(origin.inputs), modes)
    make = _forward if part.stage == "forward" else _backward
    peers = {EAGER: make(origin.gm, origin)}
    return peers | {m: make(_compiled(origin.gm, m), origin) for m in TRAINING_MODES if modes}


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
    """The backward pass alone, again and again over one forward pass."""
    leaves = [x for x in origin.inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    held: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []

    def run() -> object:
        # A compiled graph may otherwise give away what the next run needs.
        with torch.enable_grad(), torch._functorch.config.patch(donated_buffer=False):
            if not held:
                outputs = [t for t in _tensors(model(*origin.inputs)) if t.requires_grad]
                held.append((outputs, [torch.ones_like(t) for t in outputs]))
            results, ones = held[0]
            return torch.autograd.grad(results, leaves, ones, retain_graph=True, allow_unused=True)

    return run


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]
