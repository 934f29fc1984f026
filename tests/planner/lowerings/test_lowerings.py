"""Ways to run a group are objects: no file but a lowering's own knows it by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, get_args

import pytest
import torch
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.lowerings import base, registry
from fusionplan.planner.lowerings.base import GroupCall, GroupSite, Lowering
from fusionplan.planner.lowerings.registry import (
    CALLS,
    LOWERINGS,
    REGIONAL,
    WHOLE,
    calls,
    lowering_of,
)
from fusionplan.planner.plan import GroupPlan, LoweringName, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.modules import captured_of
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.trial.running import Loaded, load
from graphs import Builder

ROOT = Path(base.__file__).parents[2]
OWN = Path(base.__file__).parent
NAMES = frozenset(get_args(LoweringName))
APART = ("tests", "scripts", "examples", "docs")
SOURCES = [
    path
    for init in sorted(ROOT.glob("*/__init__.py"))
    if init.parent.name not in APART
    for path in sorted(init.parent.rglob("*.py"))
    if OWN not in path.parents
] + sorted(ROOT.glob("*.py"))


def named(node: ast.expr) -> bool:
    """Whether it is a lowering's name, or several, as text or as an object's `name`."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(map(named, node.elts))
    if isinstance(node, ast.Attribute):
        upper = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr == "name" and upper.lower() in NAMES
    return isinstance(node, ast.Constant) and node.value in NAMES


def names_tested(tree: ast.AST) -> Iterator[int]:
    """Lines that compare a value with a lowering's name, choose by it, or write it as text."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                found = any(map(named, (left, *others)))
            case ast.MatchValue(value=value):
                found = named(value)
            case ast.Dict(keys=keys):
                found = bool(keys) and all(key is not None and named(key) for key in keys)
            case ast.Call(func=ast.Name(id="GroupPlan" | "Candidate"), args=args):
                found = any(isinstance(a, ast.Constant) and named(a) for a in args)
            case _:
                continue
        if found:
            yield getattr(node, "lineno", 0) or node.value.lineno


@pytest.mark.slow
def test_no_file_asks_for_the_name_of_a_lowering() -> None:
    assert len(SOURCES) > 200
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in names_tested(ast.parse(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "group.lowering == 'triton'",
        "group.lowering not in ('aten', 'vendor')",
        "group.lowering == VENDOR.name",
        "way[0] != 'inductor'",
        "match group.lowering:\n    case 'chunked': pass",
        "{'recomputed': 1}[group.lowering]",
        "GroupPlan(nodes, 'aten', key)",
    ],
)
def test_each_kind_of_test_of_a_name_is_found(text: str) -> None:
    assert list(names_tested(ast.parse(text)))


def test_every_name_of_a_plan_has_one_lowering() -> None:
    assert list(LOWERINGS) == list(get_args(LoweringName))
    assert [lowering.name for lowering in LOWERINGS.values()] == list(LOWERINGS)
    assert {*CALLS, *WHOLE, *REGIONAL} <= {*LOWERINGS.values()}
    for name, lowering in LOWERINGS.items():
        assert lowering_of(GroupPlan((0,), name, "")) is lowering  # type: ignore[arg-type]


def test_a_region_is_no_candidate() -> None:
    for name, lowering in LOWERINGS.items():
        data = {"lowering": name}
        if lowering in REGIONAL:
            with pytest.raises(ValueError, match=f"no lowering: '{name}'"):
                Candidate.from_json(data)
        else:
            assert Candidate.from_json(data).to_json() == data
    for odd in ("cudnn", None, ["triton"]):
        with pytest.raises(ValueError, match="no lowering"):
            Candidate.from_json({"lowering": odd})


class Doubled(Lowering):
    """A library's function, as somebody may add one."""

    name: LoweringName = "vendor"

    def options(self, group: Graph) -> tuple[str, ...]:
        return ("doubled",)

    def build(self, site: GroupSite) -> GroupCall:
        assert site.options == "doubled"
        return GroupCall(lambda args: [args[0] * 2])


def test_what_one_file_adds_is_tried_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Doubled()
    monkeypatch.setitem(LOWERINGS, own.name, own)
    monkeypatch.setattr(registry, "CALLS", (registry.ATEN, own))
    b = Builder()
    x = b.input(4, 6)
    group = b.graph(b.op("add.Tensor", x, x))
    assert [each for each, _ in calls(group)] == [registry.ATEN, own]
    data, here = torch.randn(4, 6), torch.device("cpu")
    loaded = load(group, Candidate(own.name, options="doubled"), here)
    assert isinstance(loaded, Loaded)
    assert torch.equal(loaded.bind([data], [])()[0], data * 2)
    groups = (GroupPlan((1,), own.name, "", options="doubled"),)
    executor = Executor(captured_of(group, here), Plan("", "cpu", (), "measured", groups), here)
    assert torch.equal(executor(data)[0], data * 2)
    assert "g0(" in executor.text


def relu_of_a_product() -> Graph:
    """relu(x @ w + b), which one call of a library computes too."""
    b = Builder()
    product = b.op("mm.default", b.input(64, 32), b.input(32, 48), shape=(64, 48))
    return b.graph(b.op("relu.default", b.op("add.Tensor", product, b.input(48))))


def test_calls_are_tried_as_they_are_eager_first() -> None:
    found = [(lowering.name, options) for lowering, options in calls(relu_of_a_product())]
    assert found[0] == ("aten", "")
    assert ("vendor", "linear_relu") in found[1:]
    assert {name for name, _ in found} == {"aten", "vendor"}


class Faulty(Doubled):
    """One whose author made a mistake."""

    def options(self, group: Graph) -> tuple[str, ...]:
        raise TypeError("a word is no number")


def test_a_faulty_lowering_is_told_and_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "CALLS", (Faulty(), registry.ATEN))
    with pytest.raises(TypeError, match="a word is no number"):
        list(calls(relu_of_a_product()))  # in tests
    told: list[str] = []
    monkeypatch.setattr(registry.log, "exception", lambda text, *of: told.append(text % of))
    assert [each for each, _ in calls(relu_of_a_product())] == [registry.ATEN]
    assert told == ["vendor is left out for a group: please report it"]


@pytest.mark.process
def test_a_call_is_built_by_each_of_its_options() -> None:
    group = relu_of_a_product()

    def never(*_: object) -> NoReturn:
        raise AssertionError("a call needs no kernel and no other graph")

    for lowering, options in calls(group):
        site = GroupSite(group, None, options, (), torch.device("cpu"), never, never, never)
        built = lowering.build(site)
        assert isinstance(built, Graph)
        assert (built is group) == lowering.one_by_one
    b = Builder()
    alone = b.graph(b.op("exp.default", b.input(4, 6)))
    assert [(each.name, options) for each, options in calls(alone)] == [("aten", "")]
