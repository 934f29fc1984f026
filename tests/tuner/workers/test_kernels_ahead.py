"""The kernels of a plan, compiled by workers before the plan is built here."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fusionplan.planner.codegen.source import KernelSource
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import GroupPlan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.machine_code import launch
from fusionplan.planner.runtime.machine_code.launch import plain
from fusionplan.planner.space.space import space_of
from fusionplan.tuner.trial.outcome import (
    Candidate,
    Crashed,
    ProgramResources,
    Timed,
    TimedOut,
    from_json,
    to_json,
)
from fusionplan.tuner.workers import compile_role, kernels_ahead
from fusionplan.tuner.workers.kernels_ahead import SOURCE, kernels_of, lowered_once
from fusionplan.tuner.workers.lab import Group, WorkerLab
from tuner_fakes import captured

H200 = builtin("h200")
X = torch.randn(64, 256)


def layered(x: torch.Tensor) -> torch.Tensor:
    """Two equal softmaxes around what no kernel of ours computes."""
    return torch.softmax(torch.softmax(x, -1).digamma(), -1)


@pytest.fixture
def given():
    return captured(layered, X)


def loaded(given, plan) -> set:
    """What an executor loads."""
    seen = set()

    def load(source, device):
        seen.add(source)
        return kernels_ahead._NotedKernel(source)

    Executor(given, plan, given.device, load=load)
    return seen


def test_they_are_those_that_executors_load_in_both_variants_each_once(given):
    plan = modelled_plan(given.graph, H200)
    ways = [plan, replace(plan, overlaps=True)]
    found = kernels_of(given, ways, given.device, lower)
    assert len(set(found)) == len(found)
    wanted = {source for way in ways for source in loaded(given, way)}
    assert {source for source, aligned in found if aligned} == wanted
    assert {source.dependent for source in wanted} == {True, False}
    unaligned = {source for source, aligned in found if not aligned}
    assert unaligned == {plain(source)[0] for source in wanted}


def test_equal_groups_of_all_plans_are_lowered_once(given, monkeypatch):
    asked = []
    monkeypatch.setattr(
        kernels_ahead, "lower", lambda *args, **more: asked.append(more) or lower(*args, **more)
    )
    plan = modelled_plan(given.graph, H200)
    once = lowered_once()
    kernels_of(given, [plan, plan], given.device, once)
    kernels_of(given, [plan], given.device, once)
    assert len(asked) == 1
    kernels_of(given, [replace(plan, overlaps=True)], given.device, once)
    assert len(asked) == 2  # which reads before it waits


def test_what_is_slow_or_no_plan_of_the_graph_is_left_out(given):
    nodes = tuple(n.id for n in given.graph.nodes if n.op != "input")
    plan = modelled_plan(given.graph, H200)
    slow = replace(plan, groups=(GroupPlan(nodes, "inductor", "", options="default"),))
    wrong = replace(plan, groups=(GroupPlan((99,), "triton", ""),))
    assert kernels_of(given, [slow, wrong], given.device, lower) == []


@pytest.mark.process
def test_a_worker_compiles_them_into_the_cache(given, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compiled(group, config, **more):
        return lower(group, config, **{**more, "interpreted": False})

    kernels = kernels_of(given, [modelled_plan(given.graph, H200)], given.device, compiled)
    source, _ = kernels[0]
    limits = {"compile_limit_s": 120.0}
    with WorkerLab("cpu", 90, compilers=1, interpret=True, **limits) as lab:
        lab.compile_ahead(kernels[:1])
        assert [path.suffix for path in (tmp_path / "fusionplan").iterdir()] == [".json"]
        before = {*tmp_path.rglob("*.cubin")}
        assert len(before) == 1
        lab.compile_ahead(kernels[:1])  # it is there
        assert {*tmp_path.rglob("*.cubin")} == before
        broken = replace(source, text=source.text.replace("tl.store", "tl.stow"))
        request = {"kernel": SOURCE.dump_python(broken, mode="json"), "aligned": True}
        failed = lab.pool.submit("compile", {**request, "capability": 90}).result()
        assert "stow" in from_json(failed).reason
        lab.compile_ahead([(broken, True)])  # said where it is loaded


def test_all_are_asked_of_the_compilers_before_what_can_wait(given):
    from concurrent.futures import Future

    asked = []

    class Asked:
        _capability = 80

        class pool:
            @staticmethod
            def submit(role: str, message: dict, urgent: bool) -> Future:
                asked.append((role, message["aligned"], message["capability"], urgent))
                future: Future = Future()
                future.set_result({})
                return future

    kernels = kernels_of(given, [modelled_plan(given.graph, H200)], given.device, lower)
    ran: list[int] = []
    WorkerLab.compile_ahead(Asked, kernels, lambda: ran.append(len(asked)))
    assert ran == [len(kernels)]  # while they are compiled
    assert asked == [("compile", aligned, 80, True) for _, aligned in kernels]


def test_those_that_are_not_compiled_by_the_limit_are_given_up_and_told(given):
    from concurrent.futures import Future

    begun: list[Future] = []

    class Asked:
        _capability = 80

        class pool:
            @staticmethod
            def submit(role: str, message: dict, urgent: bool) -> Future:
                begun.append(Future())
                if len(begun) == 1:
                    begun[0].set_result({})
                return begun[-1]

    kernels = kernels_of(given, [modelled_plan(given.graph, H200)], given.device, lower)
    assert len(kernels) >= 2
    assert WorkerLab.compile_ahead(Asked, kernels, limit_s=0.01) == kernels[1:]
    assert [future.cancelled() for future in begun] == [False] + [True] * (len(kernels) - 1)


def test_what_may_be_a_finalist_is_compiled_for_any_address(monkeypatch):
    """By the workers: in a comparison the measuring worker would compile one after the other."""
    asked: list[dict] = []

    class Lab(WorkerLab):
        def __init__(self) -> None:
            self._is_over, self._suspects, self._capability = bool, set(), 90
            self.pool = SimpleNamespace(submit=self._submit)

        def _submit(self, role: str, message: dict, *limit: object, **options: bool) -> Future:
            future: Future = Future()
            future.set_result(to_json(Timed(1e-5, 1e-7, 10)))
            if role == "compile":
                asked.append(message)
            return future

    given = captured(lambda x: torch.relu(x) * 2, torch.randn(64, 64)).graph
    group = Group.of(given, "relu")
    config = space_of(given, H200).top()[0]
    lab = Lab()
    lab.measure(group, Candidate("triton", config), 0.5e-5)  # far behind
    lab.measure(group, Candidate("aten"))
    assert not asked
    lab.measure(group, Candidate("triton", config), 0.95e-5)
    lab.measure(group, Candidate("triton", config))
    assert [message["aligned"] for message in asked] == [False, False]

    made: list[tuple] = []
    monkeypatch.setattr(compile_role, "compile_kernel", lambda *of: made.append(of) or of[0])
    launchers: list[KernelSource] = []
    monkeypatch.setattr(compile_role, "build_launcher", launchers.append)
    monkeypatch.setattr(compile_role, "resources", lambda kernel: ProgramResources(1, 0, 0, 0.0))
    compile_role.handle(asked[0])
    compile_role.handle({**asked[0], "aligned": True})
    (kernel,) = lower(given, config).kernels
    target = compile_role.Target(capability=90)
    assert made == [(plain(kernel)[0], target, False), (kernel, target)]
    assert launchers == [of[0] for of in made]
    compile_role.handle({"kernel": SOURCE.dump_python(kernel), "aligned": True, "capability": 90})
    assert len(launchers) == 3


def test_a_launcher_is_built_where_triton_has_one_for_each_kernel(monkeypatch):
    built: list[tuple] = []

    def refuse(*of: object) -> None:
        built.append(of)
        raise OSError("no compiler")

    kernel = SimpleNamespace(src="text", metadata="meta")
    compiled = SimpleNamespace(kernel=kernel, source=SimpleNamespace(name="k"))
    for one in (SimpleNamespace(CudaLauncher=refuse), SimpleNamespace(make_launcher=0)):
        monkeypatch.setattr(launch, "nvidia", one)
        launch.build_launcher(compiled)
    assert not built  # of another Triton
    monkeypatch.setattr(launch, "nvidia", SimpleNamespace(CudaLauncher=refuse, make_launcher=0))
    launch.build_launcher(compiled)  # that it cannot be is no failure of the kernel
    assert built == [("text", "meta")]


def test_what_took_a_worker_too_long_is_late(given):
    from concurrent.futures import Future

    answers = iter([TimedOut("no answer within 20 s", True), Crashed("it died"), {}])

    class Slow:
        _capability = 90

        class pool:
            @staticmethod
            def submit(role: str, message: dict, urgent: bool) -> Future:
                future: Future = Future()
                future.set_result(next(answers))
                return future

    kernels = kernels_of(given, [modelled_plan(given.graph, H200)], given.device, lower)
    three = [*kernels, *kernels, *kernels][:3]
    assert WorkerLab.compile_ahead(Slow, three) == three[:2]
