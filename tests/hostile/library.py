"""Modules as libraries of models write them: blocks of vision and language models, heads of
detectors; small, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hostile.cases import Family, Maker

library = Family("library", grad=True)


def module(make: Any, *words: str, seed: int = 0, scale: float = 1.0) -> tuple[Any, Any]:
    """Inputs and a function: the words, then the parameters and buffers of the module."""
    torch.manual_seed(seed)
    held: nn.Module = make()
    state = {**dict(held.named_parameters()), **dict(held.named_buffers())}
    names, numbers = list(state), [t.detach().clone() for t in state.values()]

    def inputs(m: Maker) -> list[Tensor]:
        own = [t.to(m.device) for t in numbers]
        if m.wide:
            own = [t.double() if t.is_floating_point() else t for t in own]
        return [*(m(word) for word in words), *own]

    def call(*given: Tensor) -> Any:
        count = len(words)
        return functional_call(held, dict(zip(names, given[count:], strict=True)), given[:count])

    return inputs, call


def add(name: str, make: Any, *words: str, **flags: Any) -> None:
    library(name, *module(make, *words), **flags)


# --- vision -------------------------------------------------------------------------------------


class Squeeze(nn.Module):
    """An inverted residual with squeeze and excitation, as of EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(4, 8, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.norm, self.down, self.up = nn.GroupNorm(2, 8), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.project = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(self.depth(F.silu(self.expand(x)))))
        gate = self.up(F.silu(self.down(y.mean((2, 3), keepdim=True)))).sigmoid()
        return self.project(y * gate) + x


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4, eps=1e-6)
        self.wide, self.narrow = nn.Linear(4, 16), nn.Linear(16, 4)
        self.gamma = nn.Parameter(torch.full((4,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.narrow(F.gelu(self.wide(y))) * self.gamma).permute(0, 3, 1, 2)


class ResponseNorm(nn.Module):
    """ConvNeXt V2's global response normalisation."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(2, (1, 2), keepdim=True)
        return x * (size / (size.mean(-1, keepdim=True) + 1e-6)) + x


class Patches(nn.Module):
    """A vision transformer's beginning: patches, a class token, positions that are interpolated."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x).flatten(2).mT
        grid = self.positions.reshape(1, 2, 2, 8).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (3, 2), mode="bilinear", align_corners=False)
        y = y + grid.permute(0, 2, 3, 1).reshape(1, 6, 8)
        return torch.cat((self.token.expand(x.shape[0], -1, -1), y), 1)


add("squeeze_and_excite", Squeeze, "f32[2,4,5,5]")
add("convnext_block", ConvNext, "f32[2,4,7,7]")
add("response_norm", ResponseNorm, "f32[2,5,5,4]")
add("patches", Patches, "f32[2,3,12,8]")
library(
    "stochastic_depth_scaled",
    "f32[4,5,6] f32[4,5,6] f32[4]!unit",
    lambda x, y, u: x + y * (u.detach() < 0.8).to(x.dtype).view(-1, 1, 1) / 0.8,
)
library(
    "pyramid",
    "f32[1,4,8,8] f32[1,4,4,4]",
    lambda a, b: F.interpolate(b * 2, scale_factor=2, mode="nearest") + a.relu(),
)
library(
    "pooled_pyramid",
    "f32[1,4,8,8]",
    lambda x: (
        torch.cat(
            [
                F.interpolate(F.adaptive_avg_pool2d(x, n), (8, 8), mode="bilinear")
                for n in (1, 2, 4)
            ],
            1,
        )
        * 2
    ),
)
library(
    "blur_pool",
    "f32[1,4,8,8]",
    lambda x: F.conv2d(
        F.pad(x * 2, (1, 1, 1, 1), mode="reflect"),
        torch.tensor([1.0, 2.0, 1.0], device=x.device, dtype=x.dtype)
        .outer(torch.tensor([1.0, 2.0, 1.0], device=x.device, dtype=x.dtype))[None, None]
        .expand(4, 1, 3, 3)
        / 16,
        stride=2,
        groups=4,
    ),
)
library(
    "weight_standardised",
    "f32[2,3,7,7] f32[4,3,3,3]",
    lambda x, w: F.conv2d(
        x, (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
    ).relu(),
)
library(
    "focus_slices",
    "f32[1,3,8,8]",
    lambda x: torch.cat([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)], 1) * 2,
)
library(
    "frozen_norm",
    "f32[2,4,5,5] f32[4] f32[4] f32[4]!pos f32[4]",
    lambda x, w, b, v, m: (
        x * (w * (v + 1e-5).rsqrt()).view(1, -1, 1, 1)
        + (b - m * w * (v + 1e-5).rsqrt()).view(1, -1, 1, 1)
    ),
)
library(
    "generalised_mean_pool",
    "f32[2,4,5,5]!pos f32[1]!pos",
    lambda x, p: x.clamp(min=1e-6).pow(p + 1).mean((2, 3)).pow(1 / (p + 1)),
)
library(
    "coordinates_joined",
    "f32[2,3,4,5]",
    lambda x: torch.cat(
        (
            x,
            torch.linspace(-1, 1, 5, device=x.device, dtype=x.dtype).expand(2, 1, 4, 5),
            torch.linspace(-1, 1, 4, device=x.device, dtype=x.dtype)[:, None].expand(2, 1, 4, 5),
        ),
        1,
    ).tanh(),
)
library(
    "boxes_decoded",
    "f32[7,4] f32[7,4]",
    lambda a, d: (lambda c, s: torch.cat((c - s / 2, c + s / 2), 1))(
        (a[:, :2] + a[:, 2:]) / 2 + d[:, :2], (a[:, 2:] - a[:, :2]) * d[:, 2:].clamp(max=4.1).exp()
    ),
)
library(
    "generalised_iou",
    "f32[7,4] f32[7,4]",
    lambda a, b: _iou(
        torch.cat((a[:, :2], a[:, :2] + a[:, 2:].exp()), 1),
        torch.cat((b[:, :2], b[:, :2] + b[:, 2:].exp()), 1),
    ),
)
library(
    "anchors",
    "f32[3,2]",
    lambda s: (
        torch.stack(
            torch.meshgrid(
                torch.arange(4, device=s.device), torch.arange(5, device=s.device), indexing="xy"
            ),
            -1,
        ).view(-1, 1, 2)
        * 8
        + s[None] * 2
    ).reshape(-1, 2),
)
library(
    "sine_positions",
    "f32[2,4,5]",
    lambda x: torch.cat(
        (lambda p: (p[..., 0::2].sin(), p[..., 1::2].cos()))(
            (x.cumsum(1) / (x.abs().cumsum(1)[:, -1:] + 1e-6))[..., None]
            / 10000 ** (2 * (torch.arange(6, device=x.device) // 2) / 6)
        ),
        -1,
    ),
)
library(
    "hard_negatives",
    "f32[4,9] i64[4]!<9",
    lambda x, t: (lambda own, rest: F.relu(0.2 + rest - own).sum(1).mean())(
        x.gather(1, t[:, None]), x.scatter(1, t[:, None], -1e4).topk(3, 1)[0]
    ),
)


def _iou(a: Tensor, b: Tensor) -> Tensor:
    area = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    outer = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).clamp(min=0)
    both = inner[:, 0] * inner[:, 1]
    union, hull = area[0] + area[1] - both, outer[:, 0] * outer[:, 1]
    return 1 - (both / union - (hull - union) / hull)


# --- language -----------------------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture of experts: two of four for each token, weights that sum to 1, a balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, 6, 10)), nn.Parameter(torch.randn(4, 5, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = self.gate(x).softmax(-1)
        weights, chosen = odds.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        taken = torch.zeros_like(odds).scatter(-1, chosen, weights)
        a, b = torch.einsum("td,edf->etf", x, self.up).chunk(2, -1)
        found = torch.einsum("etf,efd->etd", F.silu(a) * b, self.down)
        load = (taken > 0).to(x.dtype).mean(0)
        return torch.einsum("etd,te->td", found, taken), (load * odds.mean(0)).sum() * 4


class Rotary(nn.Module):
    """A block as of LLaMA: RMS norm, rotary positions of halves, grouped heads, a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(8), nn.RMSNorm(8)
        self.q, self.kv, self.o = (
            nn.Linear(8, 8, False),
            nn.Linear(8, 8, False),
            nn.Linear(8, 8, False),
        )
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = self.first(x)
        q = self.q(y).view(b, n, 4, 2).transpose(1, 2)
        k, v = self.kv(y).view(b, n, 2, 4).transpose(1, 2).chunk(2, -1)
        angle = positions[:, None, :, None].to(x.dtype) * x.new_tensor([0.3])
        angle = torch.cat((angle, angle), -1)
        q, k = (
            t * angle.cos() + torch.cat((-t[..., 1:], t[..., :1]), -1) * angle.sin() for t in (q, k)
        )
        k, v = (t[:, :, None].expand(b, 2, 2, n, 2).reshape(b, 4, n, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, 8)
        x = x + self.o(y)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Masked(nn.Module):
    """BERT's head: hidden numbers of the masked positions alone, tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 6, padding_idx=0), nn.LayerNorm(6, eps=1e-12)
        self.dense, self.bias = nn.Linear(6, 6), nn.Parameter(torch.zeros(11))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        mask = (tokens != 0).to(self.bias.dtype)
        x = self.norm(self.embed(tokens) + mask[..., None] * 0.1)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        x = self.norm(F.gelu(self.dense(x + pooled[:, None])))
        logits = F.linear(x, self.embed.weight, self.bias)
        labels = torch.where(labels > 7, -100, labels)
        return F.cross_entropy(logits.view(-1, 11), labels.view(-1), ignore_index=-100)


add("experts", Experts, "f32[9,6]")
add("rotary_block", Rotary, "f32[2,5,8]", "i64[2,5]!<9")
add("masked_tokens", Masked, "i64[2,5]!<11", "i64[2,5]!<11")
library(
    "rotary_pairs",
    "f32[2,5,4,8] f32[5,4]",
    lambda x, a: torch.stack(
        (
            lambda p: (
                p[..., 0] * a[:, None].cos() - p[..., 1] * a[:, None].sin(),
                p[..., 0] * a[:, None].sin() + p[..., 1] * a[:, None].cos(),
            )
        )(x.view(2, 5, 4, 4, 2)),
        -1,
    ).flatten(-2),
)
library(
    "rotary_complex",
    "f32[2,5,4,8] f32[5,4]",
    lambda x, a: (
        torch.view_as_real(
            torch.view_as_complex(x.reshape(2, 5, 4, 4, 2))
            * torch.polar(torch.ones_like(a), a)[:, None]
        ).flatten(-2)
        * 2
    ),
)
library(
    "key_value_cache",
    "f32[2,2,9,4] f32[2,2,9,4] f32[2,2,1,4] i64[1]!<8",
    lambda k, v, q, p: (
        lambda kk, vv: (
            (q @ kk.mT).masked_fill(torch.arange(9, device=q.device) > p, -math.inf).softmax(-1)
            @ vv
        )
    )(k.index_copy(2, p, q * 2), v.index_copy(2, p, q)),
)
library(
    "left_padded_positions",
    "f32[2,6,4] bool[2,6]",
    lambda x, m: (lambda p: x + torch.sin(p[..., None] * torch.arange(1, 5, device=x.device)))(
        (m.long().cumsum(1) - 1).masked_fill(~m, 1).to(x.dtype)
    ),
)
library(
    "sequence_ends_pooled",
    "f32[3,6,4] bool[3,6]",
    lambda x, m: x[torch.arange(3, device=x.device), (m.long().sum(1) - 1).clamp(min=0)].tanh(),
)
library(
    "low_rank_adapter",
    "f32[2,5,8] f32[8,8] f32[2,8] f32[8,2]",
    lambda x, w, a, b: F.linear(x, w) + F.linear(F.linear(x, a), b) * (16 / 2),
)
library(
    "dora",
    "f32[5,8] f32[6,8] f32[2,8] f32[6,2] f32[6]",
    lambda x, w, a, b, m: (
        lambda v: F.linear(x, m[:, None] * v / v.norm(dim=1, keepdim=True).detach())
    )(w + b @ a),
)
library(
    "fake_quantised",
    "f32[5,33]",
    lambda x: (lambda s: x + ((x / s).round().clamp(-8, 7) * s - x).detach())(
        x.abs().amax(1, keepdim=True) / 7
    ),
)
library(
    "vector_quantised",
    "f32[7,4] f32[5,4]",
    lambda x, c: (
        lambda q: (
            x + (q - x).detach(),
            F.mse_loss(q, x.detach()) + 0.25 * F.mse_loss(x, q.detach()),
        )
    )(F.embedding(torch.cdist(x, c).argmin(1), c)),
)
library(
    "gumbel_hard",
    "f32[5,9] f32[5,9]!pos",
    lambda x, u: (lambda p: F.one_hot(p.argmax(1), 9).to(p.dtype) - p.detach() + p)(
        ((x - u.detach().log()) / 0.7).softmax(1)
    ),
)
library(
    "mixture_density",
    "f32[5,3] f32[5,3] f32[5,3] f32[5,1]",
    lambda p, m, s, y: (
        -torch.logsumexp(
            p.log_softmax(1) - 0.5 * ((y - m) / s.exp()) ** 2 - s - 0.5 * math.log(2 * math.pi), 1
        ).mean()
    ),
)
library(
    "reparametrised",
    "f32[5,4] f32[5,4] f32[5,4]",
    lambda m, v, e: (
        m + e.detach() * (0.5 * v).exp(),
        -0.5 * (1 + v - m**2 - v.exp()).sum(1).mean(),
    ),
)
library(
    "policy_gradient",
    "f32[6,4] f32[6,4] i64[6]!<4 f32[6]",
    lambda x, old, a, adv: (
        lambda r: -torch.min(r * adv.detach(), r.clamp(0.8, 1.2) * adv.detach()).mean()
    )(
        (x.log_softmax(1).gather(1, a[:, None]) - old.detach().log_softmax(1).gather(1, a[:, None]))
        .squeeze(1)
        .exp()
    ),
)
library(
    "normalising_flow",
    "f32[5,6] f32[3,3]",
    lambda x, w: (lambda s, t: (torch.cat((x[:, :3], x[:, 3:] * s.exp() + t), 1), s.sum(1)))(
        (x[:, :3] @ w).tanh(), x[:, :3] @ w.t()
    ),
)

FAMILIES = (library,)
