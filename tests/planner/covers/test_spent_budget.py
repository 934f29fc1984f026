"""A graph of which planning has spent its budget: more kernels, the same numbers, forward and
backward."""

import pytest
import torch
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.covers import budget, by_rule, cover
from oracle import DEVICE

pytestmark = [pytest.mark.interpreter, pytest.mark.dynamo, pytest.mark.usefixtures("few_looks")]

OPTIONS = {"on_miss": "model", "evidence": "any", "baseline": "eager", "store": "/nonexistent"}


def _steps(x, y):
    kept = []
    for step in range(6):
        x = (x * 1.01 + y).sin()
        y = y + x * 0.5 if step % 3 else y.tanh()
        if step % 4 == 0:
            kept.append(x * y)
    return x, y, sum(kept)


def _run(function, dtype):
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(64, generator=generator).to(DEVICE, dtype) for _ in range(2)]
    inputs = [each.requires_grad_() for each in inputs]
    results = function(*inputs)
    return [*results, *torch.autograd.grad([each.sum() for each in results], inputs)]


def _forget():
    for kept in (cover._searched, cover._grown):
        kept.cache_clear()


def test_what_planning_cuts_computes_the_same(monkeypatch):
    monkeypatch.setattr(budget, "LEAST", 10)
    monkeypatch.setattr(budget, "EACH", 0)
    monkeypatch.setattr(by_rule, "MOST", 0)  # it asks for no budget, and is cheaper here
    _forget()
    cut = torch.compile(_steps, backend=planner, options=OPTIONS)
    got = _run(cut, torch.float32)
    _forget()
    plans = [runner.plan.chosen for runner in executors(cut)]
    assert len(plans) == 2
    assert all(chosen.cuts > 0 and not chosen.proven for chosen in plans)
    assert [runner.kernels_per_call > 4 for runner in executors(cut)] == [True, True]
    eager, exact = _run(_steps, torch.float32), _run(_steps, torch.float64)
    for mine, own, true in zip(got, eager, exact, strict=True):
        error, allowed = (mine - true).abs().max(), 2 * (own - true).abs().max()
        assert error <= allowed + 4 * torch.finfo(torch.float32).eps * true.abs().max()
