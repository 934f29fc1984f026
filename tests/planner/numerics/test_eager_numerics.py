"""`numerics="eager"`: every rounding that eager makes between operations, and none of its plans for
another mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusionplan
import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import from_json, key, to_json
from fusionplan.planner.lower import lower
from numeric_check import computed, config_of, values_of
from oracle import whole_group
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

Function = Callable[..., torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "chain": lambda x, y, z: (x + y) * z - x * y,
    "gelu": lambda x, y, z: F.gelu(x * y) + z,
    "silu": lambda x, y, z: F.silu(x + y) * z,
    "softmax": lambda x, y, z: torch.softmax(x * y, -1) * z,
    "sum": lambda x, y, z: (x * y).sum(-1, keepdim=True) + z,
    "matmul": lambda x, y, z: (x @ y.T).relu() * 1.7,
}


def traced(function: Function, inputs: list[torch.Tensor], numerics: Any) -> Captured:
    table = decompositions()
    gm = make_fx(lambda *g: [function(*g)], decomposition_table=table, tracing_mode="fake")
    return capture(gm(*inputs), numerics)


def data(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(32, 64, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_eagers_to_the_bit(name: str) -> None:
    inputs, function = data(torch.bfloat16), FUNCTIONS[name]
    wanted = function(*inputs)
    differing = {}
    for numerics in ("fast", "eager"):
        found = traced(function, inputs, numerics)
        (mine,) = computed(found, values_of(found, inputs), config_of(found)).values()
        differing[numerics] = int((mine.reshape(wanted.shape) != wanted).sum())
    assert differing["eager"] == 0
    assert differing["fast"] > 0  # or the test could not fail


TERMS: dict[str, Function] = {
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=1e-3),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, 1 / z, value=1e-3),
}


@pytest.mark.parametrize("name", TERMS)
def test_what_eager_computes_at_once_is_not_rounded_inside(name: str) -> None:
    """The product, or quotient, alone would be infinite."""
    x, *others = data(torch.float16)
    inputs, function = [x, *(400 + 10 * v for v in others)], TERMS[name]
    wanted = function(*inputs)
    assert wanted.isfinite().all()
    found = traced(function, inputs, "eager")
    (mine,) = computed(found, values_of(found, inputs), config_of(found)).values()
    torch.testing.assert_close(mine.reshape(wanted.shape), wanted, rtol=1e-3, atol=0)


def test_a_mode_is_part_of_what_a_plan_is_for() -> None:
    fast, eager = (traced(FUNCTIONS["chain"], data(torch.bfloat16), n) for n in ("fast", "eager"))
    assert fast.graph != eager.graph
    assert key(fast.graph) != key(eager.graph)
    assert from_json(to_json(eager.graph)) == eager.graph
    assert "numerics" not in to_json(fast.graph)
    plans = [modelled_plan(found.graph, H200) for found in (fast, eager)]
    assert plans[0].groups[0].kernel_key != plans[1].groups[0].kernel_key
    with pytest.raises(ValueError, match="no numerics"):
        from_json(to_json(fast.graph) | {"numerics": "exact"})


def test_products_are_rounded_before_they_are_added() -> None:
    inputs = data(torch.float32)
    for numerics, contracts in (("fast", True), ("eager", False)):
        found = traced(FUNCTIONS["chain"], inputs, numerics)
        program = lower(whole_group(found.graph).graph, config_of(found))
        assert isinstance(program, Program)
        assert [k.contracts for k in program.kernels] == [contracts]


def test_a_loaded_model_has_eagers_bits(tmp_path: Any) -> None:
    inputs, function = data(torch.bfloat16), FUNCTIONS["chain"]
    loaded = fusionplan.load(function, store=tmp_path / "plans.db", numerics="eager")
    with torch.no_grad():
        assert torch.equal(loaded(*inputs), function(*inputs))
    assert sum(e.calls * e.kernels_per_call for e in fusionplan.executors(loaded)) == 1
