"""Graphs in parts: what asks a tensor for a number runs as it is, the rest is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture import data_dependent
from fusionplan.planner.capture.data_dependent import in_parts
from fusionplan.tuner.capture.capture_model import capture_model
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses.fake_tensor import DataDependentOutputException

pytestmark = pytest.mark.dynamo

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
P, Q = torch.tensor(2), torch.tensor(3)
ASKED = DataDependentOutputException(torch.ops.aten.nonzero.default)


def rows_changed(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """A view that is written to, twice."""
    y = x * 3
    y[p].add_(1.0)
    z = y.exp() * 0.5
    z[q].mul_(2)
    return (y + z).sum(0)


def cut_by(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The operations of the parts that are compiled, a part a text; of a graph that cannot be cut
    none. The results are the function's."""
    found = list[str]()

    def part(gm: fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
        names = (str(n.target) for n in gm.graph.nodes if n.op.startswith("call"))
        found.append(" ".join(names))
        return gm.forward

    def backend(gm: fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
        return in_parts(gm, ASKED, part) or gm.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    for scale in (1, 2):
        mine, theirs = (
            [x * scale if x.is_floating_point() else x.clone() for x in inputs] for _ in range(2)
        )
        torch.testing.assert_close(compiled(*mine), function(*theirs))
        torch.testing.assert_close(mine, theirs)
    return found


def test_what_lies_between_is_compiled() -> None:
    found = cut_by(rows_changed, X, P, Q)
    assert len(found) == 3
    assert "exp" in found[1]
    assert not any("getitem" in text for text in found)


def test_gradients_go_through_the_parts() -> None:
    x = X.clone().requires_grad_()
    assert len(cut_by(rows_changed, x, P, Q)) == 3
    wanted = torch.autograd.grad(rows_changed(x, P, Q).sum(), x)
    torch._dynamo.reset()

    def backend(gm: fx.GraphModule, given: list[Tensor]) -> Any:
        try:
            return aot_module_simplified(gm, given, lambda graph, _: graph)
        except DataDependentOutputException as error:
            return in_parts(gm, error, backend)

    got = torch.autograd.grad(torch.compile(rows_changed, backend=backend)(x, P, Q).sum(), x)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("config", ["capture_scalar_outputs", "capture_dynamic_output_shape_ops"])
def test_sizes_may_come_from_data(config: str) -> None:
    def of_a_number(x: Tensor, p: Tensor) -> Tensor:
        return x[:, : p.item()].exp() + 1

    def of_what_is_not_zero(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu().nonzero() * 2, x.exp()

    with torch._dynamo.config.patch(config, True):
        if config == "capture_scalar_outputs":
            assert len(cut_by(of_a_number, X, P)) == 1
        else:
            found = cut_by(of_what_is_not_zero, X)
            assert [text for text in found if "exp" in text]
            assert not any("nonzero" in text for text in found)


def test_a_graph_with_a_mode_is_not_cut() -> None:
    def function(x: Tensor, p: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        y[p].add_(1)
        return y * x

    assert not cut_by(function, X.clone().requires_grad_(), P)


def test_many_parts_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dependent, "MOST_PARTS", 4)
    assert not cut_by(rows_changed, X, P, Q)


def test_other_errors_are_no_reason_to_cut() -> None:
    gm = fx.symbolic_trace(lambda x: x * 2)
    assert in_parts(gm, ValueError("no"), lambda gm, given: gm) is None


def test_a_tune_captures_the_parts() -> None:
    found = capture_model(rows_changed, (X.clone(), P, Q))
    assert len(found.parts) == 3
    assert found.graphs == 3
