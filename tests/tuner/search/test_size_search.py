"""Trees over sizes: learned from a table, by the model, and with measurements that are told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config, MultipleSplit, SizeSplit, SizeTree, branches, leaf
from fusionplan.planner.costs.device import DeviceProfile, builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.graph.varying import family_key, sizes_of
from fusionplan.planner.groups.group import subgraph
from fusionplan.planner.groups.plan_at_sizes import plan_at
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import Plan
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model
from fusionplan.tuner.gate.bucket_edges import at_sizes
from fusionplan.tuner.search import size_search
from fusionplan.tuner.search.size_anchors import Anchor
from fusionplan.tuner.search.size_search import (
    LENGTHS,
    _Learned,
    _length,
    learned,
)
from fusionplan.tuner.search.size_trees import KERNELS, AnchorTimes, tree_of
from torch import nn

H200 = builtin("h200")
A, B, C = (Config((("x0", size),)) for size in (1, 2, 4))


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, -1)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.linear(x))


@pytest.fixture(scope="module")
def planned() -> tuple[Graph, Plan]:
    """The graph of a softmax over rows of 300 bfloat16, which may have any length, and its plan."""
    x = torch.randn(512, 300, dtype=torch.bfloat16)
    torch._dynamo.mark_dynamic(x, 1)
    found = capture_model(
        Softmax(), CallArguments.of((x,)), training=False, dynamic=False, numerics="fast"
    )
    graph = found.parts[0].captured.graph
    return graph, modelled_plan(graph, H200)


Learn = Callable[..., SizeTree | None]


@pytest.fixture(scope="module")
def learn(planned: tuple[Graph, Plan]) -> Iterator[Learn]:
    """The tree of the softmax, by the model or by what is measured. Its anchors are the same each
    time, with what the model says of configs there."""
    graph, plan = planned
    (group,) = plan.groups
    assert group.config is not None
    own, config, original = subgraph(graph, group.nodes).graph, group.config, size_search._anchor

    @cache
    def once(sizes: tuple[int, ...], odd: bool) -> Anchor | None:
        return original(own, sizes, H200, odd)

    def anchor(of: Graph, sizes: Sequence[int], device: DeviceProfile, odd: bool = False) -> object:
        return once((*sizes,), odd) if of is own else original(of, sizes, device, odd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_search, "_anchor", anchor)
        yield cache(lambda measure=None: learned(own, config, H200, measure))


@pytest.mark.dynamo
def test_where_one_size_is_that_of_rows_it_has_anchors_of_its_own() -> None:
    """A tile for rows of 4096 is slow for rows of 70, whatever the others are."""
    x = torch.randn(6, 5, 300, dtype=torch.bfloat16)
    found = capture_model(Softmax(), CallArguments.of((x,)), dynamic=True)
    graph = found.parts[0].captured.graph
    assert sizes_of(graph) == (6, 5, 300)
    anchors = _Learned(graph, A, H200, None, _length(graph, H200))._anchors(None)
    assert {anchor.sizes[2] for anchor in anchors} == set(LENGTHS)
    assert {anchor.sizes[:2] for anchor in anchors} == {(32, 32), (2048, 2048)}
    # Where rows are the same or none decides, all combinations are looked at.
    x = torch.randn(6, 300, 64, dtype=torch.bfloat16)
    for axis in (0, 1):
        torch._dynamo.mark_dynamic(x, axis)
    found = capture_model(Softmax(), CallArguments.of((x,)))
    graph = found.parts[0].captured.graph
    anchors = _Learned(graph, A, H200, None, _length(graph, H200))._anchors(None)
    assert len({anchor.sizes for anchor in anchors}) == len(anchors) == 9


def test_a_tree_splits_where_another_config_is_better() -> None:
    sizes = [(16, 16), (16, 512), (512, 16), (512, 512)]
    table = [{A: 1.0, B: 2.0}, {A: 1.0, B: 2.0}, {A: 2.0, B: 1.0}, {A: 2.0, B: 1.0}]
    assert tree_of(sizes, table) == SizeSplit(0, 16, A, B)
    assert [at for at, _ in branches(tree_of(sizes, table))] == [
        "size 0 up to 16",
        "size 0 above 16",
    ]


def test_kernels_for_all_lengths_are_shared_with_multiples() -> None:
    """Four of the lengths are multiples of 16. One kernel for all lengths is as good there as one
    that knows it, another is not."""
    known_, any_ = (
        [replace(C, num_warps=n) for n in (1, 2)],
        [replace(C, num_warps=n, anywhere=True) for n in (1, 2)],
    )
    sizes = [(16,), (512,), (9,), (497,)]
    table = [
        {known_[0]: 1.0, known_[1]: 2.0, any_[0]: 1.0, any_[1]: 2.0},
        {known_[0]: 2.0, known_[1]: 1.0, any_[0]: 2.0, any_[1]: 1.3},
        {known_[0]: 1e3, known_[1]: 1e3, any_[0]: 1.0, any_[1]: 2.0},
        {known_[0]: 1e3, known_[1]: 1e3, any_[0]: 2.0, any_[1]: 1.0},
    ]
    tree = AnchorTimes(sizes, table).by_multiples(0, 16)
    assert isinstance(tree, MultipleSplit)
    assert tree.others == SizeSplit(0, 9, any_[0], any_[1])
    assert leaf(tree.multiples, (512,)) == known_[1]
    assert len({config for _, config in branches(tree)}) == 3
    alike = [{c: min(t, 1.0) if c.anywhere else t for c, t in row.items()} for row in table]
    assert AnchorTimes(sizes, alike).by_multiples(0, 16) in any_


def test_a_tree_asks_for_two_sizes_where_both_matter() -> None:
    sizes = [(16, 16), (16, 512), (512, 16), (512, 512)]
    table = [dict.fromkeys((A, B, C), 2.0) for _ in sizes]
    for times, best in zip(table, (A, A, B, C), strict=True):
        times[best] = 1.0
    tree = tree_of(sizes, table)
    assert [leaf(tree, each) for each in sizes] == [A, A, B, C]
    assert len(list(branches(tree))) == 3


def test_a_tree_of_near_equals_is_one_config() -> None:
    assert tree_of([(16,), (512,)], [{A: 1.0, B: 1.01}, {A: 1.005, B: 1.0}]) == A


@pytest.mark.dynamo
def test_by_the_model_few_configs_are_for_all_sizes(learn: Learn) -> None:
    tree = learn()
    assert isinstance(tree, MultipleSplit)
    parts = [{c for _, c in branches(part)} for part in (tree.multiples, tree.others)]
    assert all(len(configs) > 2 for configs in parts)
    assert all(len({config.num_warps for config in configs}) > 1 for configs in parts)
    assert len(parts[0] | parts[1]) <= KERNELS
    assert "no multiple of 16" in list(branches(tree))[-1][0]


@pytest.mark.dynamo
def test_by_the_model_the_tree_loses_little_at_any_size(
    planned: tuple[Graph, Plan], learn: Learn
) -> None:
    """Beside the best usual config of each size, in the mean over sizes from 20 on."""
    graph, plan = planned
    (group,) = plan.groups
    tree = learn()
    assert tree is not None
    losses = []
    for size in (20, 47, 100, 300, 512, 777, 1000, 1500, 2246, 3001, 4096, 5000, 7001, 8190):
        moved = at_sizes(graph, [size])
        assert moved is not None
        group_graph = subgraph(moved, group.nodes).graph
        space = space_of(group_graph, H200)
        assert isinstance(space, Space)
        anchor = Anchor((size,), group_graph, space)
        (best,) = anchor.best(1)
        losses.append(anchor.modelled(leaf(tree, [size])) / anchor.modelled(best))
    assert math.prod(losses) ** (1 / len(losses)) < 1.05
    assert max(losses) < 1.3


@pytest.mark.dynamo
def test_a_group_has_at_most_eight_kernels_for_all_sizes(
    planned: tuple[Graph, Plan], learn: Learn
) -> None:
    graph, plan = planned
    (group,) = plan.groups
    tree = learn()
    wide = replace(plan, groups=(replace(group, sizes=tree),))
    assert wide.is_for_all_sizes
    assert Plan.from_json(wide.to_json()) == wide
    texts = set()
    for size in (
        *range(2, 200, 7),
        256,
        511,
        512,
        513,
        1000,
        1018,
        1024,
        1025,
        3001,
        4090,
        4096,
        5000,
        8190,
        8192,
    ):
        moved = at_sizes(graph, [size])
        assert moved is not None
        assert family_key(moved) == family_key(graph)
        (own,) = plan_at(wide, moved).groups
        assert own.config is not None
        program = lower(subgraph(moved, own.nodes).graph, own.config)
        assert isinstance(program, Program)
        texts |= {re.sub(" # .*", "", kernel.text) for kernel in program.kernels}
    assert 1 < len(texts) <= 8


@pytest.mark.dynamo
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_measured_decides_and_what_fails_is_left_out(
    planned: tuple[Graph, Plan], learn: Learn, fails: bool
) -> None:
    graph, _ = planned
    seen: set[tuple[int, ...]] = set()
    wrong: set[Config] = set()

    def measure(anchor: Anchor, configs: list[Config]) -> dict[Config, float]:
        """Small blocks are best up to 512 elements; they may be wrong at one size."""
        seen.add(anchor.sizes)
        small = 1.0 if anchor.sizes[0] <= 512 else 3.0
        if fails and anchor.sizes[0] == 128:
            small = math.inf
            wrong.update(c for c in configs if dict(c.blocks).get("r0") != 8192)
        return {c: 2.0 if dict(c.blocks).get("r0") == 8192 else small for c in configs}

    tree = learn(measure)
    assert tree is not None
    assert sizes_of(graph) in seen
    assert len(seen) > 4
    assert dict(leaf(tree, [8192]).blocks)["r0"] == 8192
    assert dict(leaf(tree, [16]).blocks)["r0"] < 8192
    assert bool(wrong) == fails
    assert isinstance(tree, MultipleSplit)
    assert not wrong & {config for _, config in branches(tree.multiples)}


@pytest.mark.dynamo
def test_one_short_row_at_a_time_is_measured_where_rows_begin_anywhere(learn: Learn) -> None:
    """The model thinks that several rows at a time are faster."""

    def rows(config: Config) -> int:
        return dict(config.blocks)["x0"]

    def measure(anchor: Anchor, configs: list[Config]) -> dict[Config, float]:
        if anchor.sizes != (241,):
            return {c: anchor.modelled(c) for c in configs}
        assert rows(min(configs, key=anchor.modelled)) > 1
        return {c: 1.0 if rows(c) == 1 else 2.0 for c in configs}

    tree = learn(measure)
    assert tree is not None
    assert rows(leaf(tree, [241])) == 1
    assert rows(leaf(tree, [2033])) == 1


@pytest.mark.dynamo
def test_rows_that_begin_anywhere_are_held_where_that_is_measured_to_be_faster(
    learn: Learn,
) -> None:
    """By the model loops read them as fast; a tile of 8192 has no room for 8190 that begin
    anywhere."""

    def measure(anchor: Anchor, configs: list[Config]) -> dict[Config, float]:
        return {c: anchor.modelled(c) * (0.7 if c.layout.holds else 1.0) for c in configs}

    tree = learn(measure)
    assert tree is not None
    for size in (5001, 8175):
        held = leaf(tree, [size])
        assert held.layout.holds
        assert dict(held.blocks)["r0"] == 8192
    assert not leaf(tree, [8190]).layout.holds


@pytest.mark.dynamo
def test_of_products_every_tile_is_looked_at() -> None:
    """Few rows are multiplied by small tiles and many by large ones; the first of the configs are
    all of one large tile."""
    x = torch.empty(1024, 1024, dtype=torch.bfloat16)
    torch._dynamo.mark_dynamic(x, 0)
    found = capture_model(
        Linear(), CallArguments.of((x,)), training=False, dynamic=False, numerics="fast"
    )
    graph = found.parts[0].captured.graph
    own = subgraph(graph, [node.id for node in graph.nodes if is_compute(node)]).graph
    here = space_of(own, H200)
    assert isinstance(here, Space)
    usual = here.top()
    assert usual is not None
    tree = learned(own, usual[0], H200)
    assert tree is not None
    assert 2 < len({config for _, config in branches(tree)}) <= KERNELS // 2
    for size in (10, 100, 900, 8192):
        moved = at_sizes(own, [size])
        assert moved is not None
        space = space_of(moved, H200)
        assert isinstance(space, Space)
        (best, *_), anchor = space.ranked(1), Anchor((size,), moved, space)
        near = anchor.best(1)[0]
        assert anchor.modelled(near) <= 1.02 * best[1].seconds, size
        assert anchor.modelled(leaf(tree, [size])) <= 1.25 * best[1].seconds, size


@pytest.mark.dynamo
def test_with_time_for_one_anchor_its_configs_run_at_all_sizes(learn: Learn) -> None:
    """As on a slow host. It is the largest one: what is right there is right below."""
    asked: list[tuple[int, ...]] = []
    right: set[Config] = set()

    def measure(anchor: Anchor, configs: list[Config]) -> dict[Config, float]:
        asked.append(anchor.sizes)
        if len(asked) > 1:
            return {}
        right.update(configs)
        return dict.fromkeys(configs, 1.0)

    tree = learn(measure)
    assert tree is not None
    assert asked[:2] == [(8191,), (9,)]
    assert len(asked) == len(set(asked))
    assert {config for _, config in branches(tree)} <= right
