"""Which graphs captured on the CPU are those of a CUDA device, told without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan.tuner.capture.same_on_cuda import difference_on_cuda
from torch import fx, nn

pytestmark = pytest.mark.dynamo


def dynamo_graph(model: Callable[..., Any], *inputs: Any) -> tuple[fx.GraphModule, Any]:
    found: list[Any] = []

    def backend(gm: fx.GraphModule, given: Any) -> Any:
        found.append((gm, given))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend)(*inputs)
    (only,) = found
    return only


def positions(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[1], device=x.device)[None, :, None]
    even, odd = (x * place)[..., ::2], x[..., 1::2].float()
    turned = torch.stack([-odd, even], -1).flatten(-2)
    turned[:, 0] = 1.0
    return turned + torch.zeros(1, device=x.device)


def at_index(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1 - torch.arange(2, device=x.device)] = x[:, :2]
    return y[..., None, x[0, :, 0].long() * 0]


SAME: dict[str, Callable[[], Callable[..., Any]]] = {
    "pointwise": lambda: lambda x: torch.relu(x) + 1,
    "indexing": lambda: positions,
    "indexing by tensors": lambda: at_index,
    "softmax": lambda: lambda x: F.softmax(x, -1) @ x.mT,
    "block": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.5)),
    "norm": lambda: nn.BatchNorm1d(4).eval(),
}


@pytest.mark.parametrize("name", SAME)
def test_most_graphs_are_the_same(name: str) -> None:
    assert difference_on_cuda(*dynamo_graph(SAME[name](), torch.randn(3, 4, 6))) is None


def test_attention_is_another_operation() -> None:
    q = torch.randn(2, 4, 8, 16)
    gm, inputs = dynamo_graph(lambda q: F.scaled_dot_product_attention(q, q, q) * 2, q)
    assert "flash_attention_for_cpu" in (difference_on_cuda(gm, inputs) or "")


def test_what_stays_on_the_cpu_is_another_graph() -> None:
    gm, inputs = dynamo_graph(lambda x: x[torch.arange(2)], torch.randn(4, 6))
    assert "arange" in (difference_on_cuda(gm, inputs) or "")
    gm, inputs = dynamo_graph(lambda x: x + torch.arange(6), torch.randn(4, 6))
    assert "same device" in (difference_on_cuda(gm, inputs) or "")
