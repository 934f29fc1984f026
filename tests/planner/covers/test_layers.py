"""Equal layers: what is done for one of them is not done again for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers import cover, pricing
from fusionplan.planner.graph.graph import Graph, Ref, kernel_key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups import group
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.lowerings import triton
from graphs import Builder, product

LENGTH = 12


def layers(count: int) -> Graph:
    """Layers of a product, an activation, a residual sum and a norm by root mean square."""
    b = Builder()
    x = b.input(4096, 256, dtype="bfloat16")
    weight = b.input(256, 256, dtype="bfloat16")
    for _ in range(count):
        multiplied = b.op("mm.default", x, weight)
        total = b.op("add.Tensor", x, b.op("tanh.default", b.op("mul.Tensor", multiplied, 2)))
        squares = b.op("mul.Tensor", total, total)
        row = b.op("sum.dim_IntList", squares, (1,), True, shape=(4096, 1))
        x = b.op("mul.Tensor", total, b.op("rsqrt.default", row))
    return b.graph(x)


def test_each_distinct_group_is_cut_out_and_scheduled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut: list[str] = []
    spaces: list[str] = []
    subgraph, space_of = group.subgraph, triton.space_of

    def counted_cut(*asked):
        found = subgraph(*asked)
        cut.append(kernel_key(found.graph))
        return found

    def counted_space(graph, device):
        spaces.append(kernel_key(graph))
        return space_of(graph, device)

    monkeypatch.setattr(group, "subgraph", counted_cut)
    monkeypatch.setattr(triton, "space_of", counted_space)
    for known in (triton.space_for, pricing.quick_s, triton.best):
        known.cache_clear()
    groups = cover.best_cover(layers(LENGTH), H200)
    assert len(groups) >= LENGTH
    assert len(cut) == len(set(cut))
    assert 1 < len(spaces) == len(set(spaces))


def test_groups_that_differ_in_a_number_or_an_edge_are_other_parts() -> None:
    b = Builder()
    x, y = b.input(64), b.input(64)
    one = b.op("sub.Tensor", b.op("mul.Tensor", x, 2), y)
    float_ = b.op("sub.Tensor", b.op("mul.Tensor", x, 2.0), y)
    turned = b.op("sub.Tensor", y, b.op("mul.Tensor", x, 2))
    twice = b.op("mul.Tensor", x, 2)
    same = b.op("sub.Tensor", twice, y)
    graph = b.graph(one, float_, turned, same, twice)
    pairs = [(r.node - 1, r.node) for r in (one, float_, turned, same) if isinstance(r, Ref)]
    parts = [GroupContent.of(graph, nodes) for nodes in pairs]
    assert len({part.key for part in parts}) == 4  # the last stores its product as well
    assert GroupContent.of(graph, pairs[3], (twice.node,)) == parts[0]
    assert GroupContent.of(graph, pairs[3], (twice.node,)).group is parts[0].group


def test_prices_of_kernels_are_the_same_for_faster_and_slower_vendors() -> None:
    graph = product(8192, 2048, 4096, bias=True)
    part = GroupContent.of(graph, tuple(n.id for n in graph.nodes if is_compute(n)))
    pricing.quick_s.cache_clear()
    before, found = pricing.quick_s.computed, pricing.quick_s(part, H200)
    for vendor in (0.3, 1.5):
        leaning = replace(H200, vendor=vendor)
        assert pricing._quick_s(part, leaning) == found is not None
        assert pricing.quick_s(part, leaning) == found
        assert pricing.called_s(part, leaning) != pricing.called_s(part, H200)
    slower = replace(H200, clock_hz=H200.clock_hz / 8)
    assert pricing.quick_s(part, slower) != found
    assert pricing.quick_s.computed == before + 2
