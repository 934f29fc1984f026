"""Attention with a mask that is made of little: the formula, whose kernel makes the mask itself.

A library's attention reads a number for each query and each key, and skips nothing. The mask of
padding is the same for every query, and that of padding with order keeps half of the keys: a kernel
of ours reads the few values that such a mask is made of, and leaves out tiles of which it keeps
nothing. A mask that is given as a whole, or that is computed from as much, stays with the library.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from ..attention_calls import formula
from ..capture import is_dynamic
from ..fx_nodes import is_pointwise, is_view, value_of
from ..on_a_copy import rewritten_copy
from ..traced_calls import arguments_of, only_result, put, traced

__all__ = ["open_masked_attention"]

aten = torch.ops.aten

_LARGEST_HEAD: dict[Any, int] = {
    aten._scaled_dot_product_cudnn_attention.default: 64,
    aten._scaled_dot_product_efficient_attention.default: 128,
}
"""By what takes a mask, the elements of a head up to which ours is faster. On an H200, bfloat16, a
mask of padding, us of the call by cuDNN, the call without cuDNN, and our kernel: 32 x 12 heads of
512 x 64 131, 311, 108; 16 x 16 of 384 x 64 59, 123, 43; 4 x 16 of 2048 x 128 417, 1095, 577."""

_SMALLER = 64
"""Times a mask is larger than each value that it is made of."""

_NARROW = (torch.bfloat16, torch.float16)


def open_masked_attention(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such attention opened, or `gm` itself where there is none. `gm`
    is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(node.target in _LARGEST_HEAD for node in gm.graph.nodes):
        return gm
    return rewritten_copy(gm, _open_all, "attention keeps its mask")


def _open_all(graph: fx.Graph) -> bool:
    changed = False
    graph.eliminate_dead_code()  # results that nobody reads
    for node in list(graph.nodes):
        if node.target in _LARGEST_HEAD:
            changed |= _open(node)
    graph.eliminate_dead_code()
    return changed


def _open(node: fx.Node) -> bool:
    """The formula in place of a call; False where the call stays."""
    given, result = arguments_of(node), only_result(node)
    if result is None or given["dropout_p"] or given["is_causal"] or given["attn_bias"] is None:
        return False
    operands = [given[name] for name in ("query", "key", "value", "attn_bias")]
    query, key, value, _ = (value_of(each) for each in operands)
    most = _LARGEST_HEAD[node.target]
    if query.dtype not in _NARROW or max(query.shape[-1], value.shape[-1]) > most:
        return False
    if query.shape[:2] != key.shape[:2] or not _is_made_of_little(operands[3]):
        return False
    scale = 1 / math.sqrt(query.shape[-1]) if given["scale"] is None else given["scale"]
    order = sorted(range(4), key=lambda d: -value_of(result).stride(d))

    def call(query: Any, key: Any, value: Any, mask: Any) -> Any:
        found = formula(query, key, value, mask, scale, False)
        laid = found.permute(order).clone(memory_format=torch.contiguous_format)
        return laid.permute([order.index(d) for d in range(4)])

    made = traced(call, operands)
    return made is not None and put(result, made, operands)


def _is_made_of_little(mask: fx.Node) -> bool:
    """Whether a mask is computed, element by element, from values that are much smaller."""
    most = value_of(mask).numel() // _SMALLER
    pending, seen = [mask], set[fx.Node]()
    while pending:
        node = pending.pop()
        value = value_of(node)
        if node in seen or (value is not None and value.numel() <= most):
            continue
        if value is None or not (is_pointwise(node) or is_view(node.target)):
            return False
        seen.add(node)
        pending += node.all_input_nodes
    return True
