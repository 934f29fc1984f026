"""sigmoid(x) * tanh(x + 1): two branches from one input, joined by a product."""

import torch
from torch import nn


class SigmoidTanh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * torch.tanh(x + 1)


def get_model() -> nn.Module:
    return SigmoidTanh()


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """x [8192, 8192], bfloat16."""
    torch.manual_seed(0)
    return [torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)]
