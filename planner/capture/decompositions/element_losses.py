"""Decompositions of losses whose every element has one of its own, and of the logit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .losses import accumulator, scalar, to

aten = torch.ops.aten


def _soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> Any:
    """In the type of the input, whatever that of the target is; torch's own form promotes."""
    if not x.is_floating_point() or target.dtype == torch.bool:
        return NotImplemented
    margin = to(aten.mul.Tensor(aten.neg.default(x), target), x.dtype)
    loss = aten.log1p.default(aten.exp.default(margin))
    return reduced(loss, reduction)


def _soft_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> Any:
    """-target * sigmoid(-target * x); torch's own form, sigmoid(target * x) - 1, cancels."""
    if target.dtype == torch.bool:
        return NotImplemented
    share = aten.sigmoid.default(aten.neg.default(aten.mul.Tensor(target, x)))
    result = aten.neg.default(aten.mul.Tensor(aten.mul.Tensor(target, grad), share))
    return aten.div.Tensor(result, x.numel()) if reduction == 1 else result


def _logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> Any:
    """The gradient of NaN is NaN; torch's own form has 0 there."""
    is_bounded = eps is not None and eps >= 0
    low = eps if is_bounded and eps is not None else 0.0
    wide = accumulator(x.dtype)
    g, v = to(grad, wide), to(x, wide)
    slope = aten.div.Tensor(g, aten.mul.Tensor(v, aten.rsub.Scalar(v, 1.0)))
    beyond = aten.logical_or.default(aten.lt.Scalar(v, low), aten.gt.Scalar(v, 1.0 - low))
    there = scalar(0.0 if is_bounded else math.nan, wide, v)
    return to(aten.where.self(beyond, there, slope), x.dtype)


def _bce_with_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> Any:
    """In the type of the target: eager writes the loss into `1 - target`, and each product into its
    first factor. torch's own form promotes, in 2.11 up to the result."""
    if not (x.is_floating_point() and target.is_floating_point()):
        return NotImplemented
    sigmoid = aten.log_sigmoid_forward.default(x)[0]
    if pos_weight is not None:
        share = aten.add.Scalar(aten.mul.Tensor(aten.sub.Scalar(pos_weight, 1), target), 1)
        sigmoid = to(aten.mul.Tensor(sigmoid, share), x.dtype)
    loss = to(aten.mul.Tensor(aten.rsub.Scalar(target, 1), x), target.dtype)
    loss = to(aten.sub.Tensor(loss, sigmoid), target.dtype)
    if weight is not None:
        loss = to(aten.mul.Tensor(loss, weight), target.dtype)
    return reduced(loss, reduction)


def reduced(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    """As a loss's `reduction` says: 0 none, 1 the mean, 2 the sum."""
    total: torch.Tensor = loss
    if reduction != 0:
        total = (aten.mean if reduction == 1 else aten.sum).default(loss)
    return total


ELEMENT_LOSSES: dict[Any, Callable[..., Any]] = {
    aten.binary_cross_entropy_with_logits.default: _bce_with_logits,
    aten.logit_backward.default: _logit_backward,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}
