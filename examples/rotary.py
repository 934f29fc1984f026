"""Rotary position embedding: q * cos + rotate_half(q) * sin, with a chunk and a cat inside."""

import torch
from torch import nn


def rotate_half(q: torch.Tensor) -> torch.Tensor:
    first, second = q.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Rotary(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return q * cos + rotate_half(q) * sin


def get_model() -> nn.Module:
    return Rotary()


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """q [8, 32, 4096, 128] (batch, head, position, feature); cos and sin [4096, 128]; bfloat16."""
    torch.manual_seed(0)
    q = torch.randn(8, 32, 4096, 128, dtype=torch.bfloat16, device=device)
    cos = torch.randn(4096, 128, dtype=torch.bfloat16, device=device)
    sin = torch.randn(4096, 128, dtype=torch.bfloat16, device=device)
    return [q, cos, sin]
