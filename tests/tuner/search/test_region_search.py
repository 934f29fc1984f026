"""Regions of a graph on times from a formula."""

from dataclasses import replace
from itertools import chain, repeat

import pytest
import torch
import torch.nn.functional as F
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.regions.regions import regions
from fusionplan.tuner.capture.capture_model import capture_model
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.ledger import Ledger, graph_record
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.region_search import RegionSearch
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.search.tuned_groups import Identity, Tasks, plan_of
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab

H200 = builtin("h200")

IMAGE = "bfloat16[64, 64, 56, 56] strides [200704, 1, 3584, 64]"
WEIGHT = "bfloat16[64, 64, 3, 3] strides [576, 1, 192, 64]"
CONVOLUTION = "aten.convolution.default(%{x}, %{w}, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)"


def block(x: int, w: int, s: int, first: int) -> str:
    """A convolution, scaled, shifted and cut off at 0, in four nodes."""
    calls = [
        CONVOLUTION.format(x=x, w=w),
        f"aten.mul.Tensor(%{first}, %{s})",
        f"aten.add.Tensor(%{first + 1}, %{s})",
        f"aten.relu.default(%{first + 2})",
    ]
    return "\n".join(f"%{first + i} = {call} : {IMAGE}" for i, call in enumerate(calls))


def two_blocks() -> Graph:
    inputs = [IMAGE, WEIGHT, "bfloat16[64, 1, 1]", WEIGHT, "bfloat16[64, 1, 1]"]
    lines = [f"%{i} = input() : {kind}" for i, kind in enumerate(inputs)]
    lines += ["%5 = aten.sort.default(%0) : ?", f"%6 = operator.getitem(%5, 0) : {IMAGE}"]
    lines += [block(6, 1, 2, 7), block(10, 3, 4, 11), "return %14"]
    return parse("\n".join(lines))


def by_bytes(group: Group, candidate: Candidate) -> float:
    ends = (*group.graph.inputs, *(o or 0 for o in group.graph.outputs))
    return sum(t.nbytes for n in ends if (t := group.graph.nodes[n].type)) * 1e-12


def region_search(store: Store, lab: FakeLab) -> RegionSearch:
    graph = two_blocks()
    name = key(graph)
    store.put_graph(graph_record(graph, name, "test"))
    ledger = Ledger(store, H200.key, {"t": "1"}, name)
    shared = SharedSearch(lab, ledger, Findings(), RecordedProgress())
    return RegionSearch(Tasks(graph, H200), shared, Identity(name, H200.key, {"t": "1"}))


def test_equal_regions_are_searched_once_and_all_replaced(store: Store) -> None:
    lab = FakeLab(by_bytes)
    found = region_search(store, lab)
    assert len(found.trials) == 2
    found.run(Budget(20))
    once = len(lab.measured)
    (bodies,) = {g.bodies for groups in found.found.values() for g in groups}
    assert 0 < once <= 20
    assert all(body.groups for body in bodies)
    (plan, *_) = found.plans([])
    assert [g.lowering for g in plan.groups] == ["folded", "folded"]


def test_what_there_was_no_time_for_runs_as_the_model_says(store: Store) -> None:
    times = chain((0.0, 0.0), repeat(2.0))
    found = region_search(store, lab := FakeLab(by_bytes))
    found.run(Budget(20, 1.0, lambda: next(times)))
    assert not lab.measured
    (bodies,) = {g.bodies for groups in found.found.values() for g in groups}
    kernels = [group for body in bodies for group in body.groups]
    assert kernels
    assert {group.lowering for group in kernels} == {"triton"}


def test_a_region_that_is_slower_than_its_groups_is_left(store: Store) -> None:
    """What makes a weight takes a second, and what follows a convolution more or less."""
    found = region_search(store, FakeLab(lambda group, candidate: 1.0))
    found.run(Budget(20))
    preferred = plan_of(found.preferred, found.tasks, found.shared.findings, found.identity)

    def plans(seconds: float) -> list[list[str]]:
        groups = tuple(replace(group, measured=seconds) for group in preferred.groups)
        made = found.plans([replace(preferred, groups=groups)])
        return [[group.lowering for group in plan.groups] for plan in made]

    assert plans(0.1) == []
    assert plans(2.0) == [["folded", "folded"]]


def test_a_region_that_spares_memory_may_not_take_many_times_as_long(store: Store) -> None:
    """As a product that is computed again for each of nine windows that read its result."""
    found = region_search(store, FakeLab(by_bytes))
    found.run(Budget(20))
    preferred = plan_of(found.preferred, found.tasks, found.shared.findings, found.identity)
    base = replace(preferred, groups=tuple(replace(g, measured=1.0) for g in preferred.groups))

    def plans(seconds: float) -> list[set[str]]:
        for nodes, (group, *_) in found.found.items():
            found.found[nodes] = [replace(group, lowering="recomputed", measured=seconds)]
        return [{group.lowering for group in plan.groups} for plan in found.plans([base])]

    inside = sum(set(g.nodes) <= set(next(iter(found.found))) for g in base.groups)
    assert plans(1.9 * inside) == [{"recomputed"}]
    assert plans(2.1 * inside) == []


@pytest.mark.dynamo
def test_windows_of_a_pool_do_not_have_a_product_computed_nine_times(store: Store) -> None:
    """By the model that takes ten times as long as the product and the pool after it."""

    def stem(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.conv2d(x, weight, stride=2, padding=3).relu(), 3, 2, 1)

    shapes = (64, 3, 224, 224), (64, 3, 7, 7)
    given = tuple(torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes)
    graph = capture_model(stem, given).parts[0].captured.graph
    shared = SharedSearch(FakeLab(by_bytes), None, Findings(), RecordedProgress())
    found = RegionSearch(Tasks(graph, H200), shared, Identity("", H200.key, {}))
    assert regions(graph, found.preferred)
    assert not found.trials
