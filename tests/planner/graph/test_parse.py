"""Graphs as text: `parse` is the inverse of `str`."""

from __future__ import annotations

import math

import pytest
from fusionplan.planner.graph.graph import Graph, Node, Ref, Symbol, TensorType, canonical, key
from fusionplan.planner.graph.parse import ParseError, parse
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = """\
%0 = input() : float32[4, 8]
%1 = aten.t.default(%0) : float32[8, 4] strides [1, 8]
%2 = aten.sum.dim_IntList(%1, (0), True, dtype=float32) : float32[1, 4]
%3 = aten.clamp.default(%2, None, -inf) : float32[1, 4]
%4 = aten.max.dim(%3, 0) : ?
%5 = aten.gelu.default(%3, approximate='tanh') : float32[1, 4]
%6 = aten.div.Tensor_mode(%5, 1e-05, rounding_mode="it's") : float32[1, 4]
%7 = aten.full.default((), True, device=graph, layout=strided) : bool[]
%8 = higher_order.call(graph:'0123abcd', slice:'slice(None, 3, None)', ((1, 2), ())) : ?
numerics: eager
return %6, None, %7"""


def test_a_text_and_its_graph() -> None:
    graph = parse(TEXT)
    assert str(graph) == TEXT
    assert graph.numerics == "eager"
    assert graph.outputs == (6, None, 7)
    assert [n.name for n in graph.nodes[:3]] == ["input_0", "t_1", "sum_2"]
    assert graph.nodes[1].type == TensorType((8, 4), (1, 8), "float32")
    assert graph.nodes[2].args == (Ref(1), (0,), True)
    assert graph.nodes[3].args[1:] == (None, -math.inf)
    assert dict(graph.nodes[6].kwargs)["rounding_mode"] == "it's"
    assert graph.nodes[7].kwargs[0] == ("device", Symbol("device", "graph"))
    assert graph.nodes[8].args[0] == Symbol("graph", "0123abcd")


def test_empty_lines_and_comments_are_left_out() -> None:
    assert parse("# a sum\n\n  %0 = input() : float32[]\nreturn %0\n").outputs == (0,)
    assert parse("return").nodes == ()


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = (
    st.booleans()
    | st.none()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
SYMBOLS = st.builds(
    Symbol,
    st.sampled_from(["dtype", "device", "layout", "memory_format", "complex", "object"]),
    st.sampled_from(["float32", "bfloat16", "graph", "strided", "channels_last", "(1+2j)", "a b"])
    | st.text(max_size=6),
)
DTYPES = st.sampled_from(["float32", "bool", "int64", "bfloat16", "float8_e4m3fn", "complex64"])


@st.composite
def types(draw: st.DrawFn) -> TensorType | None:
    rank = draw(st.integers(-1, 4))
    if rank < 0:
        return None
    sizes = draw(st.lists(st.integers(0, 2**33), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(0, 2**33), min_size=rank, max_size=rank))
    return TensorType(tuple(sizes), tuple(strides), draw(DTYPES))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes: list[Node] = []
    for number in range(draw(st.integers(0, 6))):
        leaves = NUMBERS | SYMBOLS
        if number:
            leaves |= st.builds(Ref, st.integers(0, number - 1))
        values = st.recursive(leaves, lambda v: st.lists(v, max_size=3).map(tuple), max_leaves=6)
        kwargs = draw(st.dictionaries(NAMES, values, max_size=3))
        args = tuple(draw(st.lists(values, max_size=3)))
        op = draw(st.sampled_from(["input", "aten.add.Tensor", "a.b.<locals>.<lambda>"]))
        nodes.append(Node(number, f"v{number}", op, args, tuple(kwargs.items()), draw(types())))
    some = st.none() | st.integers(0, len(nodes) - 1) if nodes else st.none()
    outputs = tuple(draw(st.lists(some, max_size=3)))
    return Graph(tuple(nodes), outputs, draw(st.sampled_from(["fast", "eager"])))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(graphs())
def test_what_is_printed_is_read(graph: Graph) -> None:
    found = parse(str(graph))
    assert canonical(found) == graph
    assert repr(canonical(found)) == repr(graph)  # 1 is no 1.0, 0.0 no -0.0
    assert str(found) == str(graph)
    assert key(found) == key(graph)


HEAD = "%0 = input() : float32[4]\n"


@pytest.mark.parametrize(
    "text, line, why",
    [
        ("", 0, "does not return"),
        (HEAD, 1, "does not return"),
        (HEAD + "return %0\nreturn %0", 2, "follows the outputs"),
        (HEAD + "return %0, x", 2, "'x' is no output"),
        (HEAD + "return %1", 2, "there is no %1"),
        (HEAD + "%2 = aten.exp.default(%0) : float32[4]\nreturn %0", 2, "%1 is the next"),
        (HEAD + "%1 = aten.exp.default(%1) : float32[4]\nreturn %0", 2, "%1 comes later"),
        (HEAD + "%1 = aten.exp.default(%0) float32[4]\nreturn %0", 2, "is written"),
        (HEAD + "%1 = aten.exp.default(%0) : float33x[4]\nreturn %0", 2, "no dtype"),
        (HEAD + "%1 = aten.exp.default(%0) : float32[4, a]\nreturn %0", 2, "no type"),
        (HEAD + "%1 = aten.exp.default(%0) : float32[4] strides [1, 1]\nreturn %0", 2, "2 strides"),
        (HEAD + "%1 = aten.exp.default(%0 %0) : float32[4]\nreturn %0", 2, "where ','"),
        (HEAD + "%1 = aten.exp.default((%0) : float32[4]\nreturn %0", 2, "end too soon"),
        (HEAD + "%1 = aten.exp.default(a=1, a=2) : float32[4]\nreturn %0", 2, "'a' is no name"),
        (HEAD + "%1 = aten.exp.default(a=1, %0) : float32[4]\nreturn %0", 2, "without a name"),
        (HEAD + "%1 = aten.exp.default(foo) : float32[4]\nreturn %0", 2, "'foo' is no argument"),
        (HEAD + "%1 = aten.exp.default(foo:bar) : float32[4]\nreturn %0", 2, "in quotes"),
        (HEAD + "%1 = aten.exp.default(%0, @) : float32[4]\nreturn %0", 2, "'@' is no argument"),
        (HEAD + "%1 = aten.exp.default(%0,) : float32[4]\nreturn %0", 2, "end too soon"),
    ],
)
def test_what_is_no_graph_names_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ParseError, match=rf"^line {line}") as error:
        parse(text)
    assert why in str(error.value)
