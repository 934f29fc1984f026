"""Calls of attention in a graph from Dynamo, before AOTAutograd opens them.

Torch decides how attention is computed while AOTAutograd traces the call, by the operands that it
has then. A mask that is only spread over heads and queries has no fused kernel, so that the choice
is a formula in float32, also where the mask keeps every key. So a mask that follows from positions
and numbers is taken away before. Where torch would still choose the formula, numbers of 16 bits
get one whose products are of 16 bits, with sums and softmax in float32, as in fused kernels. So do
calls of one query, as in a step that generates text: a library's kernels are made for many, and
ours divide the keys over the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from ..graph.graph import Numerics
from .decompositions.decompose import decompositions, inside
from .dynamo_writes import source, written_by
from .masks.derived_values import known
from .masks.masks import Band, band
from .on_a_copy import dynamo_copy

__all__ = ["attention", "attention_chosen", "formula"]

log = logging.getLogger(__name__)

_CALLS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

MOST_NODES = 400
"""Operations behind one mask; that of a model is made of some fifty, and every one is traced."""

_NARROW = (torch.bfloat16, torch.float16)


def attention_chosen(gm: fx.GraphModule, numerics: Numerics) -> fx.GraphModule:
    """The Dynamo graph with such calls, or `gm` itself where there is none. `gm` is left as it
    is. With the numerics of eager only masks are taken away."""
    if not isinstance(gm, fx.GraphModule):  # AOTAutograd takes any module
        return gm
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _CALLS]
    if not calls:
        return gm
    try:
        return _rewritten(gm, _seen(gm, calls), numerics)
    except Exception:  # whatever the user's operations raise, the model must run
        log.debug("attention stays as it is", exc_info=True)
        return gm


def _rewritten(gm: fx.GraphModule, seen: dict[fx.Node, Band], numerics: Numerics) -> fx.GraphModule:
    found, copies = dynamo_copy(gm)
    changed = False
    for node, copy in copies.items():
        if node.op != "call_function" or node.target not in _CALLS:
            continue
        if node in seen and _takes(node, seen[node]):
            new = {"attn_mask": None, "is_causal": not seen[node].is_all}
            copy.args, copy.kwargs = (), {**_arguments(copy), **new}
            changed = True
        if numerics == "fast" and _may_be_opened(node):
            copy.target = attention
            changed = True
    found.recompile()
    return found if changed else gm


def _arguments(call: fx.Node) -> dict[str, Any]:
    return {**dict(zip(_NAMES, call.args, strict=False)), **call.kwargs}


# --- masks ---


def _takes(call: fx.Node, seen: Band) -> bool:
    """Whether the call without its mask, perhaps causal, keeps the same keys."""
    given = _arguments(call)
    sizes = [_value(given[name]).shape[-2] for name in ("query", "key")]
    if given.get("is_causal", False) is not False or not seen.is_seen_by_all(*sizes):
        return False
    return seen.is_all or seen.is_causal(*sizes)


def _seen(gm: fx.GraphModule, calls: Sequence[fx.Node]) -> dict[fx.Node, Band]:
    """By call, which keys its mask keeps, where that is known."""
    masks = {call: _arguments(call).get("attn_mask") for call in calls}
    bands = _bands(gm, list(dict.fromkeys(m for m in masks.values() if isinstance(m, fx.Node))))
    each = ((call, bands.get(mask)) for call, mask in masks.items() if isinstance(mask, fx.Node))
    return {call: found for call, found in each if found is not None}


def _bands(gm: fx.GraphModule, masks: Sequence[fx.Node]) -> dict[fx.Node, Band | None]:
    """The keys that masks keep, where that follows from positions and numbers. All are traced at
    once, for those of a model's layers share most of what they are computed from; where that
    cannot be, each alone."""
    written = {source(each) for node in gm.graph.nodes for each in written_by(node)}
    behind: dict[fx.Node, set[fx.Node]] = {}
    for mask in masks:
        needed = _needed(mask)
        if needed & written:  # Which value a reader finds is for AOTAutograd to say.
            log.debug("what %s is computed from is written to", mask)
        elif len(needed) <= MOST_NODES:
            behind[mask] = needed
    try:
        return _traced(gm, behind) if behind else {}
    except Exception:  # as above: with its mask the graph still has its calls
        log.debug("masks are derived one by one", exc_info=True)
    found: dict[fx.Node, Band | None] = {}
    for mask, needed in behind.items() if len(behind) > 1 else ():
        try:
            found |= _traced(gm, {mask: needed})
        except Exception:
            log.debug("the mask %s is not derived", mask, exc_info=True)
    return found


def _traced(
    gm: fx.GraphModule, behind: Mapping[fx.Node, set[fx.Node]]
) -> dict[fx.Node, Band | None]:
    """behind: by mask, all nodes that it is computed from."""
    every = set[fx.Node]().union(*behind.values())
    needed = [node for node in gm.graph.nodes if node in every]
    with _disable_current_modes(), torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [_on_cpu(_value(n)) for n in needed if n.op == "placeholder"]
            run = fx.Interpreter(_behind(gm, list(behind), needed)).run
            traced = make_fx(run, decomposition_table=decompositions())(*fakes)
        values, (ends,) = known(traced.graph), traced.graph.output_node().args
        assert isinstance(ends, (tuple, list))
        found: dict[fx.Node, Band | None] = {}
        for mask, end in zip(behind, ends, strict=True):
            value = values.get(end)
            found[mask] = None if value is None else band(value, end.meta["val"].dtype)
        return found


def _behind(
    gm: fx.GraphModule, masks: Sequence[fx.Node], needed: Sequence[fx.Node]
) -> fx.GraphModule:
    """What computes masks, on a CPU: what is derived is the same on any device."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in needed:
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        copy.args = map_aggregate(copy.args, _without_device)
        copy.kwargs = map_aggregate(copy.kwargs, _without_device)
    graph.output(tuple(copies[mask] for mask in masks))
    return fx.GraphModule(gm, graph)


def _needed(mask: fx.Node) -> set[fx.Node]:
    """A mask and all that it is computed from."""
    needed, pending = set[fx.Node](), [mask]
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return needed


def _without_device(argument: Any) -> Any:
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _on_cpu(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _value(node: Any) -> torch.Tensor:
    """A tensor's metadata. Raises ValueError where it has none, or sizes that vary."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or type(value) not in (FakeTensor, nn.Parameter):
        raise ValueError(f"{node} is no plain tensor")
    if any(isinstance(n, torch.SymInt) for n in value.shape):
        raise ValueError(f"{node} has sizes that vary")
    return value


# --- the formula ---


def _may_be_opened(call: fx.Node) -> bool:
    """Whether the formula may be ours: on CUDA, of 16-bit numbers, without dropout."""
    given = _arguments(call)
    query = given["query"].meta.get("example_value")
    if not isinstance(query, torch.Tensor) or given.get("dropout_p", 0.0) != 0.0:
        return False
    return query.device.type == "cuda" and query.layout is torch.strided


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` by a kernel of a library where torch has one, else opened."""
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    single = _is_one_query(query, key, value, attn_mask)
    if _is_for_torch(query, key, value) or (not single and _has_kernel(*given, enable_gqa)):
        found: torch.Tensor = F.scaled_dot_product_attention(
            *given, scale=scale, enable_gqa=enable_gqa
        )
        return found
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if single:
        return _of_one_query(query, key, value, attn_mask, scale, is_causal)
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(shared, -3) for x in (key, value))
    if is_causal:
        attn_mask = _causal(query, key)
    opened: torch.Tensor = formula(query, key, value, attn_mask, scale, is_causal)
    return opened


def _is_one_query(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Whether each sequence asks with one position, and nothing asks for a gradient."""
    given = [x for x in (query, key, value, mask) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    if not query.dim() == key.dim() == value.dim() == 4 or query.shape[-2] != 1:
        return False
    if mask is not None and mask.dim() not in (2, 4):
        return False
    same = query.shape[0] == key.shape[0] and key.shape[:-1] == value.shape[:-1]
    return same and query.shape[1] % key.shape[1] == 0


def _of_one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    is_causal: bool,
) -> torch.Tensor:
    """The formula with the heads that share their keys as rows of one product."""
    batch, heads, _, size = query.shape
    shared = heads // key.shape[1]
    if is_causal:
        mask = _causal(query, key)
    if mask is not None and mask.dim() == 4 and mask.shape[1] == heads > 1:
        mask = mask.reshape(mask.shape[0], heads // shared, shared, mask.shape[-1])
    rows = query.reshape(batch, heads // shared, shared, size)
    found: torch.Tensor = formula(rows, key, value, mask, scale, is_causal)
    return found.reshape(batch, heads, 1, value.shape[-1])


def _is_for_torch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether torch's own formula is as good: of wide or no numbers, or where it takes part in
    what else is under way."""
    return (
        query.dtype not in _NARROW
        or not query.dtype == key.dtype == value.dtype
        or key.shape[-2] == 0
        or torch.is_autocast_enabled(query.device.type)
        or torch._C._get_math_sdp_allow_fp16_bf16_reduction()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _has_kernel(*given: Any) -> bool:
    """Whether torch computes attention by a fused kernel. Without a GPU it does not."""
    backends = torch.backends.cuda
    params = backends.SDPAParams(*given)
    return (
        backends.can_use_flash_attention(params)
        or backends.can_use_efficient_attention(params)
        or backends.can_use_cudnn_attention(params)
    )


def _causal(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    queries = torch.arange(query.shape[-2], device=query.device)
    keys = torch.arange(key.shape[-2], device=query.device)
    return queries.unsqueeze(1) >= keys


@inside
def formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    is_causal: bool,
) -> torch.Tensor:
    """softmax(scale * q @ k^T + mask) @ v. Products of 16-bit numbers that are only spread to
    float32 are those of the 16-bit numbers, on tensor cores; the weights are rounded as in flash
    attention."""
    scores = torch.matmul(query.float(), key.float().transpose(-2, -1)) * scale
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        if mask.dtype == torch.bool:
            mask = torch.where(mask, scores.new_zeros(()), scores.new_full((), -math.inf))
        scores = scores + mask
        weights = torch.softmax(scores, -1) if is_causal else _safe_softmax(scores)
    return torch.matmul(weights.to(value.dtype), value)


def _safe_softmax(scores: torch.Tensor) -> torch.Tensor:
    """The softmax, and 0 in rows that are -inf throughout. Its gradient needs none through the
    maximum, on which the result does not depend."""
    largest = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - torch.where(largest == -math.inf, 0.0, largest))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)
