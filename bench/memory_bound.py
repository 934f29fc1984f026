"""Workloads that memory binds, written the plain way. Each is a class and a function that makes its
inputs, as `planner tune bench/memory_bound.py:NAME --inputs bench/memory_bound.py:INPUTS` wants
them. `scale` divides the sizes, so that they run anywhere.
"""

import torch
import torch.nn.functional as F
from torch import nn

BF16 = torch.bfloat16


class RMSNormLongRow(nn.Module):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(65536 // scale, dtype=BF16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * self.weight


def rmsnorm_long_row_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [2048, 65536], bfloat16."""
    return [_normal(2048 // scale, 65536 // scale, dtype=BF16, device=device)]


class SoftmaxFewRows(nn.Softmax):
    def __init__(self, scale: int = 1) -> None:
        super().__init__(dim=-1)


def softmax_few_rows_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [8, 4194304], bfloat16."""
    return [_normal(8, 4194304 // scale, dtype=BF16, device=device)]


class BatchNormReLU(nn.Module):
    """Statistics of the batch at hand, as in training; none are kept."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(256, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x))


def batchnorm_train_relu_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [64, 256, 56, 56], bfloat16; the weights are float32."""
    return [_normal(max(2, 64 // scale), 256, 56, 56, dtype=BF16, device=device)]


class GroupNormSiLU(nn.Module):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, 320, dtype=BF16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))


def groupnorm_silu_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """x [32, 320, 64, 64], bfloat16."""
    return [_normal(max(1, 32 // scale), 320, 64, 64, dtype=BF16, device=device)]


class CrossEntropy(nn.CrossEntropyLoss):
    def __init__(self, scale: int = 1) -> None:
        super().__init__()


def cross_entropy_128k_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """logits [8192, 131072], bfloat16, and labels [8192]."""
    rows, classes = 8192 // scale, 131072 // scale
    logits = _normal(rows, classes, dtype=BF16, device=device)
    return [logits, torch.randint(classes, (rows,), device=device)]


class CustomLoss(nn.Module):
    """Huber and focal loss and two regularisers: many small operations, one number."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        error = (prediction - target).abs()
        huber = torch.where(error < 1.0, 0.5 * error * error, error - 0.5).mean()
        likely = torch.sigmoid(torch.where(target > 0, prediction, -prediction))
        focal = (-((1 - likely) ** 2) * torch.log(likely + 1e-6)).mean()
        return huber + 0.25 * focal + 1e-3 * prediction.square().mean() + 1e-4 * error.mean()


def custom_loss_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """prediction and target [4096, 1024], float32."""
    torch.manual_seed(0)
    shape = (4096 // scale, 1024 // scale)
    return [torch.randn(shape, device=device), torch.randn(shape, device=device)]


class LayerNormBackward(nn.Module):
    """The gradients of a layer norm: of its input, and of weight and bias over all rows."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4096 // scale, dtype=BF16))
        self.bias = nn.Parameter(torch.zeros(4096 // scale, dtype=BF16))

    def forward(
        self, gradient: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        shape = [x.shape[-1]]
        backward = torch.ops.aten.native_layer_norm_backward
        found: tuple[torch.Tensor, ...] = backward(
            gradient, x, shape, mean, rstd, self.weight, self.bias, [True, True, True]
        )
        return found


def layernorm_backward_inputs(device: str = "cuda", scale: int = 1) -> list[torch.Tensor]:
    """The result's gradient and x [16384, 4096], bfloat16; mean and rstd [16384, 1], float32."""
    rows, width = 16384 // scale, 4096 // scale
    x = _normal(rows, width, dtype=BF16, device=device)
    gradient = torch.randn_like(x)
    var, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    # Eager's own kernel wants the statistics in the dtype of x on a CPU.
    kept = BF16 if x.device.type == "cpu" else torch.float32
    return [gradient, x, mean.to(kept), torch.rsqrt(var + 1e-5).to(kept)]


def _normal(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=dtype, device=device)
