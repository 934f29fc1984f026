"""What a report gathers, as data."""

import json
from dataclasses import replace

import pytest
from fusionplan.db import Store
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import INPUT, Graph, Node, Ref, TensorType
from fusionplan.report.collect import Subject, collect
from fusionplan.report.data import Report
from fusionplan.report.page import page, verdict
from report_store import COLUMNS, NAME, ROWS, block, contest, fill, measured

MIB = 1 << 20
WIDE = ROWS * COLUMNS * 2


def of(graph: Graph, plan, store: Store | None = None, **given) -> Report:
    subject = Subject(NAME, graph, plan, "a note", **given)
    return collect(NAME, [subject], H200, store)


@pytest.fixture(scope="module")
def modelled() -> Report:
    graph = block()
    return of(graph, modelled_plan(graph, H200), sources={4: "block.py:3: torch.relu(x + b)"})


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Report:
    graph, path = block(), tmp_path_factory.mktemp("store") / "plans.db"
    plan = fill(path, graph)
    with Store.open(path, create=False, read_only=True) as store:
        return of(graph, plan, store, key="k" * 32)


def test_steps_in_the_order_of_execution(modelled):
    (graph,) = modelled.graphs
    names = [(step.group, step.operations) for step in graph.steps]
    assert names == [
        (0, ("add", "relu", "mm")),
        (1, ("amax", "sub", "exp", "sum", "div", "mul")),
        (None, ("digamma",)),
    ]
    assert [step.place for step in graph.steps] == [0, 1, 2]
    assert graph.steps[0].source == ("block.py:3: torch.relu(x + b)",)
    assert graph.steps[1].source == ()


def test_an_operation_between_groups_stands_between_them():
    """exp, digamma, exp: the order is that of the data, not groups first."""
    wide = TensorType((4096, 64), (64, 1), "float32")
    graph = Graph(
        (
            Node(0, "x", INPUT, type=wide),
            Node(1, "first", "aten.exp.default", (Ref(0),), type=wide),
            Node(2, "scan", "aten.digamma.default", (Ref(1),), type=wide),
            Node(3, "turned", "aten.permute.default", (Ref(2), (1, 0)), type=TensorType(
                (64, 4096), (1, 64), "float32"
            )),
            Node(4, "last", "aten.exp.default", (Ref(3),), type=TensorType(
                (64, 4096), (1, 64), "float32"
            )),
        ),
        (4,),
    )  # fmt: skip
    (found,) = of(graph, modelled_plan(graph, H200)).graphs
    assert [step.operations for step in found.steps] == [("exp",), ("digamma",), ("exp",)]
    # The last reads the scan through a view that nobody stores.
    assert [(t.name, t.writer, t.readers) for t in found.stored] == [
        ("first", 0, (1,)),
        ("scan", 1, (2,)),
        ("last", 2, ()),
    ]


def test_tensors_that_go_through_memory(modelled):
    (graph,) = modelled.graphs
    found = {t.name: (t.writer, t.readers, t.result, t.nbytes) for t in graph.stored}
    assert found == {
        "mm": (0, (1,), False, WIDE),
        "div": (1, (2,), False, WIDE),
        "mul": (1, (), True, WIDE),
        "digamma": (2, (), True, WIDE),
    }
    seconds = {t.name: t.seconds for t in graph.stored}
    assert seconds["mm"] == pytest.approx(2 * WIDE / H200.bandwidth)
    assert seconds["mul"] == pytest.approx(WIDE / H200.bandwidth)


def test_values_that_no_memory_holds(modelled):
    (graph,) = modelled.graphs
    assert [value.name for value in graph.steps[0].gone] == ["add", "relu"]
    assert {value.name for value in graph.steps[1].gone} == {"amax", "sub", "exp", "sum_1"}
    assert graph.steps[0].gone[0].nbytes == WIDE


def test_the_least_and_the_traffic(modelled):
    (graph,) = modelled.graphs
    small = COLUMNS * 2 + COLUMNS * COLUMNS * 2
    assert graph.least.nbytes == 3 * WIDE + small
    assert graph.least.flops == 2.0 * ROWS * COLUMNS * COLUMNS
    rate = H200.tensor_flops * H200.vendor
    assert graph.least.products_s == pytest.approx(graph.least.flops / rate)
    longer = max(graph.least.products_s, graph.least.nbytes / H200.bandwidth)
    assert graph.least.seconds == pytest.approx(H200.launch_s + longer)
    # Read and written by each of ten operations; two of them make a column.
    rows = ROWS * 2
    assert graph.traffic.apart_bytes == 18 * WIDE + small + 4 * rows
    assert graph.traffic.least_bytes < graph.traffic.plan_bytes < graph.traffic.apart_bytes
    for step in graph.steps:
        if step.predicted_s is not None:
            assert step.least.seconds <= step.predicted_s


def test_a_lookup_reads_no_more_than_its_rows():
    table = TensorType((1 << 20, 64), (64, 1), "float32")
    ids, rows = TensorType((16,), (1,), "int64"), TensorType((16, 64), (64, 1), "float32")
    graph = Graph(
        (
            Node(0, "table", INPUT, type=table),
            Node(1, "ids", INPUT, type=ids),
            Node(2, "rows", "aten.embedding.default", (Ref(0), Ref(1)), type=rows),
        ),
        (2,),
    )
    (found,) = of(graph, modelled_plan(graph, H200)).graphs
    assert found.least.nbytes == rows.nbytes + ids.nbytes
    assert found.traffic.apart_bytes <= 2 * rows.nbytes + ids.nbytes


def test_borders_say_why_and_what_one_kernel_would_save(modelled):
    (graph,) = modelled.graphs
    (border,) = [b for b in graph.steps[0].borders if b.other == 1]
    assert border.through == ("mm",)
    assert border.refusal is not None or border.together_s is not None
    assert border.spared_bytes == 2 * WIDE
    assert border.spared_s == pytest.approx(2 * WIDE / H200.bandwidth + H200.launch_s)
    (back,) = [b for b in graph.steps[1].borders if b.other == 0]
    assert (back.spared_s, back.refusal) == (border.spared_s, border.refusal)


def test_what_was_not_measured_is_none(modelled):
    (graph,) = modelled.graphs
    assert graph.contest is None
    assert graph.baselines == ()
    assert graph.runs == ()
    assert {step.measured_s for step in graph.steps} == {None}
    assert graph.steps[2].predicted_s is None
    assert all(search.trials == () for search in graph.searches)
    assert {other.measured for s in graph.searches for other in s.alternatives} == {False}
    assert modelled.gain.best is None
    assert {way.measured for way in modelled.gain.ways} == {False}
    assert [way.kind for way in modelled.gain.ways] == ["plan", "apart", "least"]


def test_the_gain_is_the_contests(stored):
    gain = stored.gain
    assert (gain.best, gain.timing) == ("max-autotune", "cold")
    assert gain.times == pytest.approx(1.31)
    assert gain.left_out == (("reduce-overhead", "it does not run"),)
    kinds = {way.name: (way.kind, way.measured) for way in gain.ways}
    assert kinds == {
        "the plan": ("plan", True),
        "max-autotune": ("baseline", True),
        "default": ("baseline", True),
        "eager": ("baseline", True),
        "the device's least": ("least", False),
    }


def test_a_baseline_that_won_is_no_gain():
    """That its second time, as the plan that was kept, is less is noise."""
    eager, ours, *_ = contest(5e-5).contestants
    kept = replace(eager, name="as kept", cold_s=eager.cold_s * 0.9, busy_s=eager.busy_s * 0.95)
    slow = replace(ours, cold_s=1.0, busy_s=1.0)
    told = replace(contest(5e-5), contestants=(eager, slow, kept), winner="as kept")
    report = of(block(), replace(measured(block()), groups=(), contest=told))
    assert report.graphs[0].runs_as == "eager"
    assert report.gain.timing == "busy"  # in which it gains less
    names = [(way.name, way.kind, way.share) for way in report.gain.ways[:3]]
    assert names == [
        ("the plan: eager", "plan", pytest.approx(0.95)),
        ("eager", "baseline", 1.0),
        ("our plan, not kept", "ours", 1.0),
    ]
    kept = "eager is kept, as no plan is clearly faster in both timings"
    assert verdict(report) == ("No gain:", f"{kept}, cold and busy (measured).")


def test_only_baselines_that_all_graphs_have_are_compared_with():
    both = replace(measured(block()), contest=None, baselines=(("eager", 4e-5), ("default", 3e-5)))
    one = replace(both, baselines=(("eager", 4e-5),))
    graph, plan_s = block(), both.measured
    report = collect(NAME, [Subject(NAME, graph, plan, "") for plan in (both, one)], H200, None)
    ways = {way.name: way.seconds for way in report.gain.ways if way.measured}
    assert ways == {"the plan": pytest.approx(2 * plan_s), "eager": pytest.approx(8e-5)}
    assert report.gain.best == "eager"


def test_the_times_of_a_larger_model_are_said_to_be():
    told = replace(contest(5e-5), graphs=3)
    report = of(block(), replace(measured(block()), contest=told))
    assert report.gain.graphs == 3
    assert verdict(report).rest.startswith(
        "as fast as max-autotune, the fastest baseline that was compared "
        "(measured, the whole model of 3 graphs)."
    )
    assert "the whole model, whose call runs 3 graphs" in page(report)
    whole = of(block(), replace(measured(block()), contest=told), times=3)
    assert "the whole model" not in verdict(whole).rest + page(whole)


def test_the_table_of_a_contest_is_shown_only_where_it_is_that_of_all_graphs():
    plans = [replace(measured(block()), contest=contest(s)) for s in (5e-5, 6e-5)]
    heading = "How they were compared"
    for found, shown in ((plans, False), (plans[:1] * 2, True)):
        report = collect(NAME, [Subject(NAME, block(), p, "") for p in found], H200, None)
        assert (heading in page(report)) == shown


def test_trials_of_a_group(stored):
    (graph,) = stored.graphs
    for number, step in enumerate(graph.steps[:2]):
        (search,) = [s for s in graph.searches if s.key == step.search]
        assert {t.outcome for t in search.trials} >= {"timed", "wrong"}
        (chosen,) = [t for t in search.trials if t.chosen]
        assert chosen.seconds == step.measured_s
        assert not any(a.candidate == chosen.candidate for a in search.alternatives)
        assert {a.measured for a in search.alternatives} == {True}
        assert any(a.candidate == "aten" for a in search.alternatives)
        seconds = [a.seconds for a in search.alternatives]
        assert seconds == sorted(seconds)
        group = graph.explanation.groups[number]
        assert group.measured.seconds == step.measured_s


def test_the_history(stored):
    (graph,) = stored.graphs
    assert len(graph.runs) == 3
    assert [run.key is None for run in graph.runs].count(False) == 1
    assert [run.measured_s for run in graph.runs if run.key] == [measured(block()).measured]
    assert all(run.same_graph and run.device == H200.name for run in graph.runs)


def test_json_is_plain(stored, modelled):
    for report in (stored, modelled):
        data = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert data["graphs"][0]["steps"][0]["operations"] == ["add", "relu", "mm"]
        assert set(data) == {"title", "device", "made", "roof", "gain", "graphs", "notes"}
