"""`torch.compile(model, backend="planner")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from .api import compile_graph


def planner(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Runs each graph by its stored plan; `options` are those of `fusionplan.api.Options`."""
    return compile_graph(gm, example_inputs, mode=mode, options=options)
