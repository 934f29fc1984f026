"""Where the time goes: equal steps stand together."""

from dataclasses import replace

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.report.collect import Subject, collect
from fusionplan.report.spent import spent
from fusionplan.report.view import GraphPage
from report_store import block, measured


@pytest.fixture(scope="module")
def steps():
    graph = block()
    (made,) = collect("block", [Subject("block", graph, measured(graph), "")], H200, None).graphs
    return made.steps


def test_equal_steps_stand_together(steps):
    layers = [*steps[:2], *steps[:2], steps[2]]
    first, second = spent(layers)
    assert [each.times for each in (first, second)] == [2, 2]
    assert first.seconds == pytest.approx(2 * steps[0].measured_s)
    assert first.least_s == pytest.approx(2 * steps[0].least.seconds)
    assert first.share + second.share == pytest.approx(1.0)
    assert first.seconds >= second.seconds


def test_small_figures_are_not_none_at_all():
    graph = block()
    report = collect("block", [Subject("block", graph, measured(graph), "")], H200, None)
    page = GraphPage(0, report.graphs[0], report.roof)
    assert [page.percent(share) for share in (0.351, 0.004)] == ["35%", "under 1%"]
    plan_bytes = report.graphs[0].traffic.plan_bytes
    assert page.over(plan_bytes // 2) == "0.50x"
    assert page.over(plan_bytes // 1000) == "0.001x"


def test_steps_of_other_sizes_are_others(steps):
    larger = replace(steps[0], least=replace(steps[0].least, nbytes=1))
    assert [each.times for each in spent([steps[0], larger])] == [1, 1]


def test_of_no_steps_there_is_nothing():
    assert spent([]) == ()


def test_equal_borders_are_one_row():
    graph = block()
    report = collect("block", [Subject("block", graph, measured(graph), "")], H200, None)
    (one,) = report.graphs
    first = GraphPage(0, one, report.roof).dearest
    assert [times for *_, times in first] == [1] * len(first)

    def moved(step):
        borders = tuple(replace(b, other=b.other + len(one.steps)) for b in step.borders)
        return replace(step, place=step.place + len(one.steps), borders=borders)

    two = replace(one, steps=(*one.steps, *map(moved, one.steps)))
    again = GraphPage(0, two, report.roof).dearest
    assert [(label, border) for label, border, _ in again] == [each[:2] for each in first]
    assert [times for *_, times in again] == [2] * len(first)
