"""Loops over time, deep models and an optimizer's step, as cases of `planning_models`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Function = Callable[..., Any]
PlanningCase = tuple[Function, list[torch.Tensor]]


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


# --- loops over time ---


def scan(steps: int = 24) -> PlanningCase:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(a[:, 0])
        found = []
        for t in range(steps):
            h = a[:, t] * h + b[:, t]
            found.append(h)
        return torch.stack(found, 1)

    return run, [tensor(64, steps, 1024), tensor(64, steps, 1024)]


def scan_with_state(steps: int = 24) -> PlanningCase:
    """The selective scan of Mamba, written plainly."""

    def run(x: Any, dt: Any, a: Any, b: Any, c: Any) -> torch.Tensor:
        h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], device=x.device)
        found = []
        for t in range(steps):
            step = F.softplus(dt[:, t])[..., None]
            h = torch.exp(step * a) * h + step * b[:, t, None, :] * x[:, t, :, None]
            found.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(found, 1)

    wide, narrow = (4, steps, 512), (4, steps, 16)
    return run, [
        tensor(*wide),
        tensor(*wide),
        tensor(512, 16),
        tensor(*narrow),
        tensor(*narrow),
    ]


def rnn(steps: int = 100) -> PlanningCase:
    def run(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], w.shape[0], device=x.device)
        for t in range(steps):
            h = torch.tanh(x[:, t] @ w + h @ u + b)
        return h

    return run, [tensor(64, steps, 256), tensor(256, 256), tensor(256, 256), tensor(256)]


def lstm(steps: int = 100) -> PlanningCase:
    def run(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], u.shape[0], device=x.device)
        for t in range(steps):
            i, f, g, o = (x[:, t] @ w + h @ u + b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    return run, [tensor(64, steps, 256), tensor(256, 1024), tensor(256, 1024), tensor(1024)]


def gru(steps: int = 30) -> PlanningCase:
    """With a backward pass."""

    def run(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], u.shape[0], device=x.device)
        for t in range(steps):
            a, b = x[:, t] @ w, h @ u
            (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
            z = torch.sigmoid(az + bz)
            h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
        return h

    return run, [
        tensor(64, steps, 256),
        tensor(256, 768, grad=True),
        tensor(256, 768, grad=True),
    ]


# --- layers ---


class _NormResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + grown


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        mixed = torch.softmax(scores, -1) @ v
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + joined


class _Different(nn.Module):
    """Layers no two of which are equal: nothing is priced once for all."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(width + 64 * i, width + 64 * (i + 1)) for i in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = F.silu(F.layer_norm(y, y.shape[-1:])) * torch.sigmoid(y)
        return x


def _model(module: nn.Module, *inputs: torch.Tensor, training: bool = False) -> PlanningCase:
    module = module.to(device="meta", dtype=torch.bfloat16).requires_grad_(training)
    return module, list(inputs)


def residual_blocks(count: int = 24) -> PlanningCase:
    blocks = nn.Sequential(*(_NormResidual(512) for _ in range(count)))
    return _model(blocks, tensor(8, 512, 512, dtype=torch.bfloat16))


def attention_layers(count: int = 24) -> PlanningCase:
    layers = (each for _ in range(count) for each in (_Attention(512, 8), _NormResidual(512)))
    return _model(nn.Sequential(*layers), tensor(8, 512, 512, dtype=torch.bfloat16))


def attention_training(count: int = 12) -> PlanningCase:
    layers = (each for _ in range(count) for each in (_Attention(512, 8), _NormResidual(512)))
    return _model(nn.Sequential(*layers), tensor(8, 512, 512, dtype=torch.bfloat16), training=True)


def different_training(count: int = 24) -> PlanningCase:
    return _model(_Different(256, count), tensor(2048, 256, dtype=torch.bfloat16), training=True)


class _Dilated(nn.Module):
    """WaveNet: gated convolutions, each with twice the dilation of the one before."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(count)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        skipped = torch.zeros_like(x)
        for i, layer in enumerate(self.layers):
            filtered, gate = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            z = torch.tanh(filtered) * torch.sigmoid(gate)
            x, skipped = x + z, skipped + z
        return F.relu(skipped), x


def dilated(count: int = 3) -> PlanningCase:
    """So small that launches are all it takes: hundreds of covers cost about the same."""
    module = _Dilated(4, count).to(device="meta")
    return module, [tensor(2, 4, 12, grad=True)]


def optimizer(count: int = 40) -> PlanningCase:
    """Adam over tensors of different shapes."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for p, g, m, v in zip(*(tensors[i::4] for i in range(4)), strict=True):
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            found += [p - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v]
        return found

    return run, [tensor(64 * (i + 1), 512) for i in range(count) for _ in range(4)]
