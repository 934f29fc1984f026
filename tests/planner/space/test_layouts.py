"""Layouts worth a try."""

from __future__ import annotations

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.space.layouts import layouts
from fusionplan.planner.space.space import Space, space_of
from graphs import Builder


def total(length: int) -> Graph:
    b = Builder()
    return b.graph(b.op("sum.dim_IntList", b.input(length), (0,), shape=()))


@pytest.mark.parametrize("length", [134217, 5 * 3**9, 3**11])
def test_a_sum_that_powers_of_two_do_not_divide_is_cut_by_other_numbers(length: int) -> None:
    parts = {each.split for each in layouts(total(length), H200)} - {1}
    assert parts
    assert all(length % each == 0 and each >= 32 for each in parts)


def test_the_model_cuts_the_mean_over_an_odd_number_of_rows() -> None:
    """1657 * 81 elements: one program would take 30 us."""
    space = space_of(total(134217), H200)
    assert isinstance(space, Space)
    ((config, cost),) = space.ranked(1)
    assert config.split in (81, 1657)
    assert cost.seconds < 12e-6


def test_a_power_of_two_is_cut_by_powers_of_two() -> None:
    parts = {each.split for each in layouts(total(1 << 17), H200)} - {1}
    assert parts
    assert all(each & (each - 1) == 0 for each in parts)


@pytest.mark.parametrize("count, every", [(8, 1), (9, 2)])
def test_many_sums_are_cut_into_every_other_number_of_parts(count: int, every: int) -> None:
    """Each layout takes all of them."""
    b = Builder()
    x = b.input(1 << 17)
    scaled = (b.op("mul.Scalar", x, n + 2.0, shape=(1 << 17,)) for n in range(count))
    group = b.graph(*(b.op("sum.dim_IntList", each, (0,), shape=()) for each in scaled))
    parts = {each.split for each in layouts(group, H200) if not each.holds} - {1}
    usual = {each.split for each in layouts(total(1 << 17), H200) if not each.holds} - {1}
    assert sorted(parts) == sorted(usual)[::every]


def sums(rows: int, columns: int) -> Graph:
    b = Builder()
    x = b.input(rows, columns)
    return b.graph(
        b.op("sum.dim_IntList", x, (0,), shape=(columns,)),
        b.op("sum.dim_IntList", x, (1,), shape=(rows,)),
    )


@pytest.mark.parametrize("columns", [4096, 8192, 12288])
def test_rows_and_columns_are_summed_at_one_reading(columns: int) -> None:
    """Programs hold a row each, sum some of them up, and a second kernel sums their parts."""
    space = space_of(sums(8192, columns), H200)
    assert isinstance(space, Space)
    ((config, cost),) = space.ranked(1)
    assert config.layout.loops_once
    assert config.split > 1
    assert config.num_stages == 3  # the next rows are read while threads meet at the sum of one
    assert cost.hbm_bytes < 1.2 * 4 * 8192 * columns
