"""Partitions on times from a formula; the planner's own legality, and the model for a device."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import learned
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, key
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.records.ledger import Ledger, compute_count, device_record, graph_record
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.partition_search import COVERS, PartitionSearch
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.search.tuned_groups import (
    CoverFunctions,
    Identity,
    Tasks,
    measured_s,
    plan_of,
)
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group
from fusionplan.tuner.workers.ranking import RankedSpace
from tuner_fakes import FakeLab
from tuner_graphs import attention, chain, dense

H200 = builtin("h200")

pytestmark = pytest.mark.usefixtures("quick_prices")


SPACES: dict[str, RankedSpace | Refusal] = {}
"""Of all groups of all tests, by the groups' keys: what the model says of them is the same."""


def tasks_of(graph: Graph) -> Tasks:
    return Tasks(graph, H200, _spaces=SPACES)


def search(store: Store, graph: Graph, lab: FakeLab, trials: int = 40):
    store.put_graph(graph_record(graph, key(graph), "test"))
    shared = SharedSearch(
        lab, Ledger(store, H200.key, {"t": "1"}, key(graph)), Findings(), RecordedProgress()
    )
    tasks = tasks_of(graph)
    found = PartitionSearch(tasks, shared, Budget(trials))
    found.run()
    return found, tasks, shared


def big(count: int) -> Graph:
    return chain(count, rows=1 << 16)


def fused(group: Group, candidate: Candidate) -> float:
    """Each operation costs little, each kernel much."""
    count = compute_count(group.graph)
    return count * 1e-4 if candidate.config is None else 1e-4 + 1e-7 * count


def slow_when_long(group: Group, candidate: Candidate) -> float:
    """More than two operations in a kernel spill, which the model does not see."""
    count = compute_count(group.graph)
    each = 1e-4 if candidate.config is None else 1.2e-5
    return each * count * (3.0 if count > 2 else 1.0)


@pytest.mark.slow
def test_one_obvious_group_costs_nothing_extra(store: Store):
    def at_the_floor(group: Group, candidate: Candidate) -> float:
        return tasks_of(graph).of(tuple(range(1, 4))).floor_s * (1 if candidate.config else 3)

    graph = big(3)
    found, _, _ = search(store, graph, lab := FakeLab(at_the_floor))
    assert {k for k, _ in lab.measured} == {key(graph)}
    assert [len(p.groups) for p in found.best()] == [1]


@pytest.mark.slow
def test_fusing_wins_where_it_is_faster(store: Store):
    found, tasks, shared = search(store, big(4), FakeLab(fused))
    best = found.best()[0]
    assert len(best.groups) == 1
    assert best.measured_s == measured_s(best.groups, tasks, shared.findings)


@pytest.mark.slow
def test_a_cut_that_the_model_does_not_know_is_found(store: Store):
    found, _, _ = search(store, chain(4), FakeLab(slow_when_long), trials=100)
    assert all(len(g) <= 2 for g in found.best()[0].groups)
    assert len(found.seen) > 2


@pytest.mark.slow
def test_what_was_measured_makes_the_next_cover(store: Store):
    """A group ten times slower than the model says is left out at once, before all other covers."""
    graph = chain(4)
    whole = key(graph)

    def disappointing(group: Group, candidate: Candidate) -> float:
        return 1e-3 if group.key == whole else 1e-5

    found, tasks, _ = search(store, graph, FakeLab(disappointing), trials=100)
    first, second, *_ = found.seen
    assert [task.group.key for task in tasks.all(first)] == [whole]
    assert second == learned(graph, H200, {whole: 1.0})
    assert whole not in {task.group.key for task in tasks.all(second)}


@pytest.mark.slow
def test_equal_groups_are_tuned_once(store: Store):
    lab = FakeLab(slow_when_long)
    search(store, chain(4), lab, trials=80)
    candidates = list(lab.measured)
    assert len(candidates) == len(set(candidates))


def layers(count: int) -> Graph:
    """Softmax of the rows and a sum over the columns, again and again; nothing crosses a scan."""
    t, r = dense(1 << 12, 512), dense(1 << 12, 1)
    nodes = [Node(0, "x", "input", type=t)]

    def add(op: str, *args: object, kind: TensorType = t) -> Ref:
        nodes.append(Node(len(nodes), f"n{len(nodes)}", op, args, type=kind))
        return Ref(len(nodes) - 1)

    last = Ref(0)
    for _ in range(count):
        top = add("aten.amax.default", last, (1,), True, kind=r)
        exp = add("aten.exp.default", add("aten.sub.Tensor", last, top))
        total = add("aten.sum.dim_IntList", exp, (1,), True, kind=r)
        last = add("aten.digamma.default", add("aten.div.Tensor", exp, total))
    return Graph(tuple(nodes), (last.node,))


@pytest.mark.slow
def test_six_equal_layers_cost_no_more_than_one(tmp_path: Path):
    """Groups tuned, trials and measurements: all are of the one layer."""
    counts = []
    for number in (1, 6):
        lab = FakeLab(slow_when_long)
        graph = layers(number)
        with Store.open(tmp_path / f"{number}.db") as store:
            store.put_device(device_record(H200))
            found, tasks, _ = search(store, graph, lab, trials=24)
        best = found.best()[0].groups
        distinct = {task.group.key for task in tasks.all(best)}
        assert len(best) == number * len(distinct)
        counts.append((distinct, sum(c.config is not None for _, c in lab.measured)))
        assert len(lab.measured) == len(set(lab.measured))
    (one, once), (six, more) = counts
    assert one == six
    assert 0 < more <= once


@pytest.mark.slow
def test_the_models_next_best_covers_are_looked_at_before_others(store: Store):
    graph = attention(64, 2048)  # Its scores are dear: the model looks at more than one cover.
    lab = FakeLab(fused)
    found, tasks, _ = search(store, graph, lab, trials=60)
    best = tasks.cover.best(graph, H200, COVERS)
    assert len(best) > 2
    seen, best_groups = list(found.seen)[: len(best)], [cover.groups for cover in best]
    assert seen[0] == best_groups[0]
    assert set(seen) == set(best_groups)  # what was measured may change their order


def test_what_a_lower_bound_excludes_is_not_compiled(store: Store):
    graph = big(4)
    floor = tasks_of(graph).of((1, 2, 3, 4)).floor_s

    # 30% over the floor of one kernel: two kernels cannot be faster, but it is not obvious.
    lab = FakeLab(lambda g, c: floor * 1.3 if c.config else 1.0)
    found, _, _ = search(store, graph, lab)
    assert {k for k, _ in lab.measured} == {key(graph)}
    assert len(found.seen) > 1


def test_the_budget_counts_all_groups(store: Store):
    lab = FakeLab(fused)
    search(store, chain(5), lab, trials=30)
    assert sum(c.config is not None for _, c in lab.measured) <= 30 + 4


@pytest.mark.slow
def test_no_group_is_left_for_want_of_time_that_others_took(store: Store):
    """Each measurement takes a second, and there is time for few more than one of each group."""
    t = dense(1 << 12, 512)
    nodes = [Node(0, "x", "input", type=t)]
    for length in range(1, 13):
        for op in ["aten.sin.default"] * length:
            nodes.append(Node(len(nodes), f"n{len(nodes)}", op, (Ref(len(nodes) - 1),), type=t))
        last = (Ref(len(nodes) - 1),)
        nodes.append(Node(len(nodes), f"n{len(nodes)}", "aten.digamma.default", last, type=t))
    graph = Graph(tuple(nodes), (len(nodes) - 1,))
    now = [0.0]

    def slow(group: Group, candidate: Candidate) -> float:
        now[0] += 1
        return 1e-4 if candidate.config else 1e-3

    store.put_graph(graph_record(graph, key(graph), "test"))
    ledger = Ledger(store, H200.key, {"t": "1"}, key(graph))
    shared = SharedSearch(FakeLab(slow), ledger, Findings(), RecordedProgress())
    tasks = tasks_of(graph)
    found = PartitionSearch(tasks, shared, Budget(200, 27.0, lambda: now[0]))
    found.run()
    groups = found.best()[0].groups
    assert len(groups) == 12
    assert all(shared.findings.of(task.group.key).trials for task in tasks.all(groups))


def test_a_group_that_disappoints_gets_the_time(store: Store):
    """The model finds all groups alike; the one that is slow when first tried is tuned first."""
    t = dense(1 << 12, 512)
    nodes, ops = [Node(0, "x", "input", type=t)], ("sin", "cos", "exp")
    for op in ops:
        for name, more in ((op, ()), ("digamma", ())):
            given = (Ref(len(nodes) - 1), *more)
            nodes.append(Node(len(nodes), f"n{len(nodes)}", f"aten.{name}.default", given, type=t))
    graph = Graph(tuple(nodes), (len(nodes) - 1,))
    tasks = tasks_of(graph)
    slow = tasks.of((3,)).group.key
    lab = FakeLab(lambda g, c: (1e-3 if g.key == slow else 1e-5) * (1 if c.config else 9))
    search(store, graph, lab, trials=60)
    tried = [key for key, candidate in lab.measured if candidate.config]
    assert len(set(tried[:3])) == len(ops)
    assert tried[3] == slow
    assert tried.count(slow) > 60 / 2


def test_an_interrupted_search_gives_what_it_has(store: Store):
    graph = chain(3)
    store.put_graph(graph_record(graph, key(graph), "test"))
    lab = FakeLab(fused, interrupt_at=5)
    shared = SharedSearch(
        lab, Ledger(store, H200.key, {"t": "1"}, key(graph)), Findings(), RecordedProgress()
    )
    tasks = tasks_of(graph)
    found = PartitionSearch(tasks, shared, Budget(40))
    with pytest.raises(KeyboardInterrupt):
        found.run()
    plan = plan_of(found.best()[0].groups, tasks, shared.findings, Identity("k", "d", {"t": "1"}))
    assert [g.lowering for g in plan.groups] == ["triton"]


def test_a_group_without_findings_is_left_to_the_framework(store: Store):
    graph = chain(2)
    tasks = tasks_of(graph)
    plan = plan_of(((1,), (2,)), tasks, Findings(), Identity("k", "d", {"t": "1"}))
    assert [(g.lowering, g.measured, g.kernels) for g in plan.groups] == [("aten", None, 1)] * 2


def test_a_graph_with_nothing_to_fuse(store: Store):
    t = dense(8, 8)
    graph = Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "digamma", "aten.digamma.default", (Ref(0),), type=t),
        ),
        (1,),
    )
    lab = FakeLab(fused)
    found, _, _ = search(store, graph, lab)
    assert not lab.measured
    assert found.best() == [] or found.best()[0].groups == ()


@pytest.mark.slow
def test_a_plan_names_the_vendors_call_that_won(store: Store):
    graph = attention(32, 1024, "bfloat16")

    def formula(group: Group, candidate: Candidate) -> float:
        if candidate.lowering == "vendor":
            return 1e-4
        return 4e-4 * (compute_count(group.graph) if candidate.config is None else 1)

    found, tasks, shared = search(store, graph, FakeLab(formula))
    identity = Identity("k", "d", {"t": "1"})
    (group,) = plan_of(found.best()[0].groups, tasks, shared.findings, identity).groups
    assert (group.lowering, group.options, group.config) == ("vendor", "attention", None)
    assert (group.measured, group.predicted, group.kernels) == (1e-4, None, 1)


def test_a_group_of_a_vendors_call_is_measured_whatever_the_model_says(store: Store):
    graph = attention(32, 1024, "bfloat16")
    store.put_graph(graph_record(graph, key(graph), "test"))
    lab = FakeLab(lambda g, c: 1e-4)
    shared = SharedSearch(
        lab, Ledger(store, H200.key, {"t": "1"}, key(graph)), Findings(), RecordedProgress()
    )
    tasks = tasks_of(graph)
    whole = tasks.cover.partition(graph, frozenset())
    (task,) = (tasks.of(nodes) for nodes in whole)
    assert task.vendors
    assert not tasks.of((3, 4)).vendors
    found = PartitionSearch(tasks, shared, Budget(40))
    assert task.modelled is not None
    assert found._estimated_s(whole) == task.floor_s < task.modelled.seconds


def with_inductor(seconds: float):
    def formula(group: Group, candidate: Candidate) -> float:
        return seconds if candidate.lowering == "inductor" else fused(group, candidate)

    return formula


def test_inductor_is_tried_on_a_group_of_several_operations_and_may_win(store: Store):
    graph = big(4)
    found, tasks, shared = search(store, graph, lab := FakeLab(with_inductor(5e-5)))
    assert [k for k, c in lab.measured if c.lowering == "inductor"] == [key(graph)]
    identity = Identity("k", "d", {"t": "1"})
    (group,) = plan_of(found.best()[0].groups, tasks, shared.findings, identity).groups
    assert (group.lowering, group.options, group.config) == ("inductor", "default", None)
    (trial,) = [t for t in store.trials() if t.config["lowering"] == "inductor"]
    assert trial.measured_s == 5e-5


def test_an_inductor_that_is_slower_changes_nothing(store: Store):
    found, tasks, shared = search(store, big(4), FakeLab(with_inductor(1.0)))
    plan = plan_of(found.best()[0].groups, tasks, shared.findings, Identity("k", "d", {"t": "1"}))
    assert [g.lowering for g in plan.groups] == ["triton"]


def test_inductor_is_not_tried_near_the_floor_or_without_trials_or_time(store: Store):
    graph = big(3)
    floor = tasks_of(graph).of((1, 2, 3)).floor_s
    for formula, trials in ((lambda g, c: floor if c.config else 1.0, 40), (fused, 4)):
        lab = FakeLab(formula)
        search(store, graph, lab, trials)
        assert all(c.lowering != "inductor" for _, c in lab.measured)


def product_and_relu(rows: int = 1 << 13) -> Graph:
    """relu(x) * x, and a large product of something else, which stands alone."""
    t, w = dense(rows, 1024, dtype="bfloat16"), dense(1024, 1024, dtype="bfloat16")
    nodes = (
        Node(0, "x", "input", type=t),
        Node(1, "w", "input", type=w),
        Node(2, "relu", "aten.relu.default", (Ref(0),), type=t),
        Node(3, "mul", "aten.mul.Tensor", (Ref(2), Ref(0)), type=t),
        Node(4, "y", "input", type=t),
        Node(5, "mm", "aten.mm.default", (Ref(4), Ref(1)), type=t),
    )
    return Graph(nodes, (3, 5))


def test_products_alone_are_tried_last_or_left_to_the_vendor(store: Store):
    graph = product_and_relu()
    lab = FakeLab(lambda group, candidate: 1e-4 if candidate.config is None else 5e-5)
    found, tasks, shared = search(store, graph, lab)
    (own,) = [task.group.key for task in tasks.all(((2, 3),))]
    (product,) = tasks.all(((5,),))
    assert product.vendor_s > 0
    order = [key for key, _ in lab.measured]
    before = order[: order.index(product.group.key)]
    assert set(before) == {own}
    assert len(before) > found.split.usual
    # Without a measurement of it the partition has its seconds by the model.
    only = Findings()
    only.groups[own] = shared.findings.of(own)
    assert measured_s(found.tasks.first, tasks, only) == pytest.approx(5e-5 + product.vendor_s)
    plan = plan_of(tasks.first, tasks, only, Identity(key(graph), H200.key, {}))
    assert sorted(group.lowering for group in plan.groups) == ["aten", "triton"]


def test_the_first_config_of_each_group_is_compiled_before_the_second_of_any() -> None:
    """With the first of each there is a whole plan."""
    two = SimpleNamespace(groups=((1,), (2, 3)))
    cover = CoverFunctions(best=lambda graph, profile, count: (two,))
    found = PartitionSearch(Tasks(chain(3), H200, cover), SimpleNamespace(), Budget(40))
    keys = [group.key for group, _ in found.ahead()]
    assert len({*keys}) == 2
    assert keys == keys[:2] * (len(keys) // 2)
    assert len(keys) >= 4
