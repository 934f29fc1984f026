"""Integers, casts, constants and special values are eager's, a family in a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.graph.ops import row
from numeric_cases import families
from numeric_check import differences
from numeric_family import Family
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.interpreter

FAMILIES = {family.name: family for family in families()}


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_eagers(name: str) -> None:
    family: Family = FAMILIES[name]
    wrong, others = differences(family)
    assert not wrong, "\n".join(wrong)
    assert tuple(others) == family.untouched


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(0, 300),
        lambda x: torch.full_like(x, 300) + x,
        lambda x: x.masked_fill(x > 3, 300),
    ],
    ids=["clamp", "full", "masked_fill"],
)
def test_what_eager_refuses_is_no_kernel(function: Callable[..., torch.Tensor]) -> None:
    x = torch.arange(9, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="overflow"):
        function(x)
    traced = make_fx(
        lambda x: [function(x)], decomposition_table=decompositions(), tracing_mode="fake"
    )(x)
    nodes = capture(traced).graph.nodes
    assert [n.op for n in nodes if 300 in n.args and row(n) is None]
