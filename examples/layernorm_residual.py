"""layer_norm(x + r): a residual and a normalisation, as before every transformer block.

Written in KernelBench's form: a class ``Model``, ``get_init_inputs`` for its constructor and
``get_inputs`` for its call.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + residual)


def get_init_inputs() -> list[int]:
    return [4096]


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """x and residual [16384, 4096], bfloat16."""
    torch.manual_seed(0)
    x = torch.randn(16384, 4096, dtype=torch.bfloat16, device=device)
    residual = torch.randn(16384, 4096, dtype=torch.bfloat16, device=device)
    return [x, residual]
