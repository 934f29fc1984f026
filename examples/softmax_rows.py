"""softmax over long rows: a row of 32768 does not fit the registers of a small block."""

import torch
from torch import nn


def get_model() -> nn.Module:
    return nn.Softmax(dim=-1)


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """x [4096, 32768], bfloat16."""
    torch.manual_seed(0)
    return [torch.randn(4096, 32768, dtype=torch.bfloat16, device=device)]
