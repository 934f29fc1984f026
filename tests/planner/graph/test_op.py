"""Operations by name: the table of their texts is whole, what algebra assumes of them is true of
ATen's functions, and no stage after the table asks for an overload or for Triton text."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import fusionplan
import pytest
import torch
from fusionplan.planner.graph import op as laws
from fusionplan.planner.graph.op import Accuracy, Op
from fusionplan.planner.graph.ops import OPS, Pointwise, overload, row
from fusionplan.planner.graph.pointwise import POWERS
from fusionplan.planner.graph.texts import FORMS, cost_of, operands_of, settled, text_of
from graphs import Builder

ROOT = Path(fusionplan.__file__).parent
ROWS = {name: found for name, found in OPS.items() if isinstance(found, Pointwise)}
MADE = {
    *(Op.AS_FLOAT16, Op.AS_BFLOAT16, Op.AS_FLOAT8_E4M3FN, Op.AS_FLOAT8_E5M2),
    *(Op.TRUNCATE, Op.RECAST, Op.WRAP_INDEX, Op.CHANGE, Op.PLACE, Op.FMA),
    *(Op.TANH_PLUS_ONE, Op.ERF_PLUS_ONE),
}
"""Operations that kernels have beside those of ATen."""


# --- the table ---


def test_every_operation_is_of_an_overload_or_made_by_the_planner() -> None:
    reached = {found.op for found in (*ROWS.values(), *POWERS.values())}
    reached |= {Op.FLOOR_DIVIDE, Op.TRUNC_DIVIDE}  # by the mode of a division
    assert reached.isdisjoint(MADE)
    assert reached | MADE == set(Op)


def fields(text: str) -> set[str]:
    """The operands that a text reads; a divisor's inverse is the divisor's."""
    found = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    return {"other" if name == "inverse" else name for name in found}


@pytest.mark.parametrize("op", Op, ids=lambda op: op.value)
def test_all_texts_of_an_operation_read_the_same_operands(op: Op) -> None:
    assert Accuracy.EXACT in FORMS[op]
    for form in FORMS[op].values():
        for text in (form.text, form.wide, form.on_bool):
            assert not text or fields(text) == operands_of(op) - {"alpha"}
        for text in (form.scaled, form.on_bool_scaled):
            assert not text or fields(text) == operands_of(op)


@pytest.mark.parametrize("name", ROWS)
def test_operands_are_called_as_in_the_schema(name: str) -> None:
    arguments = {a.name for a in overload(name)._schema.arguments}
    assert operands_of(ROWS[name].op) <= arguments


def test_predicates_are_the_rows_whose_result_is_bool() -> None:
    for name, found in ROWS.items():
        assert (found.promotion == "bool") == (found.op in laws.PREDICATES), name


def test_texts_are_looked_up_by_dtype_and_alpha() -> None:
    assert text_of(Op.DIV, Accuracy.EXACT, "float64") == "{self} / {other}"
    assert text_of(Op.ADD, Accuracy.EXACT, "bool") == "{self} | {other}"
    assert text_of(Op.ADD, Accuracy.EXACT, "float32", scaled=True) == "{self} + {other} * {alpha}"
    assert settled(Op.EXP, Accuracy.RELAXED) is Accuracy.QUICK  # they are written alike
    assert settled(Op.TANH, Accuracy.RELAXED) is Accuracy.RELAXED
    assert (cost_of(Op.SQRT), cost_of(Op.SQRT, Accuracy.QUICK)) == ("div", "sfu")


def test_rows_depend_on_arguments_where_the_operation_does() -> None:
    b = Builder()
    x, mask = b.input(8), b.input(8, dtype="bool")
    root = b.op("pow.Tensor_Scalar", x, 0.5)
    power = b.op("pow.Tensor_Scalar", x, 0.7)
    floor = b.op("div.Tensor_mode", x, x, rounding_mode="floor")
    negated = b.op("bitwise_not.default", mask)
    found = [row(b.nodes[ref.node]) for ref in (root, power, floor, negated)]
    expected = [Op.POW_HALF, Op.POW, Op.FLOOR_DIVIDE, Op.LOGICAL_NOT]
    assert [f.op for f in found if isinstance(f, Pointwise)] == expected


# --- laws ---

GRID = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([-1e30, 1e-30, -1e-30, 1e30])])
REALS = GRID.double().sort().values
UNARY = {
    name: found.op
    for name, found in ROWS.items()
    if operands_of(found.op) == {"self"} and name.startswith("aten.") and ".default" in name
}
BOUNDED = {Op.MAXIMUM, Op.MINIMUM, Op.CLAMP, Op.CLAMP_MIN, Op.CLAMP_MAX}
"""Monotone in each of several operands."""


def of(name: str, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = overload(name)(x)
    return result


@pytest.mark.parametrize("name", UNARY)
def test_laws_of_functions_of_one_operand(name: str) -> None:
    op, zero = UNARY[name], torch.zeros(1, dtype=torch.float64)
    if "bitwise" in name:
        return
    positive = REALS[REALS >= 0]
    if op in laws.RISING:
        assert (of(name, REALS).diff() >= 0).all()
    if op in laws.RISING_FROM_0:
        assert (of(name, positive).diff() >= 0).all()
    found = of(name, REALS)
    if op in laws.NEVER_NEGATIVE:
        assert ((found >= 0) | found.isnan()).all()
    if op in laws.KEEPS_NONNEGATIVE:
        assert (of(name, positive) >= 0).all()
    if op in laws.KEEPS_ZERO:
        assert of(name, zero) == 0
    if op in laws.KEEPS_ZERO_AND_INFINITY:
        assert of(name, zero + torch.inf).isinf()


def test_the_functions_that_have_laws_are_looked_at() -> None:
    """So that no law is believed of an operation that the test above passes over."""
    binary = {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.WHERE}
    rest = MADE | BOUNDED | binary | {Op.POW_HALF, Op.SQUARE}
    named = laws.RISING | laws.RISING_FROM_0 | laws.NEVER_NEGATIVE | laws.KEEPS_NONNEGATIVE
    assert (named | laws.KEEPS_ZERO) - rest <= set(UNARY.values())


@pytest.mark.parametrize("op", sorted(BOUNDED, key=lambda op: op.value), ids=lambda op: op.value)
def test_bounds_rise_with_each_operand(op: Op) -> None:
    generator = torch.Generator().manual_seed(0)
    low, high, more = (torch.randn(500, generator=generator) for _ in range(3))
    function = {
        Op.MAXIMUM: torch.maximum,
        Op.MINIMUM: torch.minimum,
        Op.CLAMP: lambda x, y: torch.clamp(x, y, y.abs() + 1),
        Op.CLAMP_MIN: torch.clamp_min,
        Op.CLAMP_MAX: torch.clamp_max,
    }[op]
    assert (function(low + more.abs(), high) >= function(low, high)).all()


@pytest.mark.parametrize("op", [Op.TANH_PLUS_ONE, Op.ERF_PLUS_ONE], ids=lambda op: op.value)
def test_a_function_and_one_rises_and_is_never_negative(op: Op) -> None:
    found = {Op.TANH_PLUS_ONE: torch.tanh, Op.ERF_PLUS_ONE: torch.erf}[op](REALS) + 1
    assert op in laws.RISING
    assert op in laws.NEVER_NEGATIVE
    assert (found.diff() >= 0).all()
    assert (found >= 0).all()


def test_what_is_negated_holds_where_the_other_does_not() -> None:
    x, y = torch.arange(-5, 5)[:, None], torch.arange(-5, 5)
    for op, other in laws.NEGATED.items():
        one, two = (getattr(torch, o.value)(x, y) for o in (op, other))
        assert torch.equal(one, ~two)


# --- nobody asks for text ---

TABLE = {"graph.py", "library.py", "op.py", "ops.py", "pointwise.py", "rows.py", "texts.py"}
"""Files of planner/graph that say what an operation is. Capture is before the table."""

FX_WORDS = {"input", "output", "placeholder", "get_attr", "call_function", "call_method"}
"""Kinds of nodes, which are no operations."""

OVERLOAD = re.compile(r"^(aten|prims|fusionplan)\.\w")
EXPRESSION = re.compile(r"\{(self|other|condition|x)\}")


def sources() -> Iterator[Path]:
    for file in sorted((ROOT / "planner").rglob("*.py")):
        room, name = file.relative_to(ROOT / "planner").parts[0], file.name
        if room != "capture" and not (room == "graph" and name in TABLE):
            yield file


def asked(tree: ast.AST) -> Iterator[str]:
    """What a module asks of a text that names an operation: comparisons, patterns, and methods of
    strings on the attributes that hold one."""
    for node in ast.walk(tree):
        texts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = [c for side in sides for c in ast.walk(side)]
            if any(isinstance(s, ast.Attribute) and s.attr in ("op", "text") for s in sides):
                plain = [c.value for c in texts if isinstance(c, ast.Constant)]
                yield from (repr(w) for w in plain if isinstance(w, str) and w not in FX_WORDS)
        elif isinstance(node, ast.match_case):
            texts = list(ast.walk(node.pattern))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if node.func.attr in ("startswith", "endswith"):
                texts = [c for a in node.args for c in ast.walk(a)]
                if isinstance(of, ast.Attribute) and of.attr in ("op", "text", "expr"):
                    yield ast.unparse(node)
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            texts = list(ast.walk(node.value))  # a constant to compare with
        elif isinstance(node, ast.Dict):
            texts = [c for k in node.keys if k is not None for c in ast.walk(k)]
        words = (t.value for t in texts if isinstance(t, ast.Constant) and isinstance(t.value, str))
        yield from (repr(w) for w in words if OVERLOAD.search(w) or EXPRESSION.search(w))


@pytest.mark.process
def test_no_stage_after_the_table_asks_for_an_overload_or_for_text() -> None:
    found = {str(f.relative_to(ROOT)): list(asked(ast.parse(f.read_text()))) for f in sources()}
    assert len(found) > 80
    assert {file: what for file, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "line",
    [
        'node.op == "aten.sub.Tensor"',
        'node.op in ("aten.eq.Tensor", "aten.ne.Tensor")',
        'node.op == "log"',
        'user.op.startswith("aten.log.")',
        'compute.text.startswith("exp(")',
        'expr == "{self} * {other}"',
        'CAST = "aten._to_copy.default"',
        'TABLE = {"aten.view.default": 1}',
        'match kind:\n    case Compute(expr="{self} * {self}"): pass',
    ],
)
def test_such_a_question_is_found(line: str) -> None:
    assert list(asked(ast.parse(line)))
    assert not list(asked(ast.parse("node.op is Op.SUB or node.op == 'input'")))
