"""A tune leaves the model, its inputs and the process as it found them."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import optuna
import pytest
import torch
from fusionplan import tune
from fusionplan.tuner.session import offline, restore_process
from fusionplan.tuner.session.restore_process import process_restored, settings_restored
from torch import nn
from tuner_fakes import FakeLab

pytestmark = pytest.mark.usefixtures("optunas_tables")


class Counting(nn.Module):
    """Running statistics, a counter, and an argument that is written to."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x.add_(1)
        return torch.relu(self.norm(x))


def state_of(model, x):
    return [x.clone(), *(buffer.clone() for buffer in model.buffers())]


@pytest.mark.dynamo
def test_a_tune_writes_to_neither_the_model_nor_its_inputs(tmp_path, monkeypatch):
    """In this process: workers have no model."""
    lab = FakeLab(lambda group, candidate: 1.0)
    monkeypatch.setattr(offline, "WorkerLab", lambda *_, **options: nullcontext(lab))
    model, x = Counting().train(), torch.randn(8, 4)
    before = state_of(model, x)
    tuned = tune(model, (x,), target="h200", store=tmp_path / "plans.db", progress=False)
    assert tuned.plans
    assert lab.compiled
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, x), strict=True))


def test_random_numbers_and_settings_are_put_back():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        wanted = torch.rand(2), random.random(), numpy.random.rand()
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        with process_restored(torch.relu):
            torch.manual_seed(0)
            random.seed(0)
            numpy.random.seed(0)
            optuna.logging.set_verbosity(optuna.logging.DEBUG)
        assert optuna.logging.get_verbosity() == optuna.logging.ERROR
        assert torch.equal(torch.rand(2), wanted[0])
        assert (random.random(), numpy.random.rand()) == wanted[1:]
    finally:
        optuna.logging.set_verbosity(optuna.logging.INFO)


def test_a_lost_device_hides_neither_what_was_found_nor_an_error(monkeypatch):
    def lost(*given):
        raise RuntimeError("CUDA error: misaligned address")

    model = Counting().train()
    model.register_buffer("on_the_device", torch.zeros(2))
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        get_rng_state=lambda device: torch.zeros(2),
        set_rng_state=lost,
    )
    monkeypatch.setattr(restore_process.torch, "cuda", cuda)
    monkeypatch.setattr(restore_process.torch, "equal", lost)
    random.seed(3)
    wanted = random.random()
    random.seed(3)
    with settings_restored(), restore_process._statistics(model):
        random.seed(0)
        found = "plan"
    assert (found, random.random()) == ("plan", wanted)
    with pytest.raises(ValueError, match="its own"), settings_restored():
        raise ValueError("its own")


@pytest.mark.dynamo
def test_contestants_leave_no_versions_of_the_users_code():
    """Each would count towards torch.compile's limit, beyond which it silently runs eager."""
    compiled = []

    class Backend:
        def __call__(self, gm, inputs):
            compiled.append(gm)
            return gm.forward

    def function(x):
        return x.sin() + 1

    x, many = torch.randn(3), torch._dynamo.config.recompile_limit + 1
    with process_restored(function):
        for _ in range(many):
            torch.compile(function, backend=Backend())(x)
    assert len(compiled) == many
    torch.compile(function, backend=Backend())(x)
    assert len(compiled) == many + 1


def test_what_was_written_is_put_back_when_a_tune_fails():
    model = Counting().train()
    before = state_of(model, torch.zeros(1))

    def fails():
        with process_restored(model):
            model(torch.randn(8, 4))
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fails()
    assert all(
        torch.equal(a, b) for a, b in zip(before, state_of(model, torch.zeros(1)), strict=True)
    )
