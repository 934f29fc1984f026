"""A vendor's attention and its gradients in float64, of which its own kernels know nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ...planner.errors import PlanError
from ...planner.graph.ops import overload

_PREFIX = "aten._scaled_dot_product_"
_KINDS = ("flash", "efficient", "cudnn")
_WAYS = ("", "_backward")
_KEPT_ROWS = 32


def wide_attention(op: str) -> Callable[..., tuple[Any, ...]] | None:
    """A function that takes the arguments of a vendor's call and computes its results from scores
    in memory; None for any other operation. Of the results the first two, output and logarithm of
    the sums, or the gradients have numbers and the shapes of the vendor's; the rest is the state of
    kernels that do not run."""
    names = {f"{_PREFIX}{kind}_attention{way}.default": kind for kind in _KINDS for way in _WAYS}
    if op not in names:
        return None
    schema = overload(op)._schema
    if "_backward" in op:
        return partial(_backward, schema)
    return partial(_forward, schema, names[op])


def _forward(schema: Any, kind: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    given = _named(schema, args, kwargs)
    weights, sums, _ = _weights(given)
    found: list[Any] = [weights @ _each(given["value"], given), _as_kept(kind, sums)]
    for result in schema.returns[2:]:
        tensor = str(result.type) == "Tensor"
        found.append(torch.empty(0, dtype=torch.int64, device=sums.device) if tensor else 0)
    return tuple(found)


def _backward(schema: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    given = _named(schema, args, kwargs)
    weights, _, scale = _weights(given)
    query, key, value = given["query"], _each(given["key"], given), _each(given["value"], given)
    gradient = given["grad_out_"] if "grad_out_" in given else given["grad_out"]
    inner = gradient @ value.transpose(-2, -1)
    scores = weights * (inner - (inner * weights).sum(-1, keepdim=True))
    found = [scores @ key * scale]
    found.append(_together(scores.transpose(-2, -1) @ query * scale, given["key"]))
    found.append(_together(weights.transpose(-2, -1) @ gradient, given["value"]))
    if len(schema.returns) > len(found):
        bias = given.get("attn_bias")
        found.append(scores if bias is None else scores.sum_to_size(bias.shape))
    return tuple(found)


def _as_kept(kind: str, sums: torch.Tensor) -> torch.Tensor:
    """The logarithms of the sums as the vendor's kernel keeps them for its backward pass: cuDNN in
    one more dimension, the memory-efficient one with infinities up to a multiple of rows."""
    if kind == "cudnn":
        return sums[..., None]
    if kind == "efficient":
        return F.pad(sums, (0, -sums.shape[-1] % _KEPT_ROWS), value=math.inf)
    return sums


def _named(schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    if given.get("dropout_p"):
        raise PlanError("attention with dropout cannot be evaluated in float64")
    return given


def _each(heads: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """Keys or values for every head of the queries, several of which may share one."""
    return heads.repeat_interleave(given["query"].shape[1] // heads.shape[1], 1)


def _together(gradient: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """The gradient of what those heads share."""
    batch, _, *rest = gradient.shape
    return gradient.reshape(batch, heads.shape[1], -1, *rest).sum(2)


def _weights(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The softmax of the scores, the logarithm of its sums, and the scale."""
    query, key, bias = given["query"], _each(given["key"], given), given.get("attn_bias")
    scale = given.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if given.get("is_causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    sums = scores.logsumexp(-1)
    return (scores - sums[..., None]).exp().nan_to_num(0.0), sums, scale
