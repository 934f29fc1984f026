"""Numbers that vary: arithmetic that keeps the flag, buckets, and graphs at sizes other than those
they were captured at."""

import copy
import json
import operator

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture, is_dynamic
from fusionplan.planner.capture.symbolic import Symbolic, symbolic
from fusionplan.planner.codegen.body import literal
from fusionplan.planner.codegen.numbers import Numbers
from fusionplan.planner.graph import graph as graphs
from fusionplan.planner.graph.sizes import (
    Amount,
    Size,
    bases,
    bucket,
    divisor_of,
    either,
    factored,
    nominal,
    reciprocal,
)
from fusionplan.planner.graph.varying import bucket_key, bucket_name, is_varying
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import each_graph

N = Size(48, (1680, 2640), 16)
M = Size(30, (3120, 4080))
OPERATIONS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]


@st.composite
def sums(draw):
    """An expression of two sizes and constants, as a function of those sizes."""
    kind = draw(st.sampled_from(["n", "m", "number", "sum", "sum", "sum"]))
    if kind == "n":
        return lambda n, m: n
    if kind == "m":
        return lambda n, m: m
    if kind == "number":
        number = draw(st.integers(1, 64))
        return lambda n, m: number
    apply, left, right = draw(st.sampled_from(OPERATIONS)), draw(sums()), draw(sums())

    def evaluate(n, m):
        divides = apply in (operator.floordiv, operator.mod)
        other = right(n, m)
        return left(n, m) if divides and other == 0 else apply(left(n, m), other)

    return evaluate


@settings(max_examples=80, deadline=None, derandomize=True)
@given(sums(), st.integers(1, 40), st.integers(2, 400))
def test_arithmetic_is_that_of_integers_at_every_size(expression, blocks, m):
    n = 16 * blocks
    found = expression(Size(n, N.probes, 16), Size(m, M.probes))
    assert found == expression(n, m)
    assert found % divisor_of(found) == 0
    if isinstance(found, Size):
        assert len(found.probes) == 2
        assert set(found.probes) != {int(found)}


def test_what_does_not_vary_is_a_plain_number():
    assert type(N // N) is int
    assert type(N - N) is int
    assert type(N * 0) is int
    assert isinstance(N - 48, Size)  # 0 here, and not elsewhere
    assert -N == -48
    assert abs(-N).probes == N.probes
    assert N.__add__("1") is NotImplemented
    assert type(N * 0.5) is float
    assert (3 * N).divisor == 16
    assert (N // 4).divisor == 4
    assert (N + 8).divisor == 8
    assert (8 * M).divisor == 8
    assert either(48, N) is N
    assert copy.deepcopy(N).probes == N.probes
    assert copy.copy(Amount(0.5, (1.0, 2.0))).probes == (1.0, 2.0)


def test_reciprocals_vary_and_sizes_count_as_their_bucket():
    assert reciprocal(4) == 0.25
    assert reciprocal(N) == 1 / 48
    assert reciprocal(N).probes == (1 / 1680, 1 / 2640)
    assert [nominal(n) for n in (48, N, M)] == [48, 64, 32]


def test_buckets_are_of_what_the_other_sizes_follow_from():
    assert bases([N * M, N, 7, M, M * 4]) == (N, M)
    assert bucket(bases([N, M])) == [[64, 1], [32, 0]]
    assert factored((N * M * 6).probes, (N, M)) == (6, (N, M))
    assert factored((N + 1).probes, (N, M)) is None


def test_numbers_become_arguments_by_what_they_are_at_the_probes():
    numbers = Numbers()
    assert numbers.text(7) == "7"
    assert numbers.text(N) == "n0"
    assert numbers.text(Size(48, (1, 2))) == "n1"
    assert numbers.text(Size(48, N.probes)) == "n0"  # known to be aligned all the same
    assert literal(M, "float32", numbers) == "n2.to(tl.float32)"
    assert literal(Amount(0.5, (0.1, 0.2)), "float32", numbers) == "n3"
    assert literal(Amount(0.5, (0.1, 0.2)), "float64", numbers) == "tl.full([], 0.5, tl.float64)"
    found = numbers.used("n0 + n2 * n3 + n10")
    assert {name: (s.value, s.kind, s.aligned) for name, s in found.items()} == {
        "n0": (48, "i32", True),
        "n2": (30, "i32", False),
        "n3": (0.5, "fp32", False),
    }


# --- graphs ---


def captured(function, *inputs, dynamic, sizes=None, backward=False):
    """The static graphs of a call; of a dynamic one at the sizes given instead of its own."""

    def look(gm, fakes):
        if not is_dynamic(gm):
            return capture(gm).graph
        varying = Symbolic(gm)
        return varying.at(sizes or varying.sizes(fakes))[0].graph

    found = each_graph(function, inputs, look, dynamic=dynamic, backward=backward)
    return [graph for graph, _ in found]


FUNCTIONS = {
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)) * x.shape[0],
    "group_norm": lambda x: F.group_norm(x.view(x.shape[0], 2, -1), 2),
    "views": lambda x: x.t().reshape(-1)[3:].view(-1, 1) * 2,
    "positions": lambda x: x + torch.arange(x.shape[1]) * x.shape[0],
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 3),
    "numbers": lambda x: (x * 2, x.shape[0] + 1),
    "joined": lambda x: torch.cat([x[1:], x], 0).flip(0),
}


@pytest.mark.dynamo
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_at_other_sizes_is_the_one_captured_there(name):
    function = FUNCTIONS[name]
    (dynamic,) = captured(function, torch.randn(6, 10), dynamic=True, sizes=(9, 14))
    (static,) = captured(function, torch.randn(9, 14), dynamic=False)
    assert str(dynamic) == str(static)
    assert graphs.key(dynamic) == graphs.key(static)
    assert is_varying(dynamic)
    assert not is_varying(static)
    assert bucket_key(static) is None


@pytest.mark.dynamo
def test_a_backward_graph_at_other_sizes():
    x = torch.randn(6, 10, requires_grad=True)
    _, backward = captured(lambda x: x.softmax(-1) * x, x, dynamic=True, backward=True)
    assert is_varying(backward)


@pytest.mark.dynamo
def test_buckets_of_graphs():
    def key_at(*sizes):
        (graph,) = captured(FUNCTIONS["softmax"], torch.randn(6, 10), dynamic=True, sizes=sizes)
        return bucket_key(graph), bucket_name(graph)

    known, words = key_at(1000, 48)
    assert words == "up to 1024, up to 64 (a multiple of 16)"
    assert key_at(520, 64) == (known, words)
    others = [key_at(*sizes)[0] for sizes in ((1024, 48), (520, 63), (500, 48), (1000, 80))]
    assert len({known, *others}) == 5


@pytest.mark.dynamo
def test_buckets_tell_by_which_size_a_number_varies():
    def key_of(function):
        (graph,) = captured(function, torch.randn(6, 10), dynamic=True, sizes=(48, 48))
        return bucket_key(graph)

    assert key_of(lambda x: x * x.shape[0]) != key_of(lambda x: x * x.shape[1])


def test_varying_floats_go_through_json():
    numbers = (graphs.Node(0, "x", "constant", (Amount(0.5, (0.25, 0.125)),)),)
    graph = graphs.Graph(numbers, (0,))
    again = graphs.from_json(graphs.to_json(graph, graphs.varying_to_json))
    assert again.nodes[0].args[0].probes == (0.25, 0.125)
    assert is_varying(again)


@pytest.mark.dynamo
def test_varying_numbers_go_through_json():
    (graph,) = captured(FUNCTIONS["positions"], torch.randn(6, 10), dynamic=True)
    data = json.loads(json.dumps(graphs.to_json(graph, graphs.varying_to_json)))
    again = graphs.from_json(data)
    assert again == graph
    assert bucket_key(again) == bucket_key(graph)
    assert graphs.kernel_key(again) == graphs.kernel_key(graph) != graphs.key(graph)
    assert type(again.nodes[0].type.shape[0]) is Size
    plain = graphs.from_json(json.loads(json.dumps(graphs.to_json(graph))))
    assert plain == graph
    assert not is_varying(plain)
    assert graphs.kernel_key(plain) == graphs.key(graph)


@pytest.mark.dynamo
def test_a_graph_within_a_graph_is_left_to_tracing():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    with pytest.raises(Exception, match="holds another one"):
        captured(branch, torch.randn(6, 10), dynamic=True)


def test_sizes_that_the_inputs_do_not_tell_are_left_to_tracing():
    gm = torch.fx.symbolic_trace(lambda x: x)
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    node = next(iter(gm.graph.nodes))
    node.meta["val"] = shape_env.create_unbacked_symint()
    assert symbolic(gm) is None
