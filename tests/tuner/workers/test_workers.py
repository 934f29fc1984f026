"""Real worker processes: Triton's compiler for a target, and its interpreter on the CPU."""

from collections.abc import Iterator

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.space.space import space_of
from fusionplan.tuner.trial.outcome import ATEN, Candidate, ProgramResources, Rejected, Timed
from fusionplan.tuner.workers.lab import Group, WorkerLab
from fusionplan.tuner.workers.ranking import Ranking
from tuner_graphs import attention, dense, looked_up, pointwise, softmax

pytestmark = pytest.mark.process

H200 = builtin("h200")


@pytest.fixture(scope="module")
def lab() -> Iterator[WorkerLab]:
    limits = {"compile_limit_s": 60.0, "measure_limit_s": 120.0}
    with WorkerLab("cpu", 90, compilers=1, interpret=True, least=2, **limits) as opened:
        yield opened


def best(graph: Graph) -> Config:
    space = space_of(graph, H200)
    configs = [config for config, _ in space.ranked(100)]
    # Few programs: the interpreter runs one after another.
    return max(configs, key=lambda c: dict(c.blocks).get("x0", 1))


@pytest.mark.process
@pytest.mark.parametrize("graph", [pointwise(), softmax()], ids=["pointwise", "softmax"])
def test_compiles_for_a_target_and_measures_here(lab: WorkerLab, graph: Graph):
    group, config = Group.of(graph, "g"), best(graph)
    compiling = lab.compile(group, config)
    measured = lab.measure(group, Candidate("triton", config))
    assert isinstance(measured, Timed)
    assert measured.seconds > 0
    resources = compiling.result()
    assert isinstance(resources, ProgramResources)
    assert 8 <= resources.registers <= 255


def test_a_compiler_ranks_configs_as_the_parent_does(lab: WorkerLab):
    found = lab.rank(Group.of(softmax(), "g"), H200).result()
    assert found == Ranking.of(space_of(softmax(), H200))


def test_the_framework_is_a_candidate_and_a_duel_has_one_winner(lab: WorkerLab):
    group = Group.of(pointwise(), "g")
    assert isinstance(lab.measure(group, ATEN), Timed)
    duel = lab.duel(group, [ATEN, Candidate("triton", best(pointwise()))])
    seconds = [outcome.seconds for outcome in duel.outcomes if isinstance(outcome, Timed)]
    assert len(seconds) == 2
    assert duel.best is not None
    # Which one it is may be chance: on a busy machine two laps of the framework took 4 ms once.
    assert seconds[duel.best] <= 1.05 * min(seconds)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_vendors_call_is_checked_and_timed(lab: WorkerLab, dtype: str):
    group = Group.of(attention(dtype=dtype), "g")
    call = Candidate("vendor", options="attention")
    assert isinstance(lab.measure(group, call), Timed)
    assert isinstance(lab.measure(group, Candidate("vendor", options="linear_relu")), Rejected)
    duel = lab.duel(group, [ATEN, call])
    assert [type(o) for o in duel.outcomes] == [Timed, Timed]


def test_a_config_that_does_not_fit_is_rejected_by_both(lab: WorkerLab):
    group = Group.of(pointwise(), "g")
    config = Config((("x0", 16),), reduction="loop")
    assert isinstance(lab.compile(group, config).result(), Rejected)
    assert isinstance(lab.measure(group, Candidate("triton", config)), Rejected)


def test_an_index_outside_of_its_table_ends_no_worker(lab: WorkerLab):
    """A square is beyond the table, whatever numbers are made up."""
    group = Group.of(looked_up("aten.square.default", dense(6)), "g")
    found = lab.measure(group, ATEN)
    assert isinstance(found, Rejected)
    assert "no inputs could be made up: rows wants element" in found.reason
    assert isinstance(lab.measure(Group.of(pointwise(), "g"), ATEN), Timed)


def test_a_large_group_is_checked_at_both_ends_of_its_grid(lab: WorkerLab):
    graph = softmax(3000, 17)
    said = lab.check(Group.of(graph, "g"), Candidate("triton", Config((("x0", 2),), 1, 1)))
    assert isinstance(said, str)
    assert said.startswith("8 of 1500 programs on random, masked")
