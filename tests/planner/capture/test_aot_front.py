"""AOTAutograd is asked as torch's own door asks it."""

import pytest
import torch
from fusionplan.planner.capture import aot_front
from fusionplan.planner.capture.aot_front import by_aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func

pytestmark = pytest.mark.dynamo


def f(x):
    return (x.sin() * 2).sum()


def compiled(graphs):
    def keep(name):
        def compiler(gm, inputs):
            graphs.append((name, [node.name for node in gm.graph.nodes]))
            return make_boxed_func(gm)

        return compiler

    def backend(gm, inputs):
        return by_aot_autograd(
            *(gm, inputs), fw_compiler=keep("forward"), bw_compiler=keep("backward")
        )

    torch._dynamo.reset()
    return torch.compile(f, backend=backend)


def test_forward_and_backward_are_compiled_and_counted():
    graphs, before = [], dict(counters["aot_autograd"])
    x = torch.randn(3, requires_grad=True)
    compiled(graphs)(x).backward()
    assert torch.allclose(x.grad, 2 * x.detach().cos())
    assert [name for name, _ in graphs] == ["forward", "backward"]
    after = counters["aot_autograd"]
    assert [after[n] - before.get(n, 0) for n in ("total", "ok", "not_ok")] == [1, 1, 0]


@pytest.mark.parametrize("debug, inputs", [("1", [1.0]), ("0", [1.0, [2.0]])])
def test_torchs_own_door_has_its_log_and_nested_inputs(monkeypatch, debug, inputs):
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", debug)
    asked = []

    def door(**given):
        asked.append(given)
        return lambda gm, inputs: (gm, inputs)

    monkeypatch.setattr(aot_front, "aot_autograd", door)
    given = {"fw_compiler": f, "bw_compiler": abs, "partition_fn": max}
    assert by_aot_autograd("graph", inputs, **given) == ("graph", inputs)
    assert asked == [given]


def test_a_failure_is_counted_and_raised():
    def fails(gm, inputs):
        raise ValueError("no such graph")

    before = counters["aot_autograd"]["not_ok"]
    gm = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    with pytest.raises(ValueError, match="no such graph"), torch.no_grad():
        by_aot_autograd(gm, [torch.randn(3)], fw_compiler=fails, bw_compiler=fails)
    assert counters["aot_autograd"]["not_ok"] == before + 1
