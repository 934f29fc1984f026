"""The module that `planner show --source` prints, of a plan and a graph that somebody else wrote:
their text is data in it, never code."""

import ast
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.errors import FusionplanError
from fusionplan.planner.graph.graph import (
    INPUT,
    Graph,
    Node,
    Ref,
    Symbol,
    TensorType,
    from_json,
    key,
    to_json,
)
from fusionplan.planner.module import print_module
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.standalone import standalone

MARK = "INTRUDER"
TEXTS = (
    f'"""\n{MARK}()\n"""',
    f"x\n{MARK}()",
    f"x\r{MARK}()",
    f"x\u2028{MARK}()",
    f"x\x0c{MARK}()",
    f"1); {MARK}((",
    f"x, {MARK}()",
    f"float32, x={MARK}()",
    f"{{{MARK}}}",
    f"'+{MARK}()+'",
)
FLOOR = (("rounding_mode", "floor"),)
NARROW = (("dtype", Symbol("dtype", "bfloat16")),)


def graph() -> Graph:
    x = TensorType((64, 128), (128, 1), "float32")
    half = TensorType((64, 128), (128, 1), "bfloat16")
    row = TensorType((64, 1), (1, 1), "float32")
    return Graph(
        (
            Node(0, "x", INPUT, type=x),
            Node(1, "b", INPUT, type=TensorType((128,), (1,), "float32")),
            Node(2, "add", "aten.add.Tensor", (Ref(0), Ref(1)), (("alpha", 2),), x),
            Node(3, "exp", "aten.exp.default", (Ref(2),), type=x),
            Node(4, "clamp", "aten.clamp_min.default", (Ref(3), 0.5), type=x),
            Node(5, "sum_1", "aten.sum.dim_IntList", (Ref(4), (-1,), True), type=row),
            Node(
                6, "div", "aten.div.Tensor_mode", (Ref(4), Ref(5)), (("rounding_mode", "floor"),), x
            ),
            Node(
                7,
                "cast",
                "aten._to_copy.default",
                (Ref(6),),
                (("dtype", Symbol("dtype", "bfloat16")),),
                half,
            ),
        ),
        (7,),
    )


def plan() -> Plan:
    config = Config((("x0", 2), ("r0", 128)), num_warps=4, num_stages=1)
    nodes = tuple(range(2, 8))
    groups = (GroupPlan(nodes, "triton", "k" * 32, config),)
    return Plan(key(graph()), "device", (("codegen", "1"),), "modelled", groups)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the text and the numbers of JSON data are."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from leaves(value, (*path, name))
    elif isinstance(data, list):
        for place, value in enumerate(data):
            yield from leaves(value, (*path, place))
    elif not isinstance(data, bool):
        yield path


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(data)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


def printed(graph_data: Any, plan_data: Any) -> str | None:
    """The module, and the script of its group; None where the store's data is refused."""
    try:
        graph, plan = from_json(graph_data), Plan.from_json(plan_data)
        return print_module(graph, plan) + "\n" + standalone(graph, plan, plan.groups[0])
    except (FusionplanError, ValueError, KeyError, TypeError, IndexError):
        return None


def names(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


def test_the_module_is_printed():
    text = printed(to_json(graph()), plan().to_json())
    assert text is not None
    assert "@triton.jit" in text
    assert MARK not in names(text)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["graph", "plan"])
def test_no_text_of_a_store_becomes_code(of: str):
    data = {"graph": json.loads(json.dumps(to_json(graph()))), "plan": plan().to_json()}
    data["plan"] = json.loads(json.dumps(data["plan"]))
    shown = 0
    for path in leaves(data[of]):
        for text in TEXTS:
            given = data | {of: changed(data[of], path, text)}
            module = printed(given["graph"], given["plan"])
            if module is not None:
                shown += 1
                assert MARK not in names(module), (path, text)
    assert shown > 20


def test_names_of_a_store_are_made_identifiers():
    data = to_json(graph())
    data["nodes"][2]["name"] = "a b\n#;\u2028c"
    assert from_json(data).nodes[2].name == "a_b____c"
    assert from_json(to_json(graph())) == graph()
