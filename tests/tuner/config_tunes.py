"""Tunes of a group's config on times from a formula, and what they share."""

from functools import cache

from fusionplan.db import Store
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.progress.progress import RecordedProgress
from fusionplan.tuner.records.findings import Findings, GroupFindings
from fusionplan.tuner.records.ledger import Ledger, graph_record
from fusionplan.tuner.search.config_search import tune_group
from fusionplan.tuner.search.group_trials import Budget
from fusionplan.tuner.search.runoff import SharedSearch
from fusionplan.tuner.trial.outcome import (
    Candidate,
)
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab
from tuner_graphs import softmax

H200 = builtin("h200")
VERSIONS = {"torch": "2", "codegen": "1"}
GRAPH = softmax(512, 1000)


@cache
def shared_space(graph: Graph = GRAPH) -> Space:
    """The same for all tests, with its configs ranked."""
    found = space_of(graph, H200)
    assert isinstance(found, Space)
    return found


def warps(group: Group, candidate: Candidate) -> float:
    """The best is 8 warps with small blocks; the framework is slow."""
    if candidate.config is None:
        return 1.0
    off = abs(candidate.config.num_warps.bit_length() - 4)
    blocks = sum(size for _, size in candidate.config.blocks)
    return 0.1 + 0.02 * off + 1e-6 * blocks


def tune(
    store: Store, lab: FakeLab, trials: int = 20, graph=GRAPH, seed: int = 0, findings=None
) -> tuple[GroupFindings, RecordedProgress]:
    progress = RecordedProgress()
    store.put_graph(graph_record(graph, key(graph), "test"))
    ledger = Ledger(store, H200.key, VERSIONS, key(graph))
    shared = SharedSearch(lab, ledger, Findings() if findings is None else findings, progress, seed)
    found = tune_group(Group.of(graph, "g"), shared_space(graph), shared, Budget(trials))
    return found, progress
