"""A value that a graph writes to, and whose old numbers its backward pass reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.saved_inputs import save_as_they_were
from fusionplan.planner.capture.saving import RESULTS, partition
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_compiler

pytestmark = pytest.mark.dynamo

WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "all of it": lambda x, y: x.abs_(),
    "with another": lambda x, y: x.mul_(y),
    "a view of it": lambda x, y: x.view(-1).sin_(),
    "what is not saved": lambda x, y: x.add_(y),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_graph_saves_what_it_writes_to_as_it_was(name: str) -> None:
    copies: list[int] = []

    def forward(gm: fx.GraphModule, inputs: Any) -> Any:
        before = len(gm.graph.nodes)
        save_as_they_were(gm, gm.meta[RESULTS])
        copies.append(len(gm.graph.nodes) - before)
        return make_boxed_compiler(lambda gm, _: gm.forward)(gm, inputs)

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=forward,
            bw_compiler=make_boxed_compiler(lambda gm, _: gm.forward),
            partition_fn=partition,
        )

    def written(x: Tensor, y: Tensor) -> Tensor:
        middle = x * 3
        torch._dynamo.graph_break()  # It is an input of the next graph.
        WRITES[name](middle, y)
        return middle * 2

    given = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    wanted = torch.autograd.grad(written(*given).sum(), given, allow_unused=True)
    torch._dynamo.reset()
    compiled = torch.compile(written, backend=backend)
    got = torch.autograd.grad(compiled(*given).sum(), given, allow_unused=True)
    torch.testing.assert_close(got, wanted)
    assert copies == [0, int(name != "what is not saved")]
