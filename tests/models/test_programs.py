"""What programs do besides arithmetic: breaks, shapes, writes, randomness, modes, hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan import executors, load, plans
from fusionplan.backend import planner
from torch import nn

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("few_looks")]

OPTIONS = {"on_miss": "model", "evidence": "any"}
X = torch.randn(4, 6)
Check = Callable[..., Any]


def compile(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=planner, options=OPTIONS, **options)


def break_between(x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x * 2)
    torch._dynamo.graph_break()
    return torch.softmax(y + 1, -1)


def branch_on_data(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x) + 1
    return y * 2 if y.sum() > 0 else y - 1


def write_in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(1)
    x[0] = 3.0
    return torch.exp(-x.abs())


def write_to_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.5
    y[:, 1].sigmoid_()
    y.t()[0].zero_()
    return y + 1


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "break": break_between,
    "branch": branch_on_data,
    "write_in_place": write_in_place,
    "write_to_a_view": write_to_a_view,
    "write_to_out": lambda x: torch.exp(x, out=torch.empty_like(x)) * 2,
    "views": lambda x: ((y := torch.relu(x) + 1), y.t(), y.view(-1)[2:], x[1]),
    "none_and_numbers": lambda x: (None, torch.exp(x) + 1, 3, x.shape[0], True),
    "nested": lambda x: {"a": [torch.exp(x) + 1, (x * 2,)], "b": None},
    "integers": lambda x: ((x * 4).long() // 3, (x > 0) & (x < 1), (x * 9).int() % 4),
    "the_same_twice": lambda x: ((y := torch.sin(x) + 1), y, x),
    "complex": lambda x: torch.fft.rfft(torch.relu(x) + 1).abs() + 1,
    "half": lambda x: torch.relu(x.half()) * 2,
    "double": lambda x: torch.softmax(x.double(), -1) + 1,
    "empty": lambda x: (torch.relu(x) + 1, torch.relu(x[:0]) + 1),
    "scalar": lambda x: torch.exp(x.mean()) + x.sum(),
    "index": lambda x: torch.relu(x[torch.tensor([2, 0])]) + 1,
    "sort": lambda x: (torch.relu(x) + 1).sort(-1),
    "scan": lambda x: torch.cumsum(torch.exp(x) + 1, -1) * 2,
    "loop": lambda x: sum(torch.sin(x) * i for i in range(4)),
    "where_nan": lambda x: torch.where(x > 0, x / (x * 0), -x).nan_to_num(1.0),
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (torch.exp(x) + 1,)),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: F.gelu(y) * 2, x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_writes_equal_eager(name: str, same: Check) -> None:
    with torch.no_grad():
        same(FUNCTIONS[name], X)


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_sizes(dynamic: bool | None, same: Check, count: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(x) + x.shape[0], -1)

    compiled = None
    for rows in (4, 5, 7, 5):
        compiled = same(model, torch.randn(rows, 6), compiled=compiled, dynamic=dynamic)
    graphs, launches = count(compiled)
    assert graphs == 3  # one plan for each size
    assert launches >= 4


def test_a_training_step_of_other_sizes() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU())
    compiled = compile(model, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 6)
        got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(got, want)
    assert all(r.calls for r in executors(compiled))


def test_beyond_the_limit_of_recompilations_eager_runs(same: Check) -> None:
    def model(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.exp(x) * factor + len(str(factor))

    compiled = compile(model, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for rows in (3, 4):
            same(model, torch.randn(rows, 6), 2.0, compiled=compiled)
        same(model, torch.randn(5, 6), 2.0, compiled=compiled, kernels=False)


def test_dropout_drops_as_many_and_scales_them() -> None:
    compiled = compile(lambda x: F.dropout(x, 0.25) * 2)
    x = torch.ones(64, 256)
    first, second = compiled(x), compiled(x)
    for y in (first, second):
        kept = y != 0
        assert 0.72 < kept.float().mean() < 0.78
        torch.testing.assert_close(y[kept], torch.full_like(y[kept], 2 / 0.75))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    again = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(again, compiled(x))


def test_the_backward_pass_drops_what_the_forward_pass_dropped() -> None:
    compiled = compile(lambda x: F.gelu(F.dropout(x, 0.5) + 1))
    x = torch.randn(32, 32, requires_grad=True)
    y = compiled(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad == 0, torch.isclose(y, F.gelu(torch.ones(()))) & (grad == 0))
    dropped = torch.isclose(y, F.gelu(torch.ones(())))
    assert 0.4 < dropped.float().mean() < 0.6
    assert not grad[dropped].any()


def test_random_numbers_are_eagers_own_where_aten_makes_them() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x + torch.rand(4, 6)) + torch.randn_like(x)

    compiled = compile(model)
    y = compiled(X)
    assert y.std() > 0
    assert not torch.equal(y, compiled(X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU())
    compiled = compile(model)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        got, want = compiled(X), model(X)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert sum(r.calls for r in executors(compiled))


def test_autocast_inside_the_model(same: Check) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.T
        return torch.relu(y.float() + 1) * 2

    # Eager rounds the product to bfloat16 and a fused kernel does not: take numbers it holds.
    with torch.no_grad():
        same(model, X.round())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return F.gelu(self.norm(x)) + x


def test_forward_alone(same: Check) -> None:
    block = Block()
    compiled = compile(block.forward)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), block(X))
    assert block.seen == 2
    assert sum(r.calls for r in executors(compiled)) == 1


def test_hooks_run() -> None:
    block = Block()
    block.norm.register_forward_hook(lambda module, args, out: out * 3)
    block.norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    compiled = compile(block)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), block(X))
    assert sum(r.calls for r in executors(compiled)) == 1


def test_a_tensor_hook_sees_the_gradient() -> None:
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) + 1
        y.register_hook(seen.append)
        return y * 2

    x = X.clone().requires_grad_()
    compile(model)(x).sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(x.grad, 2 * torch.exp(X))


def test_compiled_twice() -> None:
    block = Block()
    compiled = compile(compile(block))
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), block(X))
    assert len(plans(compiled)) == 1


def test_a_compiled_part_of_a_compiled_model() -> None:
    inner = compile(lambda x: torch.exp(x) + 1)
    outer = compile(lambda x: torch.relu(inner(x)) * 2)
    torch.testing.assert_close(outer(X), torch.relu(torch.exp(X) + 1) * 2)
    assert sum(r.calls for r in executors(outer)) == 1  # one graph: Dynamo looks inside


def test_beside_another_backend() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + 1

    ours, other = compile(model), torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(ours(X), model(X))
    torch.testing.assert_close(other(X), model(X))
    torch.testing.assert_close(ours(X), model(X))
    assert sum(r.calls for r in executors(ours)) == 2


def test_gradients_of_gradients_are_refused_as_by_torch() -> None:
    x = X.clone().requires_grad_()
    y = compile(lambda x: torch.exp(x) * x)(x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch\.compile with aot_autograd does not"):
        grad.sum().backward()


def test_inference_mode(same: Check) -> None:
    with torch.inference_mode():
        same(lambda x: torch.exp(x) + 1, torch.randn(3, 5))


def test_vmap_and_functional_gradients(same: Check) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.grad(lambda r: (torch.exp(r) * r).sum()))(x)

    with torch.no_grad():
        same(model, X)


def test_weights_may_change_between_calls() -> None:
    block = Block()
    compiled = load(block, on_miss="model", evidence="any")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), block(X))
            block.norm.weight.mul_(1.5)
    assert sum(r.calls for r in executors(compiled)) == 2


def test_strides_are_eagers(same: Check) -> None:
    with torch.no_grad():
        compiled = same(lambda x: torch.exp(x) + 1, X.t())
    assert compiled(X.t()).stride() == X.t().stride()


def test_a_model_without_data_gives_results_without_data() -> None:
    model = nn.Sequential(nn.LayerNorm(6), nn.GELU()).to("meta")
    with torch.no_grad():
        compiled = compile(model)
        with pytest.raises(Exception, match="meta"):
            compiled(X)
        found = compiled(X.to("meta"))
    assert (found.device.type, found.shape) == ("meta", X.shape)


def test_an_error_of_the_models_own_comes_out() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 4:
            raise KeyError("nothing for four")
        return torch.exp(x)

    with pytest.raises(KeyError, match="nothing for four"):
        compile(model)(X)
