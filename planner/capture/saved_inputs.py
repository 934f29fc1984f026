"""Inputs that a graph writes to and saves for its backward pass are saved as they were.

AOTAutograd lets a graph compute what an input will hold, and copies it there at the end of the
graph or behind it. If the graph has saved the input itself, or a view of it, the backward pass
would read what was copied, and autograd refuses it. Eager keeps a copy then (`x.abs_()`,
`x.mul_(y)`), and so does the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

aten = torch.ops.aten


def save_as_they_were(forward: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Copies, in a forward graph that AOTAutograd has just cut, those of the saved values that lie
    in the memory of inputs to which the whole of it writes."""
    written = _written(forward.graph)
    output = next(n for n in reversed(forward.graph.nodes) if n.op == "output")
    results = list(output.args[0])
    found = False
    for place, node in enumerate(results[num_fwd_outputs:], num_fwd_outputs):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or _memory(value) not in written:
            continue
        with forward.graph.inserting_before(_behind(node)):
            copy = forward.graph.call_function(aten.clone.default, (node,))
        copy.meta = {**node.meta, "val": value.clone()}
        results[place], found = copy, True
    if found:
        output.args = (tuple(results),)
        forward.recompile()


def _behind(node: fx.Node) -> fx.Node:
    """The first operation after a value: before any that writes to its memory."""
    found = node.next
    while found.op == "placeholder":
        found = found.next
    return found


def _written(graph: fx.Graph) -> set[Any]:
    """The memory of the inputs that are written to."""
    context = TracingContext.try_get()
    known = None if context is None else context.fw_metadata
    inputs = [n for n in graph.nodes if n.op == "placeholder" and "primals" in str(n.target)]
    if known is None or len(known.input_info) != len(inputs):
        return set()
    values = [
        node.meta.get("val")
        for node, of in zip(inputs, known.input_info, strict=True)
        if of.mutates_data
    ]
    return {_memory(value) for value in values if isinstance(value, torch.Tensor)}


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
