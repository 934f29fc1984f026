"""Training steps around matrix products, through torch.compile by modelled plans: results and
gradients against float64 by the accuracy rule, with kernels of ours in both passes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.capture import saving
from fusionplan.planner.cures import FusionplanWarning
from oracle import DEVICE, as_tuple, assert_close

pytestmark = pytest.mark.usefixtures("few_looks")

OPTIONS = {"on_miss": "model", "evidence": "any"}
BF16, F32 = torch.bfloat16, torch.float32
B, H, S, T, D = 2, 4, 33, 40, 16
TEXTS, LENGTH, WIDTH, WORDS = 3, 21, 24, 70
ROWS, CLASSES = 35, 70


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[None]:
    """No store; a fall-back of ours is an error; small values count as large ones do."""
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "none.db"))
    monkeypatch.setattr(saving, "FLOOR_BYTES", 0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        yield
    torch._dynamo.reset()


def data(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, device=DEVICE)


def single(x: torch.Tensor) -> torch.Tensor:
    """float32, as a user asks for it; the float64 reference stays what it is."""
    return x if x.dtype == torch.float64 else x.float()


def step(
    call: Callable[..., object], inputs: Sequence[torch.Tensor], wide: bool = False
) -> list[torch.Tensor]:
    """Results, then the gradients by all floating-point inputs; cotangents are numbers that the
    results' own type holds."""
    leaves = [x.double() if wide and x.is_floating_point() else x.clone() for x in inputs]
    leaves = [x.requires_grad_() if x.is_floating_point() else x for x in leaves]
    results = as_tuple(call(*leaves))
    seeds = [
        (data(*r.shape, seed=9 + i) if r.dim() else number(1.5)).to(BF16).to(r.dtype)
        for i, r in enumerate(results)
    ]
    wanted = [x for x in leaves if x.requires_grad]
    grads = torch.autograd.grad(results, wanted, seeds)
    return [*(r.detach() for r in results), *grads]


def verify(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> None:
    """Ours within twice eager's own error, every graph with kernels of ours."""
    compiled = torch.compile(function, backend=planner, options=OPTIONS, dynamic=False)
    mine = step(compiled, inputs)
    eager, exact = step(function, inputs), step(function, inputs, wide=True)
    assert len(mine) == len(eager) == len(exact)
    for i, found in enumerate(zip(mine, exact, eager, strict=True)):
        assert_close(*found, f"value {i}")
    runners = executors(compiled)
    assert len(runners) == 2, "a forward and a backward graph"
    for runner in runners:
        assert runner.calls == 1
        assert runner.kernels_per_call > 0


# --- attention ---------------------------------------------------------------------------------


def attention(q, k, v, change=lambda s: s):
    scores = change(single(q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1]))
    return torch.softmax(scores, -1).to(v.dtype) @ v


def positions(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
    return rows[:, None], columns[None, :]


def causal(scores: torch.Tensor) -> torch.Tensor:
    rows, columns = positions(scores)
    return scores.masked_fill(columns > rows, -torch.inf)


def alibi(scores: torch.Tensor) -> torch.Tensor:
    rows, columns = positions(scores)
    slopes = 2.0 ** -torch.arange(1, scores.shape[-3] + 1, device=scores.device)
    return scores + slopes[:, None, None] * (columns - rows)


SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda s: s,
    "causal": causal,
    "soft_cap": lambda s: 5 * torch.tanh(s / 5),
    "alibi": alibi,
    "all": lambda s: causal(alibi(5 * torch.tanh(s / 5))),
}


def heads(dtype: torch.dtype, length: int = S, keys: int = S) -> list[torch.Tensor]:
    return [data(B, H, n, D, dtype=dtype, seed=i) for i, n in enumerate((length, keys, keys))]


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_attention(name: str, dtype: torch.dtype) -> None:
    verify(lambda q, k, v: attention(q, k, v, SCORES[name]), heads(dtype))


@pytest.mark.dynamo
@pytest.mark.parametrize("name", ["plain", "causal"])
@pytest.mark.parametrize("length, keys", [(S, T), (T, S), (1, T)])
def test_attention_over_keys_of_another_length(name: str, length: int, keys: int) -> None:
    verify(lambda q, k, v: attention(q, k, v, SCORES[name]), heads(BF16, length, keys))


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_attention_with_groups_of_queries(dtype: torch.dtype) -> None:
    def grouped(q, k, v):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return attention(q, k, v, causal)

    q, k, v = heads(dtype)
    verify(grouped, [q, k[:, ::2].contiguous(), v[:, ::2].contiguous()])


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_attention_that_returns_the_log_sum_exp(dtype: torch.dtype) -> None:
    def with_statistics(q, k, v):
        scores = causal(single(q @ k.transpose(-1, -2)) * 0.25)
        return torch.softmax(scores, -1).to(v.dtype) @ v, torch.logsumexp(scores, -1)

    verify(with_statistics, heads(dtype))


# --- heads and losses --------------------------------------------------------------------------


def splade(reduce: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def head(hidden, weight, bias, mask):
        logits = F.linear(hidden, weight, bias)
        return reduce(torch.log1p(torch.relu(logits)) * mask.unsqueeze(-1))

    return head


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("spelling", ["max", "amax"])
def test_the_head_of_splade(spelling: str, dtype: torch.dtype) -> None:
    reduce = {"max": lambda x: torch.max(x, dim=1).values, "amax": lambda x: x.amax(1)}[spelling]
    shapes = ((TEXTS, LENGTH, WIDTH), (WORDS, WIDTH), (WORDS,))
    inputs = [data(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    lengths = torch.tensor([[LENGTH], [7], [1]], device=DEVICE)
    verify(splade(reduce), [*inputs, (torch.arange(LENGTH, device=DEVICE) < lengths).long()])


def z_loss(hidden, weight, labels):
    logits = single(F.linear(hidden, weight))
    return F.cross_entropy(logits, labels) + 1e-2 * torch.logsumexp(logits, -1).square().mean()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "plain": lambda h, w, y: F.cross_entropy(single(F.linear(h, w)), y),
    "sum": lambda h, w, y: F.cross_entropy(single(F.linear(h, w)), y, reduction="sum"),
    "ignored": lambda h, w, y: F.cross_entropy(single(F.linear(h, w)), y, ignore_index=7),
    "smoothed": lambda h, w, y: F.cross_entropy(single(F.linear(h, w)), y, label_smoothing=0.1),
    "z_loss": z_loss,
}


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_linear_and_cross_entropy(name: str, dtype: torch.dtype) -> None:
    labels = torch.arange(ROWS, device=DEVICE) * 2 % CLASSES
    labels[3:6], labels[9:12] = -100, 7
    if name == "ignored":
        labels[3:6] = 7
    # Logits of a usual size: of very large ones, computed again in another order of the sums, the
    # last bits are a part of the probabilities that float32 no longer has.
    hidden = (data(ROWS, WIDTH) / math.sqrt(WIDTH)).to(dtype)
    verify(LOSSES[name], [hidden, data(CLASSES, WIDTH, dtype=dtype, seed=1), labels])


def contrastive(a, b, logit_scale):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    scale, labels = logit_scale.exp(), torch.arange(a.shape[0], device=a.device)
    forth = F.cross_entropy(single(scale * a @ b.T), labels)
    back = F.cross_entropy(single(scale * b @ a.T), labels)
    return (forth + back) / 2


@pytest.mark.dynamo
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_contrastive_loss(dtype: torch.dtype) -> None:
    a, noise = data(ROWS, WIDTH), data(ROWS, WIDTH, seed=1)
    verify(contrastive, [a.to(dtype), (a + noise).to(dtype), number(1.0)])
