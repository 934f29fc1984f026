"""The agreement of ranks, on a store within this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from fusionplan.planner.capture.collectives import process_group, process_groups
from fusionplan.planner.capture.rewrites.common_subexpressions import drop_duplicates
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.dispatch.ranks import Ranks, disagreement
from torch import fx
from torch.distributed import HashStore

PLAN = Plan("graph", "device", (), "measured", (), predicted=1e-3, measured=2e-3)


def ranks(count: int, patience_s: float = 5.0) -> list[Ranks]:
    store = HashStore()
    return [Ranks(store, rank, count, patience_s) for rank in range(count)]


def agreed(made: list[Ranks], *values: str) -> list[str]:
    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(lambda pair: pair[0].agree(pair[1]), zip(made, values, strict=False)))


def test_ranks_with_one_plan_run_by_it() -> None:
    made = ranks(3)
    assert agreed(made, "a", "a", "a") == ["", "", ""]
    assert agreed(made, "b", "b", "b") == ["", "", ""]


def test_ranks_with_other_plans_fall_back_but_only_for_that_graph() -> None:
    made = ranks(3)
    assert (
        agreed(made, "a", "b", "a")
        == ["the ranks of its process group have different graphs or plans"] * 3
    )
    assert agreed(made, "a", "a", "a") == ["", "", ""]


def test_a_rank_without_a_plan_takes_all_with_it() -> None:
    assert (
        agreed(ranks(3), "a", "", "a")
        == ["a rank of its process group has no plan that it can run by"] * 3
    )


def test_a_rank_that_never_comes_is_waited_for_once() -> None:
    first, second = ranks(2, patience_s=0.1)
    late = "a rank of its process group did not answer within 0 s"
    assert first.agree("a") == late
    assert first.agree("b") == late
    # Who comes late finds what was decided without it, and later graphs are not waited for.
    assert second.agree("a") == late
    assert second.agree("b") == late
    assert agreed([first, second], "c", "c") == [late, late]


def test_without_other_processes_nothing_is_asked() -> None:
    torch.distributed.init_process_group("fake", store=HashStore(), rank=0, world_size=4)
    try:
        group = torch.distributed.group.WORLD
        assert group is not None
        assert disagreement([group.group_name], PLAN) == ""
    finally:
        torch.distributed.destroy_process_group()


def test_the_figures_of_a_plan_are_no_part_of_how_it_runs() -> None:
    from fusionplan.planner.runtime.dispatch.ranks import _course

    assert _course(PLAN) == _course(replace(PLAN, predicted=3.0, evidence="modelled", device="x"))
    assert _course(PLAN) != _course(replace(PLAN, overlaps=True))


def test_a_collective_is_told_by_its_schema() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    named = torch.ops._c10d_functional
    sums = [graph.call_function(named.all_reduce.default, (x, "sum", "g")) for _ in range(2)]
    waits = [graph.call_function(named.wait_tensor.default, (each,)) for each in sums]
    graph.output(tuple(waits))
    assert [process_group(node) for node in graph.nodes] == [None, "g", "g", None, None, None]
    assert process_groups(tuple(graph.nodes)) == ("g",)
    drop_duplicates(graph)  # Other ranks may run both.
    assert len(graph.find_nodes(op="call_function", target=named.all_reduce.default)) == 2
