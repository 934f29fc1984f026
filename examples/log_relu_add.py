"""log(relu(x + b)): a bias and two pointwise operations over a large activation."""

import torch
from torch import nn


class LogReluAdd(nn.Module):
    def forward(self, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(x + b))


def get_model() -> nn.Module:
    return LogReluAdd()


def get_inputs(device: str = "cuda") -> list[torch.Tensor]:
    """x [8192, 8192] and b [8192], bfloat16. log(0) is -inf, as in eager."""
    torch.manual_seed(0)
    x = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    b = torch.randn(8192, dtype=torch.bfloat16, device=device)
    return [x, b]
