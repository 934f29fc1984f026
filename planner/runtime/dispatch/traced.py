"""Asks Dynamo, while it compiles a frame, through which code the trace went."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from .plan_runners import Traced


def traced_by(output: Any) -> Traced | None:
    """output: Dynamo's OutputGraph. None where this torch does not tell."""
    try:
        whole = not output.compile_subgraph_reason.graph_break
        codes = tuple(output.tracing_context.traced_code)
        return Traced(codes, output.root_tx.f_code, whole and _is_pure(output.side_effects))
    except AttributeError:
        return None


def _is_pure(effects: Any) -> bool:
    """Whether nothing changes that was there before the frame. What the frame makes itself is part
    of its result, or gone."""
    for variable in effects.id_to_variable.values():
        new = isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew))
        if effects.is_modified(variable) and not new:
            return False
        if variable in effects.store_attr_mutations:
            return False
    return not (effects.tensor_hooks or effects.save_for_backward)
