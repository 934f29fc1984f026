"""From Dynamo's graph to ours: all that is imported only where no graph was opened before.

AOTAutograd is asked without the half of Inductor that torch's own door to it imports:
`torch._dynamo.backends.common.aot_autograd` imports Inductor's scheduler for a log that nobody has
asked for, in every process that compiles anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo import disable as _disable
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_module_simplified

from ..graph.graph import Numerics
from .attention_calls import attention_chosen
from .capture import Captured, Stage, capture, decompositions
from .decompositions.torchs_formulas import as_eager_computes
from .element_indices import elements_indexed
from .opened_layers import layers_opened
from .refused_types import has_refused_product
from .rewrites.rewrite import rewritten
from .saved_inputs import save_as_they_were
from .saving import RESULTS, partition
from .writes_in_place import keeps_writes

__all__ = [
    "RESULTS",
    "by_aot_autograd",
    "captured_of",
    "has_refused_product",
    "opened_by_aot_autograd",
    "save_as_they_were",
]

disable: Callable[[Any], Callable[..., Any]] = _disable
"""Keeps Dynamo from tracing a function."""


def opened_by_aot_autograd(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    numerics: Numerics,
    *,
    fw_compiler: Callable[..., Any],
    bw_compiler: Callable[..., Any],
    inference_compiler: Callable[..., Any],
) -> Callable[..., Any]:
    """What runs a graph of Dynamo's, each ATen graph of which one of the compilers is given."""
    return by_aot_autograd(
        attention_chosen(layers_opened(elements_indexed(gm), numerics), numerics),
        inputs,
        bw_compiler,
        fw_compiler=fw_compiler,
        inference_compiler=inference_compiler,
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=keeps_writes(inputs),
    )


def captured_of(gm: fx.GraphModule, stage: Stage, numerics: Numerics) -> Captured:
    """The graph of a static ATen graph. Raises PlanError, as `capture` does."""
    return capture(rewritten(gm, stage, numerics), numerics)


def by_aot_autograd(
    gm: fx.GraphModule, inputs: Sequence[Any], bw_compiler: Callable[..., Any], **given: Any
) -> Callable[..., Any]:
    """The result of `aot_autograd(bw_compiler=bw_compiler, **given)(gm, inputs)`, where torch's own
    formulas give what eager's kernels do."""
    with as_eager_computes():
        return _compiled(gm, inputs, bw_compiler, **given)


def _compiled(
    gm: fx.GraphModule, inputs: Sequence[Any], bw_compiler: Callable[..., Any], **given: Any
) -> Callable[..., Any]:
    nested = any(isinstance(x, (list, tuple, dict)) for x in inputs)
    if nested or os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        return aot_autograd(bw_compiler=bw_compiler, **given)(gm, inputs)

    def backward(*args: Any, **kwargs: Any) -> Any:
        # Dynamo traces neither the compiler, which may be asked for late, nor what it gives.
        return disable(disable(bw_compiler)(*args, **kwargs))

    counted = counters["aot_autograd"]
    counted["total"] += 1
    try:
        found = aot_module_simplified(gm, inputs, bw_compiler=backward, **given)
    except TensorifyScalarRestartAnalysis:  # Dynamo traces again
        raise
    except Exception:
        counted["not_ok"] += 1
        raise
    counted["ok"] += 1
    return disable(found)
