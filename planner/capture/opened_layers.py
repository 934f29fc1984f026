"""Layers that torch runs as one operation in inference, opened in a graph from Dynamo.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call an operation of their own where no
gradient is asked for. Nothing around it can be fused with what is in it, and with a mask it stores
the scores of all heads. Written out, attention is a library's kernel or ours, and norms, sums and
activations belong to the kernels beside them. `nn.EmbeddingBag` of bags of one size is a lookup
and a sum, which share a kernel with what reads them.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ..graph.graph import Numerics
from .attention_calls import attention, formula
from .on_a_copy import dynamo_copy

__all__ = ["encoder_layer", "equal_bags", "layers_opened", "multi_head", "self_attention"]

log = logging.getLogger(__name__)

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def layers_opened(gm: fx.GraphModule, numerics: Numerics) -> fx.GraphModule:
    """The Dynamo graph with such calls opened, or `gm` itself where there is none. `gm` is left as
    it is. With the numerics of eager all calls stay."""
    if numerics == "eager" or not isinstance(gm, fx.GraphModule):  # AOTAutograd takes any module
        return gm
    try:
        calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _LAYERS]
        opened = {n: _LAYERS[n.target][0] for n in calls if _LAYERS[n.target][1](n)}
        if not opened:
            return gm
        found, copies = dynamo_copy(gm)
    except Exception:  # whatever the metadata of the user's operations raises, the model must run
        log.debug("layers stay as they are", exc_info=True)
        return gm
    for node, function in opened.items():
        copies[node].target = function
    found.recompile()
    return found


# --- attention ---


def encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """`torch._transformer_encoder_layer_fwd`. rest: weights of both norms, and of the two products
    between which the activation stands, each with its bias; then the mask and its type, where they
    are given by position."""
    norms, products, last = rest[:4], rest[4:8], (*rest[8:], mask, mask_type)[:2]

    def norm(y: torch.Tensor, place: int) -> torch.Tensor:
        weight, bias = norms[2 * place : 2 * place + 2]
        return F.layer_norm(y, (y.shape[-1],), weight, bias, eps)

    def attended(y: torch.Tensor) -> torch.Tensor:
        own = (qkv_weight, qkv_bias, out_weight, out_bias)
        return self_attention(y, y, y, width, heads, *own, last[0], False, mask_type=last[1])[0]

    def fed_forward(y: torch.Tensor) -> torch.Tensor:
        inner = F.linear(y, *products[:2])
        # On a GPU the operation has GELU by tanh.
        kind = "none" if y.device.type == "cpu" else "tanh"
        inner = F.gelu(inner, approximate=kind) if use_gelu else torch.relu(inner)
        return F.linear(inner, *products[2:])

    if norm_first:
        x = x + attended(norm(x, 0))
        return x + fed_forward(norm(x, 1))
    x = norm(x + attended(x), 0)
    return norm(x + fed_forward(x), 1)


def self_attention(
    query: torch.Tensor,
    _key: torch.Tensor,
    _value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`torch._native_multi_head_attention` of a tensor with itself. A mask is not 0 where a key is
    hidden; a query that sees none gives NaN."""
    batch, length, _ = query.shape
    parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    q, k, v = (each.view(batch, length, heads, -1).transpose(1, 2) for each in parts)
    weights = None
    if mask is None and not need_weights:
        found = attention(q, k, v)
    else:
        scale, added = 1 / math.sqrt(width // heads), _added(mask, mask_type, q)
        found = formula(q, k, v, added, scale, True)
        if need_weights:
            scores = torch.matmul(q.float(), k.float().transpose(-2, -1)) * scale
            weights = torch.softmax(scores if added is None else scores + added, -1).to(q.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
    joined = found.transpose(1, 2).reshape(batch, length, width)
    return F.linear(joined, out_weight, out_bias), weights


def _added(
    mask: torch.Tensor | None, mask_type: int | None, query: torch.Tensor
) -> torch.Tensor | None:
    """What is added to the scores: -inf where a key is hidden. mask_type: 0 of a mask over queries
    and keys, 1 over sequences and keys, 2 over all dimensions."""
    if mask is None:
        return None
    if mask_type == 0:
        mask = mask[None, None]
    elif mask_type == 1:
        mask = mask[:, None, None]
    hidden = mask if mask.dtype == torch.bool else mask != 0
    zero, never = (torch.full((), n, device=query.device) for n in (0.0, -math.inf))
    return torch.where(hidden, never, zero)


def multi_head(*args: Any, **kwargs: Any) -> Any:
    """`F.multi_head_attention_forward`, within which Dynamo does not show attention."""
    return _MULTI_HEAD(*args, **kwargs)


_MULTI_HEAD = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "scaled_dot_product_attention": attention},
    argdefs=F.multi_head_attention_forward.__defaults__,
    closure=F.multi_head_attention_forward.__closure__,
)
"""Torch's function with our attention in place of torch's."""


# --- bags ---


def equal_bags(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: None = None,
    max_norm: None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """`F.embedding_bag` of bags of one size, which are the rows of a matrix of indices.
    padding_idx: what does not count, nor for the size of a bag; a bag of nothing else is 0."""
    found, size = F.embedding(input, weight), input.shape[1]
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    if padding_idx is not None:
        counts = input != padding_idx % weight.shape[0]
        found = torch.where(counts.unsqueeze(-1), found, torch.zeros_like(found))
        if mode == "mean":
            return found.sum(1) / counts.sum(1, keepdim=True).clamp(min=1)
    if size == 1:
        return found.squeeze(1)
    if mode == "max":
        return found.amax(1)
    return found.mean(1) if mode == "mean" else found.sum(1)


# --- which calls ---

_BAG_NAMES = tuple(inspect.signature(equal_bags).parameters)


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def _is_plain(node: Any, dtypes: tuple[torch.dtype, ...] = _DTYPES) -> bool:
    value = _value(node)
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.dtype in dtypes
    )


def _is_layer(node: fx.Node) -> bool:
    return bool(node.args) and _is_plain(node.args[0])


def _is_of_itself(node: fx.Node) -> bool:
    return len(node.args) > 2 and len(set(node.args[:3])) == 1 and _is_layer(node)


def _is_on_cuda(node: fx.Node) -> bool:
    return any(_is_plain(n) and _value(n).device.type == "cuda" for n in node.all_input_nodes)


def _has_equal_bags(node: fx.Node) -> bool:
    """Whether bags have one size, no row is written (max_norm), and nothing asks for a gradient,
    which would be of the whole table."""
    given = {**dict(zip(_BAG_NAMES, node.args, strict=False)), **node.kwargs}
    if given.get("offsets") is not None or given.get("max_norm") is not None:
        return False
    if given.get("mode") == "max" and given.get("padding_idx") is not None:
        return False
    indices, weight = given["input"], given["weight"]
    if not _is_plain(weight) or not _is_plain(indices, (torch.int32, torch.int64)):
        return False
    asks = torch.is_grad_enabled() and any(_asks(n) for n in node.all_input_nodes)
    return not asks and _value(indices).dim() == 2 and 0 not in _value(indices).shape


def _asks(node: fx.Node) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.requires_grad


_LAYERS: Mapping[Any, tuple[Callable[..., Any], Callable[[fx.Node], bool]]] = {
    torch._transformer_encoder_layer_fwd: (encoder_layer, _is_layer),
    torch._native_multi_head_attention: (self_attention, _is_of_itself),
    F.multi_head_attention_forward: (multi_head, _is_on_cuda),
    F.embedding_bag: (equal_bags, _has_equal_bags),
}
"""By what Dynamo's graph calls, what is called in its place, and where."""
