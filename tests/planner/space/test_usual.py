"""What a quick look at a group sees of its space: covers are compared by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fusionplan.planner.config import Config, Layout
from fusionplan.planner.costs.device import BUILTIN
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.groups.legality import has_nest
from fusionplan.planner.nests import nest
from fusionplan.planner.space import space as space_module
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.values.values import Values

RELU = """\
%0 = input() : bfloat16[{rows}, {summed}]
%1 = input() : bfloat16[{columns}, {summed}]
%2 = input() : bfloat16[{columns}]
%3 = aten.permute.default(%1, (1, 0)) : bfloat16[{summed}, {columns}] strides [1, {summed}]
%4 = aten.addmm.default(%2, %0, %3) : bfloat16[{rows}, {columns}]
%5 = aten.relu.default(%4) : bfloat16[{rows}, {columns}]
return %5"""


@pytest.mark.parametrize("sizes", [(12608, 768, 3072), (16384, 384, 1536), (65536, 128, 512)])
def test_a_product_is_priced_by_the_programs_that_walk(sizes: tuple[int, int, int]) -> None:
    rows, summed, columns = sizes
    graph = parse(RELU.format(rows=rows, summed=summed, columns=columns))
    space = space_of(graph, BUILTIN["h100"])
    assert isinstance(space, Space)
    usual, best = space.quick(), space.top()
    assert usual is not None
    assert best is not None
    assert best[0].programs > 0
    assert best[1].seconds <= usual.seconds <= 1.03 * best[1].seconds


@pytest.mark.parametrize("count, most", [(8, 6), (9, 3)])
def test_of_many_sums_fewer_configs_stand_for_a_layout(count: int, most: int) -> None:
    size = "[4096, 4096]"
    lines = [f"%0 = input() : float32{size}"]
    for number in range(1, 2 * count, 2):
        lines.append(f"%{number} = aten.mul.Scalar(%0, {number}.5) : float32{size}")
        lines.append(f"%{number + 1} = aten.sum.dim_IntList(%{number}, (1)) : float32[4096]")
    results = ", ".join(f"%{2 * number}" for number in range(1, count + 1))
    space = space_of(parse("\n".join([*lines, f"return {results}"])), BUILTIN["h200"])
    assert isinstance(space, Space)
    assert max(len([*space._usual(layout, {})]) for layout in space.schedules) == most


@pytest.mark.parametrize("dims, kept", [("(0)", 20016), ("(1)", 20016)])
def test_a_sum_is_priced_near_its_best_config(dims: str, kept: int) -> None:
    """Sums of columns were priced at 2.0 ms where 0.44 are to be had."""
    size = "[20016, 20016]"
    graph = parse(
        f"%0 = input() : float32{size}\n%1 = aten.exp.default(%0) : float32{size}\n"
        f"%2 = aten.sum.dim_IntList(%1, {dims}) : float32[{kept}]\nreturn %2"
    )
    space = space_of(graph, BUILTIN["h200"])
    assert isinstance(space, Space)
    usual, best = space.quick(), space.top()
    assert usual is not None
    assert best is not None
    assert best[1].seconds <= usual.seconds <= 1.12 * best[1].seconds


def test_a_tile_of_another_shape_is_found_in_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tile that lies well for what is read and for what is stored is 7% better by the model
    than the last one on the way there that is better than its neighbours."""
    read, stored = "bfloat16[64, 56, 56, 256]", "bfloat16[64, 256, 56, 56]"
    graph = parse(
        f"%0 = input() : {read}\n%1 = aten.permute.default(%0, (0, 3, 1, 2)) : {stored} strides "
        f"[802816, 1, 14336, 256]\n%2 = aten.clone.default(%1) : {stored}\n"
        f"%3 = aten.add.Tensor(%2, 1) : {stored}\nreturn %3"
    )
    space = space_of(graph, BUILTIN["h200"])
    assert isinstance(space, Space)
    least_s = space.ranked(1)[0][1].seconds
    judged: list[Config] = []
    judge = Space.judge
    monkeypatch.setattr(Space, "judge", lambda of, one: (judged.append(one), judge(of, one))[1])
    best = space.top()
    assert best is not None
    assert best[1].seconds <= 1.02 * least_s
    assert len(judged) <= 200


def test_a_group_is_scheduled_once_for_each_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    build = nest._build

    def counted(values: Values, *asked: object) -> nest.Nest:
        made.append(asked)
        return build(values, *asked)

    monkeypatch.setattr(nest, "_build", counted)
    graph = parse(RELU.format(rows=64, summed=48, columns=80))
    assert has_nest(GroupContent("relu of a product", graph)) is None
    assert isinstance(space_of(graph, BUILTIN["h100"]), Space)
    assert len(made) == len(set(made)) >= 3


def test_usual_configs_are_enumerated_once_where_none_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[Layout] = []
    of_layout = Space._of_layout

    def counted(space: Space, layout: Layout, few: bool = False) -> Iterator[Config]:
        looked_at.append(layout)
        return of_layout(space, layout, few)

    monkeypatch.setattr(Space, "_of_layout", counted)
    space = space_of(parse(RELU.format(rows=64, summed=48, columns=80)), BUILTIN["h100"])
    assert isinstance(space, Space)
    assert len(looked_at) == len(set(looked_at)) == len(space.schedules)


def test_layouts_far_behind_are_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of columns may be cut in many ways. Of two sums after each other all were looked at as
    closely: 724 kernels were priced."""
    size, kept = "float32[16384, 4096]", "float32[1, 4096]"
    graph = parse(
        f"%0 = input() : {size}\n%1 = aten.mean.dim(%0, (0), True) : {kept}\n"
        f"%2 = aten.sub.Tensor(%0, %1) : {size}\n%3 = aten.mul.Tensor(%2, %2) : {size}\n"
        f"%4 = aten.mean.dim(%3, (0), True) : {kept}\nreturn %4"
    )
    asked: list[object] = []
    estimated = space_module.estimate

    def counted(*given: Any) -> Any:
        asked.append(given)
        return estimated(*given)

    monkeypatch.setattr(space_module, "estimate", counted)
    space = space_of(graph, BUILTIN["h200"])
    assert isinstance(space, Space)
    assert len(space.schedules) >= 8
    assert len(asked) <= 450
