"""What the cost model knows of products of matrices whose rows do not start on 16 bytes."""

from __future__ import annotations

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.vendor_products import alignment, vendor_s
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.space.space import Space, space_of
from graphs import dense, product

HALF = "bfloat16"


def model_s(*sizes: int, dtype: str = HALF, turned: tuple[bool, bool] = (False, False)) -> float:
    graph = product(*sizes, dtype=dtype, turned=turned)
    return vendor_s(graph, len(graph.nodes) - 1, H200)


def generated_s(graph: Graph) -> float:
    space = space_of(graph, H200)
    assert isinstance(space, Space)
    cost = space.quick()
    assert cost is not None
    return cost.seconds


def test_rows_start_where_their_strides_say() -> None:
    assert alignment(dense(4, 24, dtype=HALF)) == 16
    assert alignment(dense(4, 28, dtype=HALF)) == 8
    assert alignment(dense(4, 25, dtype=HALF)) == 2
    assert alignment(dense(4, 25)) == 4
    assert alignment(dense(1, 25, dtype=HALF)) == 16  # a single row


@pytest.mark.parametrize(
    "turned, sizes",
    [
        ((False, True), (4096, 2048, 4095)),  # the result's rows
        ((False, True), (4096, 2048, 4094)),  # the same, on 4 bytes
        ((False, True), (4096, 2044, 4096)),  # those of both operands, on 8 bytes
        ((False, False), (4096, 2047, 4096)),  # those of the first operand
        ((False, True), (4096, 2047, 4096)),  # those of both operands
        ((True, False), (4095, 2048, 4096)),  # those of the first operand, which is turned
        ((True, False), (4096, 2048, 4095)),  # those of the second and of the result
    ],
)
def test_the_vendors_product_is_slow_where_rows_start_anywhere(turned, sizes) -> None:
    times = 3.0 if any(n % 2 for n in sizes) else 2.5
    assert model_s(*sizes, turned=turned) > times * model_s(4096, 2048, 4096, turned=turned)
    # In 32 bits rows start on 4 bytes at least.
    usual = model_s(4096, 2048, 4096, dtype="float32", turned=turned)
    assert model_s(*sizes, dtype="float32", turned=turned) == pytest.approx(usual, rel=0.05)


def test_an_odd_size_that_is_no_rows_length_costs_nothing() -> None:
    usual = model_s(4096, 2048, 4096)
    assert model_s(4095, 2048, 4096) == pytest.approx(usual, rel=0.05)
    assert model_s(4096, 2047, 4096, turned=(True, False)) == pytest.approx(usual, rel=0.05)


def test_a_kernel_loads_nothing_ahead_where_rows_of_operands_start_anywhere() -> None:
    whole = generated_s(product(4096, 2048, 4096, turned=(False, True)))
    assert generated_s(product(4096, 2047, 4096, turned=(False, True))) > 2 * whole
    # The rows of the result are another matter: they are written once.
    assert generated_s(product(4096, 2048, 4095, turned=(False, True))) < 1.2 * whole
