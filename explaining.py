"""`fusionplan.explain`: the plan that the cost model makes of a model, with its reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .planner.covers.cover import modelled_plan
from .planner.explain_plan import explain_plan
from .planner.explanation import Explanation
from .planner.graph.graph import Numerics
from .tuner.capture.capture_model import CallArguments, capture_model
from .tuner.session.place import place_of


def explain(
    model: Callable[..., Any],
    example_inputs: Any,
    *,
    device: str | torch.device | None = None,
    target: str | None = None,
    training: bool = False,
    dynamic: bool = False,
    numerics: Numerics = "fast",
    kernels: bool = False,
) -> list[Explanation]:
    """Explain the cost model's plan of each graph of the model. Nothing is measured or stored.

    An explanation has the groups with their kernels, the predicted cost of each (seconds, bytes,
    registers), and why neighbouring groups are not one kernel. They are given as to `tune`.
    With no CUDA device the plan is for an H200, or for the GPU that `target` names. kernels: with
    the text of each generated kernel.

    Raises ModelError where the model fails or cannot be captured, and DeviceError for an unknown
    device or target.
    """
    place = place_of(device, target)
    captured = capture_model(
        model,
        CallArguments.of(example_inputs),
        training=training,
        dynamic=dynamic,
        numerics=numerics,
    )
    graphs = (part.captured.graph for part in captured.parts)
    profile = place.profile
    return [
        explain_plan(graph, modelled_plan(graph, profile), profile, texts=kernels)
        for graph in graphs
    ]
