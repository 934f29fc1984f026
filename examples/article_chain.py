"""relu((x + 1) * 2) ** 2: the chain that articles on fusion begin with."""

import torch
from torch import nn


class ArticleChain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x + 1) * 2) ** 2


def get_model() -> nn.Module:
    return ArticleChain()


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """x [8192, 8192], float32."""
    torch.manual_seed(0)
    return [torch.randn(8192, 8192, dtype=torch.float32, device=device)]
