"""Attention whose heads share keys and values, without copies of these for each head.

A model traced with a mask repeats the keys and values of a group of heads for each of them, because
torch's attention takes fewer only without a mask. Where the mask is derived and gone the library's
kernel reads them as they are, as fast as copies of them (cuDNN's causal attention, bfloat16, on an
H100: 54 us with 8 x 14 heads of 1024 x 64 that share 2, 179 with 4 x 32 heads of 2048 x 64 that
share 8), and the copies are neither written nor read.
"""

from __future__ import annotations

import torch
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import value_of
from ..on_a_copy import rewritten_copy

__all__ = ["shared_heads"]

aten = torch.ops.aten

_CALLS = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
"""What takes fewer heads of keys than of queries. query, key and value are the first operands."""

_ALIGNED = 16
"""Bytes on which rows begin that are read in whole vectors."""

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def shared_heads(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional FX graph with such calls, or `gm` itself where there is none. `gm` is left as
    it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(node.target in _CALLS for node in gm.graph.nodes):
        return gm
    return rewritten_copy(gm, _shared, "heads keep keys of their own")


def _shared(graph: fx.Graph) -> bool:
    changed = False
    for node in graph.nodes:
        if node.target not in _CALLS:
            continue
        query, key, value, *rest = node.args
        keys, values = _unrepeated(key), _unrepeated(value)
        if keys is None or values is None or value_of(keys).shape != value_of(values).shape:
            continue
        if not all(_is_supported(value_of(query), value_of(each)) for each in (keys, values)):
            continue
        node.args = (query, keys, values, *rest)
        changed = True
    if changed:
        graph.eliminate_dead_code()
    return changed


def _is_supported(query: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether the libraries' kernels read them as they lie: batches alike, heads in whole groups,
    every row on 16 bytes, none spread over others."""
    steps = (keys.storage_offset(), *keys.stride()[:-1])
    return (
        query.dim() == keys.dim() == 4
        and query.shape[0] == keys.shape[0]
        and query.shape[1] % keys.shape[1] == 0
        and keys.stride(-1) == 1
        and 0 not in keys.stride()
        and all(step * keys.itemsize % _ALIGNED == 0 for step in steps)
    )


def _unrepeated(node: fx.node.Argument) -> fx.Node | None:
    """[batch, heads, length, size], of which a tensor repeats each head for its neighbours."""
    if not isinstance(node, fx.Node) or node.target not in _RESHAPES:
        return None
    below = node.args[0]
    if isinstance(below, fx.Node) and below.target is aten.clone.default:
        below = below.args[0]
    if not isinstance(below, fx.Node) or below.target is not aten.expand.default:
        return None
    row = below.args[0]
    if not isinstance(row, fx.Node) or row.target is not aten.unsqueeze.default:
        return None
    given, whole = row.args[0], value_of(node)
    spread, single = value_of(below), value_of(row)
    if not isinstance(given, fx.Node) or any(v is None for v in (whole, spread, single)):
        return None
    batch, heads, times, length, size = spread.shape if spread.dim() == 5 else (0,) * 5
    if not times or tuple(single.shape) != (batch, heads, 1, length, size):
        return None
    return given if tuple(whole.shape) == (batch, heads * times, length, size) else None
