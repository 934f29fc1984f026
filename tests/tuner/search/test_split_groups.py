"""A group whose kernels were wrong, or far slower than the model says, is run in parts."""

from dataclasses import replace

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph, Node, Ref, key
from fusionplan.planner.graph.ops import Contraction, row
from fusionplan.tuner.records.findings import Findings
from fusionplan.tuner.search.config_search import SURE
from fusionplan.tuner.search.split_groups import with_slow_groups_split
from fusionplan.tuner.search.tuned_groups import Identity, Tasks, completed
from fusionplan.tuner.trial.outcome import ATEN, Candidate, Outcome, Timed, Wrong
from tuner_graphs import dense

H200 = builtin("h200")


def normalised_product() -> Graph:
    """relu(x * y) @ w, and what follows it: relu(_ + x)."""
    t = dense(1 << 14, 256, dtype="bfloat16")
    w = dense(256, 256, dtype="bfloat16")
    return Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "y", "input", type=t),
            Node(2, "w", "input", type=w),
            Node(3, "mul", "aten.mul.Tensor", (Ref(0), Ref(1)), type=t),
            Node(4, "relu", "aten.relu.default", (Ref(3),), type=t),
            Node(5, "mm", "aten.mm.default", (Ref(4), Ref(2)), type=t),
            Node(6, "add", "aten.add.Tensor", (Ref(5), Ref(0)), type=t),
            Node(7, "out", "aten.relu.default", (Ref(6),), type=t),
        ),
        (7,),
    )


WHOLE = ((3, 4, 5, 6, 7),)


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return Tasks(normalised_product(), H200)


def tried(tasks: Tasks, kernel: Outcome, framework_s: float) -> Findings:
    """Of the whole graph as one group: the framework's seconds, and what came of one kernel."""
    (task,) = tasks.all(WHOLE)
    config, cost = task.space.top()
    findings = Findings()
    own = findings.of(task.group.key)
    own.add(ATEN, Timed(framework_s, 0.0, 9), None)
    own.add(Candidate("triton", config), kernel, cost)
    return findings


def test_a_group_without_a_right_kernel_runs_in_parts(tasks: Tasks):
    findings = tried(tasks, Wrong("output 0"), 3e-3)
    groups = with_slow_groups_split(WHOLE, tasks, findings)
    assert groups == ((3, 4), (5, 6, 7))
    nodes = tasks.graph.nodes
    assert isinstance(row(nodes[groups[1][0]]), Contraction)
    plan = completed(groups, tasks, findings, Identity(key(tasks.graph), H200.key, {}))
    assert plan is not None
    assert [group.lowering for group in plan.groups] == ["triton", "triton"]


def test_operations_around_a_product_are_not_timed_one_by_one(tasks: Tasks):
    """The model is sure that five kernels take longer than one: a trial of them would take the
    time of one of ours. A product alone is the vendor's to win."""
    (whole,), (product,) = tasks.all(WHOLE), tasks.all(((5,),))
    assert whole.framework_s > SURE * whole.modelled.seconds
    assert product.framework_s == 0.0


def test_the_frameworks_time_by_the_model_stands_for_one_that_is_not_measured(tasks: Tasks):
    (task,) = tasks.all(WHOLE)
    config, cost = task.space.top()
    findings = Findings()
    findings.of(task.group.key).add(Candidate("triton", config), Wrong("output 0"), cost)
    slow_tasks = Tasks(tasks.graph, H200)
    slow_tasks._by_nodes[WHOLE[0], ()] = replace(task, framework_s=3e-3)
    assert len(with_slow_groups_split(WHOLE, slow_tasks, findings)) == 2


def test_a_slow_kernel_is_split_and_a_usual_one_is_not(tasks: Tasks):
    (task,) = tasks.all(WHOLE)
    usual_s = task.modelled.seconds
    slow = tried(tasks, Timed(6 * usual_s, 0.0, 9), 3e-3)
    assert len(with_slow_groups_split(WHOLE, tasks, slow)) == 2
    for seconds in (usual_s, 1.4 * usual_s):
        fine = tried(tasks, Timed(seconds, 0.0, 9), 3e-3)
        assert with_slow_groups_split(WHOLE, tasks, fine) == WHOLE


def test_parts_that_were_measured_count_as_such(tasks: Tasks):
    findings = tried(tasks, Wrong("output 0"), 3e-3)
    for task in tasks.all(((3, 4), (5, 6, 7))):
        findings.of(task.group.key).add(ATEN, Timed(1.2e-3, 0.0, 9), None)
    assert with_slow_groups_split(WHOLE, tasks, findings) == WHOLE


def test_a_group_that_was_not_tried_is_left_to_the_model(tasks: Tasks):
    findings = Findings()
    (task,) = tasks.all(WHOLE)
    findings.of(task.group.key).add(ATEN, Timed(3e-3, 0.0, 9), None)
    assert with_slow_groups_split(WHOLE, tasks, findings) == WHOLE
