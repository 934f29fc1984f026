"""The last word: which plans are tried as CUDA graphs."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import Contestant, GroupPlan, Plan
from fusionplan.planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from fusionplan.planner.runtime.cuda_graphs.graph_memory import RecordedCall
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.decision import finalists
from fusionplan.tuner.gate.gate import Passed, case
from fusionplan.tuner.measure.time_limit import OutOfTime
from fusionplan.tuner.progress.progress import RecordedProgress
from tuner_fakes import captured

X = torch.randn(8, 8)
PRODUCTS = captured(lambda x: torch.mm(torch.mm(x, x), x), X)


def plan(given, *groups):
    return Plan(key(given.graph), "d", (), "measured", tuple(groups))


def arena(given, inputs=(X,), stage="inference", device="cuda"):
    shown = SimpleNamespace(graph=given.graph, device=SimpleNamespace(type=device))
    told = RecordedProgress()
    return SimpleNamespace(
        captured=shown,
        inputs=inputs,
        stage=stage,
        progress=told,
        is_over=lambda: False,
        always=1,
        left_s=lambda is_needed: float("inf"),
        compilers=None,
        lower=lower,
    )


def on_cpu(given, **more):
    """The same for a graph that runs, on the CPU."""
    return SimpleNamespace(**{**vars(arena(given)), "captured": given, **more})


def replayed(call, inputs, moving, pool):
    """Stands for a capture: the replay computes again, into the same outputs."""
    outputs = list(call(list(inputs)))

    def replay():
        for kept, new in zip(outputs, call(list(inputs)), strict=True):
            kept.copy_(new)

    return RecordedCall(replay, (), outputs)


def refused(call, inputs, moving, pool):
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)

    def use(record):
        def made(executor, copies):
            return GraphedExecutor(executor, copies=copies, record=record)

        monkeypatch.setattr(finalists, "GraphedExecutor", made)

    return use


def graphed(given, made, where):
    executor = Executor(given, made, torch.device("cpu"))
    if not finalists._saves_launches(made, where):
        return None
    runner = finalists.RunnablePlan(made, executor, executor.kernels_per_call, Passed(("given",)))
    found: dict[str, finalists.RunnablePlan] = {}
    finalists._add_graphs(found, "0", runner, executor, case(given, where.inputs), where)
    return found.get("0 as a graph")


def test_launches_of_groups_and_of_what_stands_apart():
    given = captured(lambda x: torch.exp(torch.mm(x, x) + 1), X)
    work = [n.id for n in given.graph.nodes if is_compute(n)]
    assert finalists.launches(plan(given), given.graph) == 3
    two = GroupPlan(tuple(work[1:]), "triton", "", kernels=2)
    assert finalists.launches(plan(given, two), given.graph) == 3
    one = GroupPlan(tuple(work), "vendor", "", options="some")
    assert finalists.launches(plan(given, one), given.graph) == 1


def test_calls_of_libraries_are_captured_too(graphs):
    graphs(replayed)
    where = arena(PRODUCTS)
    runner = graphed(PRODUCTS, plan(PRODUCTS), where)
    assert runner is not None
    assert runner.plan.cudagraph
    assert runner.run.replays == 2  # the first is overwritten: the second must write it all
    torch.testing.assert_close(runner.run(X)[0], X @ X @ X)
    assert where.progress.of("note") == []


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_graphs_of_training_are_captured(graphs, stage):
    graphs(replayed)
    runner = graphed(PRODUCTS, plan(PRODUCTS), arena(PRODUCTS, stage=stage))
    assert runner is not None
    assert runner.plan.cudagraph


def test_no_graph_where_none_would_run(graphs):
    graphs(replayed)
    assert graphed(PRODUCTS, plan(PRODUCTS), arena(PRODUCTS, device="cpu")) is None


def test_one_launch_needs_no_graph(graphs):
    graphs(replayed)
    given = captured(lambda x: torch.mm(x, x), X)
    assert graphed(given, plan(given), arena(given)) is None


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "capability, name, over",
    [((9, 0), "0", False), ((9, 0), "1", False), ((8, 0), "1", False), ((9, 0), "0", True)],
)
def test_launches_overlap_where_the_device_can_and_the_best_plan_is_tried_without(
    graphs, monkeypatch, capability, name, over
):
    graphs(replayed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    given = captured(lambda x: torch.softmax(torch.mm(torch.relu(x), x).digamma(), 0), X)
    made, asked = modelled_plan(given.graph, builtin("h200")), []
    where = on_cpu(
        given,
        is_over=lambda: over,
        compilers=SimpleNamespace(compile_ahead=lambda kernels, *more: asked.append(kernels)),
    )
    executor = Executor(given, made, given.device)
    assert executor.kernels_per_call
    runner = finalists.RunnablePlan(made, executor, executor.kernels_per_call, Passed(("given",)))
    found: dict[str, finalists.RunnablePlan] = {}
    finalists._add_graphs(found, name, runner, executor, case(given, (X,)), where)
    plain, overlapping = f"{name} as a graph", f"{name} as a graph, overlapping"
    overlaps = capability >= (9, 0) and not over
    wanted = [plain] * (name == "0" or not overlaps) + [overlapping] * overlaps
    assert list(found) == wanted
    # Compiled side by side, once the plan is right by itself.
    assert [any(source.dependent for source, _ in each) for each in asked] == [True] * overlaps
    assert {n: (r.plan.overlaps, r.plan.cudagraph) for n, r in found.items()} == {
        n: (n == overlapping, True) for n in wanted
    }
    launchers = [runner.run.executor.launchers for runner in found.values()]
    dependent = [[launcher.source.dependent for launcher in each] for each in launchers]
    # The first of a call begins when all before the call has ended.
    assert dependent == [[False, n == overlapping] for n in wanted]
    for runner in found.values():
        torch.testing.assert_close(runner.run(X)[0], executor(X)[0])


def test_a_capture_that_fails_is_a_note(graphs):
    graphs(refused)
    where = arena(PRODUCTS)
    assert graphed(PRODUCTS, plan(PRODUCTS), where) is None
    (note,) = where.progress.of("note")
    assert note.startswith("plan 0 is not tried as a CUDA graph: ")
    assert note.endswith("operation not permitted when stream is capturing")


def test_a_replay_that_computes_something_else_is_a_note(graphs):
    def wrong(call, inputs, moving, pool):
        outputs = list(call(list(inputs)))
        return RecordedCall(outputs[0].zero_, (), outputs)

    graphs(wrong)
    where = arena(PRODUCTS)
    assert graphed(PRODUCTS, plan(PRODUCTS), where) is None
    assert "output 0 on given inputs: " in where.progress.of("note")[0]


@pytest.mark.interpreter
@pytest.mark.parametrize("over, always, count", [(False, 1, 4), (True, 1, 1), (True, 2, 2)])
def test_plans_are_checked_as_long_as_there_is_time(over, always, count):
    given = captured(lambda x: torch.relu(x) * 2, X)
    made = modelled_plan(given.graph, builtin("h200"))
    told = RecordedProgress()
    where = on_cpu(given, progress=told, is_over=lambda: over, always=always, compilers=None)
    assert list(finalists._runners([made] * 4, where)) == ["0", "1", "2", "3"][:count]
    text = f"{4 - count} of 4 plans are not compared: the time for checking them is over"
    assert told.of("note") == [text] * over


@pytest.mark.parametrize("slow, kept", [(0, []), (1, ["0"]), (None, ["0", "1", "2"])])
def test_a_check_that_takes_all_time_is_cut_off(monkeypatch, slow: int | None, kept: list[str]):
    needed: list[bool] = []

    def check(number, plan, found, given, arena) -> None:
        if number == slow:
            time.sleep(120.0)
        found[str(number)] = plan

    def left_s(is_needed: bool) -> float:
        needed.append(is_needed)
        return 0.1 if len(needed) - 1 == slow else float("inf")

    monkeypatch.setattr(finalists, "_check", check)
    told, began = RecordedProgress(), time.monotonic()
    arena = SimpleNamespace(progress=told, is_over=lambda: False, always=1, left_s=left_s)
    plan = SimpleNamespace()
    monkeypatch.setattr(finalists, "replace", lambda plan, **changes: plan)
    assert list(finalists._runners([plan] * 3, arena)) == kept
    assert needed == [True, False, False][: len(kept) + (slow is not None)]
    assert bool(told.of("note")) == (slow is not None)
    assert time.monotonic() - began < 60.0


@pytest.mark.interpreter
def test_the_kernels_of_a_plan_are_compiled_before_it_is_built(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    given = captured(lambda x: torch.relu(x) * 2, X)
    made, asked = modelled_plan(given.graph, builtin("h200")), []

    def compile_ahead(kernels, meanwhile, limit_s):
        asked.append(kernels)
        meanwhile()  # What the plan has to give is computed while others compile.
        assert made_up.count("cases") == 1

    made_up, cases = [], finalists.cases
    monkeypatch.setattr(finalists, "cases", lambda *of: made_up.append("cases") or cases(*of))
    where = on_cpu(given, compilers=SimpleNamespace(compile_ahead=compile_ahead))
    assert list(finalists._runners([made], where)) == ["0"]
    (kernels,) = asked
    assert {source.dependent for source, _ in kernels} == {False}


@pytest.mark.interpreter
def test_groups_whose_kernels_were_not_compiled_in_time_run_as_in_eager():
    """What is checked and kept has those of the others; a plan of none is no plan."""
    given = captured(lambda x: torch.softmax(torch.mm(torch.relu(x), x).digamma(), 0), X)
    made, limits = modelled_plan(given.graph, builtin("h200")), []

    def without(late):
        def compile_ahead(kernels, meanwhile, limit_s):
            limits.append(limit_s)
            sources = list(dict.fromkeys(source for source, _ in kernels))
            return [(source, True) for source in sources[late:]]

        compilers = SimpleNamespace(compile_ahead=compile_ahead)
        where = on_cpu(given, compilers=compilers, left_s=lambda is_needed: 10.0)
        return finalists._runners([made], where), where.progress.of("note")

    whole, _ = without(len(made.groups))
    assert len(made.groups) >= 2
    assert whole["0"].plan == made
    found, notes = without(1)
    kept = found["0"].plan.groups
    assert [g.lowering for g in kept].count("aten") == len(made.groups) - 1
    assert any(k == g for k, g in zip(kept, made.groups, strict=True))
    torch.testing.assert_close(found["0"].run(X)[0], given.gm(X)[0])
    assert f"{len(made.groups) - 1} of {len(made.groups)} groups of plan 0" in notes[0]
    none, notes = without(0)
    assert none == {}
    assert "no time to compile" in notes[0]
    assert {round(s, 3) for s in limits} == {finalists.COMPILE_SHARE * 10.0}


@pytest.mark.interpreter
def test_plans_are_timed_by_whoever_has_the_turn():
    """Other processes, which may still compile modes of torch.compile, time nothing then."""
    given = captured(lambda x: torch.relu(x) * 2, X)
    made, held = modelled_plan(given.graph, builtin("h200")), []

    @contextmanager
    def turn():
        held.append("begun")
        yield
        held.append("over")

    def contest(calls):
        held.append("timed")
        (name,) = calls
        return SimpleNamespace(
            contestants=[Contestant(name, 1.0, 1.0, 1.0, 1.0, 1.0, 10)], winner=name
        )

    where = arena(given)
    where.captured, where.turn = given, turn()
    ring = SimpleNamespace(contest=contest, turns=SimpleNamespace(calls=[]))
    ring.within = lambda seconds: ring
    where.ring = ring
    assert finalists.finalists([made], where).best.plan.measured == 1.0
    assert held == ["begun", "timed", "over"]


@pytest.mark.interpreter
def test_a_graph_that_was_found_right_is_kept_when_the_time_ends(graphs, monkeypatch):
    """The time may end while kernels are compiled whose launches overlap."""
    graphs(replayed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(finalists, "_saves_launches", lambda plan, arena: True)
    given = captured(lambda x: torch.softmax(torch.mm(torch.relu(x), x).digamma(), 0), X)
    made = modelled_plan(given.graph, builtin("h200"))

    def compile_ahead(kernels, meanwhile, limit_s):
        meanwhile()
        if any(source.dependent for source, _ in kernels):
            raise OutOfTime

    where = on_cpu(given, compilers=SimpleNamespace(compile_ahead=compile_ahead))
    assert list(finalists._runners([made], where)) == ["0", "0 as a graph"]
