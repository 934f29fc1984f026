"""A group that cannot be built runs by another config, or by ATen; the others run as planned."""

import warnings

import pytest
import torch
from fusionplan.planner.costs.device import CPU
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.machine_code import compile, compiled_before, launch
from fusionplan.planner.runtime.machine_code.compile import CompileFailed, Target, compile_kernel
from triton import knobs
from triton.runtime.errors import OutOfResources


class Block(torch.nn.Module):
    """Two equal layers, and one of another kind: three groups of two kinds."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x):
        for _ in range(2):
            x = self.norm(x).sigmoid().digamma()  # ATen runs this between the groups
        return torch.tanh(x) * x


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A kernel cache of its own."""
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    return tmp_path


@pytest.fixture
def planted(monkeypatch):
    """Kernels for which `fails(source)` holds cannot be built; `tried` are all that were asked."""

    def plant(fails):
        tried, real = [], launch._interpret

        def load(source):
            tried.append(source.name)
            if fails(source):
                raise CompileFailed(f"kernel {source.name}: out of resource: shared memory")
            return real(source)

        monkeypatch.setattr(launch, "_interpret", load)
        return tried

    return plant


def _sums(source):
    return "tl.sum" in source.text or "welford" in source.text


def _run(model, x):
    dispatcher = Dispatcher(Policy(), Sources(lambda captured: modelled_plan(captured.graph, CPU)))
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = torch.compile(model, backend=dispatcher)(x)
        torch.testing.assert_close(got, model(x), atol=1e-4, rtol=1e-4)
    (live,) = dispatcher.live.values()
    said = [str(w.message) for w in told if isinstance(w.message, FusionplanWarning)]
    return live, said


@pytest.mark.interpreter
@pytest.mark.dynamo
def test_a_config_that_cannot_be_built_gives_way_to_the_next(kept, planted):
    model, x = Block(), torch.randn(32, 64)
    whole, said = _run(model, x)
    assert said == []
    first = [g.config for g in whole.plan.groups]
    assert len(first) == 3 == whole.runner.kernels_per_call
    known = {(each.source.text, each.source.num_warps) for each in whole.runner.launchers}
    planted(lambda source: _sums(source) and (source.text, source.num_warps) in known)
    live, said = _run(model, x)
    assert live.runner.kernels_per_call == 3  # All of them are still ours.
    changed = [a != g.config for a, g in zip(first, live.plan.groups, strict=True)]
    assert changed == [True, True, False]
    assert live.plan.groups[0].config == live.plan.groups[1].config
    (text,) = said
    assert "cannot be built" in text
    assert f"runs by config {live.plan.groups[0].config}" in text


@pytest.mark.interpreter
@pytest.mark.dynamo
def test_a_group_without_any_config_is_left_to_aten_alone(kept, planted):
    planted(_sums)
    live, (text,) = _run(Block(), torch.randn(32, 64))
    assert [g.lowering for g in live.plan.groups] == ["aten", "aten", "triton"]
    assert live.runner.kernels_per_call == 1
    assert "its group runs by ATen" in text


@pytest.mark.interpreter
@pytest.mark.dynamo
def test_what_was_taken_instead_is_known_to_the_next_process(kept, planted):
    tried = planted(_sums)
    _run(Block(), torch.randn(32, 64))
    assert len(tried) > 3  # the planned one, others in its place, and one that is sound
    tried.clear()
    live, said = _run(Block(), torch.randn(32, 64))
    assert len(said) == 1
    assert len(tried) == 2  # the planned one once, and the kernel of the group that is sound
    assert [g.lowering for g in live.plan.groups] == ["aten", "aten", "triton"]
    for file in (kept / "fusionplan").iterdir():
        file.write_text('{"instead": {"blocks": 3}}')
    _run(Block(), torch.randn(32, 64))  # Damaged: it is searched for again.


@pytest.mark.dynamo
def test_what_is_measured_is_never_something_else(captured, planted):
    planted(lambda source: True)
    found = captured(torch.nn.LayerNorm(64), torch.randn(32, 64))
    with pytest.raises(CompileFailed):
        Executor(found, modelled_plan(found.graph, CPU), torch.device("cpu"))


@pytest.mark.process
def test_a_kernel_that_does_not_compile_is_not_compiled_again(kept, kernel, monkeypatch):
    asked = []

    def fail(source, *_):
        asked.append(source.name)
        raise CompileFailed("kernel: no registers", transient=len(asked) == 1)

    monkeypatch.setattr(compile, "_compiled", fail)
    source = kernel("x * 2", 128)
    for _ in range(3):
        with pytest.raises(CompileFailed, match="no registers"):
            compile_kernel(source, Target())
    # Want of memory is no word on the kernel: it was asked for once more, and never again.
    assert len(asked) == 2
    monkeypatch.setattr(compiled_before, "maker", lambda: {"triton": "another"})
    with pytest.raises(CompileFailed):
        compile_kernel(source, Target())
    assert len(asked) == 3


def test_what_a_device_cannot_hold_has_failed_to_compile(kernel, monkeypatch):
    def bind(*_, **__):
        raise OutOfResources(294944, 232448, "shared memory")

    monkeypatch.setattr(launch, "bind", bind)
    compiled = compile.Compiled(kernel("x * 2", 128), None, Target(), True)
    with pytest.raises(CompileFailed, match="294944"):
        launch._bound(compiled)
