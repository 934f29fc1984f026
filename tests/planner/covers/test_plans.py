"""What the model makes of whole graphs: which operations share a kernel, and what stays aten.
No GPU, no compiler: groups are decided by legality and the cost model alone."""

from __future__ import annotations

import copy
import json

import pytest
from corpus import CORPUS, EXAMPLES, corpus_graph
from full_size import MODELS, planned
from fusionplan.planner.bitsets import bits, bitset
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.by_rule import groups_by_rule
from fusionplan.planner.covers.cover import modelled_plan, partition
from fusionplan.planner.covers.growing import cut_edges
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, key
from fusionplan.planner.graph.ops import is_compute, is_input
from fusionplan.planner.groups.group import Groups, is_copied, subgraph
from fusionplan.planner.groups.legality import (
    Dependences,
    Homes,
    comes_back,
    may_be_kernel,
    may_join,
)
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import GroupPlan, Plan
from graphs import Builder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.dynamo

# --- the corpus --------------------------------------------------------------------------------

SOFTMAX = "amax sub exp sum div"
NORM = "sum div sub mul sum div add rsqrt mul"

# Compute operations of every group, without casts, in the order of the graph; then what no
# generated kernel holds.
EXPECTED: dict[str, tuple[list[str], list[str]]] = {
    "softmax": ([f"mul {SOFTMAX}"], []),
    "layer_norm_residual": ([f"add {NORM} mul add"], []),
    "group_norm_silu": ([f"{NORM} mul add sigmoid mul"], []),
    "batch_norm_relu": ([f"{NORM} mul add relu"], []),
    "mlp": (["addmm mul mul erf add mul"], ["permute", "mm", "add"]),
    "around_a_matmul": (["relu mul", "sigmoid add"], ["mm"]),
    "several_outputs": (["relu sum exp amax"], []),
    "siblings": (["exp sin mul sum div"], []),
    "diamond": (["add sigmoid tanh mul"], []),
    "with_own_transpose": (["add relu"], []),
    "does_not_factor": (["exp", "exp"], ["view", "add"]),
    "slice_of_a_reduction": (["sum", "exp add"], []),
    "two_axes": (["exp sum", "exp sum"], []),
    "opaque": (["embedding exp", "mul", "add"], ["digamma", "sort", "getitem"]),
    "rotary": (["mul neg cat mul add"], []),
    "examples/article_chain": (["add mul relu pow"], []),
    "examples/layernorm_residual": ([f"add {NORM} mul add"], []),
    "examples/log_relu_add": (["add relu log"], []),
    "examples/rotary": (["mul neg cat mul add"], []),
    "examples/sigmoid_tanh": (["sigmoid add tanh mul"], []),
    "examples/softmax_rows": ([SOFTMAX], []),
}


def word(node: Node) -> str:
    return node.op.split(".")[1].lstrip("_")


def works(graph: Graph, node: int) -> bool:
    """Whether a node belongs to just one group: it does work, and readers have no copies of it."""
    return is_compute(graph.nodes[node]) and not is_copied(graph, node)


def words(graph: Graph, nodes: tuple[int, ...]) -> str:
    found = [word(graph.nodes[n]) for n in nodes if is_compute(graph.nodes[n])]
    return " ".join(w for w in found if w not in ("to_copy", "convert_element_type"))


def left_to_aten(graph: Graph, groups: Groups) -> list[str]:
    held = {n for nodes in groups for n in nodes}
    return [word(n) for n in graph.nodes if n.id not in held and not is_input(n)]


@pytest.mark.parametrize("name", EXPECTED)
def test_groups_of_the_modelled_plan(name: str) -> None:
    graph = corpus_graph(name)
    plan = modelled_plan(graph, H200)
    groups, aten = EXPECTED[name]
    assert [words(graph, g.nodes) for g in plan.groups] == groups
    assert left_to_aten(graph, tuple(g.nodes for g in plan.groups)) == aten


@pytest.mark.parametrize("name", EXPECTED)
def test_every_group_of_a_plan_runs_as_the_plan_says(name: str) -> None:
    graph = corpus_graph(name)
    plan = modelled_plan(graph, H200)
    assert (plan.evidence, plan.graph_key, plan.device) == ("modelled", key(graph), H200.key)
    for group in plan.groups:
        part = subgraph(graph, group.nodes, group.copies).graph
        assert group.lowering == "triton"
        assert group.kernel_key == key(part)
        assert group.config is not None
        program = lower(part, group.config)
        assert len(program.kernels) == group.kernels
        assert group.predicted is not None
        assert group.predicted > H200.launch_s
    assert plan.predicted == pytest.approx(sum(g.predicted or 0 for g in plan.groups))
    assert plan.chosen is not None
    assert 0 < plan.chosen.least_s <= plan.chosen.seconds <= plan.chosen.greedy_s


def test_every_example_and_every_function_has_an_expectation() -> None:
    examples = {f"examples/{path.stem}" for path in EXAMPLES}
    assert examples <= set(EXPECTED)
    assert set(CORPUS) - set(EXPECTED) == {"attention"}


def test_attention_keeps_the_vendors_call_and_fuses_around_it() -> None:
    graph = corpus_graph("attention")
    plan = modelled_plan(graph, H200)
    groups = [words(graph, g.nodes) for g in plan.groups]
    assert len(groups) == 2
    assert groups[0].startswith(("pow", "mul"))
    assert "rsqrt" in groups[0]
    assert groups[1] == "sigmoid mul"
    aten = left_to_aten(graph, tuple(g.nodes for g in plan.groups))
    assert aten.count("mm") == 3, aten
    assert sum("scaled_dot_product" in op for op in aten) == 1


@pytest.mark.parametrize("name", ["layer_norm_residual", "mlp", "two_axes", "rotary"])
def test_all_cuts_leave_every_operation_alone_and_no_cut_leaves_the_largest(name: str) -> None:
    graph = corpus_graph(name)
    apart = partition(graph, frozenset(cut_edges(graph)))
    assert [words(graph, g).count(" ") for g in apart] == [0] * len(apart)
    own = [n for n in graph.nodes if is_compute(n) and not is_copied(graph, n.id)]
    assert len(own) == len(apart)
    whole = partition(graph, frozenset())
    expected = {
        "layer_norm_residual": [f"add {NORM} mul add"],
        "mlp": ["addmm mul mul erf add mul mm add"],
        "two_axes": ["exp sum sum"],
        "rotary": ["mul neg cat mul add"],
    }
    assert [words(graph, g) for g in whole] == expected[name]


def test_a_cut_edge_is_not_grown_along() -> None:
    graph = corpus_graph("diamond")
    add, sigmoid, tanh, mul = (n.id for n in graph.nodes if is_compute(n))
    cuts = frozenset({(add, sigmoid), (add, tanh)})
    assert cuts <= set(cut_edges(graph))
    assert partition(graph, cuts) == ((add,), (sigmoid, tanh, mul))


# --- products of matrices, at full size ----------------------------------------------------------

MB = 1 << 20

# Products of matrices in each group that has any, kernels, and the bytes that the largest buffer
# may have that is no output.
STREAMED: dict[str, tuple[list[int], int, int]] = {
    "linear_smallk_gelu": ([1], 1, 0),
    "linear_relu": ([1], 1, 0),
    "matmul_rowmax": ([1], 1, 0),
    "splade_head": ([1], 1, 0),
    "linear_cross_entropy": ([1], 3, 1 * MB),  # a maximum, a sum and a logit by row and part
    "attn_naive_softcap_alibi_causal": ([2], 1, 0),
    "attn_naive": ([2], 1, 0),
    "decode_attention": ([2], 1, 0),
    "attn_out_residual_ln": ([1], 1, 0),
    "swiglu_mlp": ([1, 1], 2, 8192 * 11008 * 2),  # the gate, and what is multiplied by it
    "colbert_maxsim": ([1], 2, 8 * MB),  # the best match of each word
    "contrastive_loss": ([1, 1], 5, 16384 * 512 * 2),  # the normalised pairs
    "rbf_matvec": ([2], 2, 32768 * 4),  # the squares of one side
}
LARGE = {
    "matmul_rowmax": 16384 * 32768,
    "splade_head": 32 * 512 * 30522,
    "linear_cross_entropy": 8192 * 131072,
    "attn_naive_softcap_alibi_causal": 2 * 32 * 4096 * 4096,
    "attn_naive": 4 * 32 * 4096 * 4096,
    "decode_attention": 64 * 32 * 4096 * 128,  # keys once for every head of the query
    "colbert_maxsim": 32 * 32 * 4096 * 256,
    "contrastive_loss": 16384 * 16384,
    "rbf_matvec": 32768 * 32768,
}
"""Elements of the largest value that the user wrote and no plan may store."""


@pytest.mark.parametrize("name", STREAMED)
def test_what_stands_around_a_product_shares_its_kernel(name: str) -> None:
    found = planned(name)
    products, kernels, _ = STREAMED[name]
    assert [len(found.contractions(g.nodes)) for g in found.fused()] == products
    assert {g.lowering for g in found.plan.groups} == {"triton"}
    assert found.kernels() == kernels
    whole = [n.id for n in found.graph.nodes if is_compute(n)]
    left = len(found.contractions(tuple(whole))) - sum(products)
    assert left == (name == "swiglu_mlp")  # A product alone is the vendor's.


@pytest.mark.parametrize("name", STREAMED)
def test_no_large_intermediate_is_ever_stored(name: str) -> None:
    found = planned(name)
    sizes = dict(found.buffers())
    assert max(sizes.values(), default=0) <= STREAMED[name][2], sizes
    if name in LARGE:
        streamed = [n.type for n in found.graph.nodes if is_compute(n) and n.type]
        assert max(t.numel for t in streamed) == LARGE[name]
        assert max(t.nbytes for t in streamed) > 10 * sum(sizes.values())


def test_every_workload_with_a_product_has_an_expectation() -> None:
    assert set(MODELS) == set(STREAMED)


# --- any graph ---------------------------------------------------------------------------------


def dense(*shape: int) -> TensorType:
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return TensorType(shape, tuple(strides), "float32")


WIDE, ROW, TURNED, FLAT = (64, 96), (64, 1), (96, 64), (64 * 96,)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of pointwise operations, reductions, views, constants and opaque ones."""
    nodes = [Node(0, "x", "input", type=dense(*WIDE)), Node(1, "y", "input", type=dense(*WIDE))]

    def pick(*shapes: tuple[int, ...]) -> Node:
        return draw(st.sampled_from([n for n in nodes if n.type and n.type.shape in shapes]))

    def add(op: str, args: tuple, shape: tuple[int, ...]) -> None:
        nodes.append(Node(len(nodes), f"n{len(nodes)}", op, args, type=dense(*shape)))

    kinds = st.sampled_from(["unary", "binary", "row", "fold", "turn", "flat", "scan", "full"])
    for kind in draw(st.lists(kinds, min_size=2, max_size=12)):
        if kind == "unary":
            a = pick(WIDE, ROW, TURNED, FLAT)
            add("aten.exp.default", (Ref(a.id),), a.type.shape)
        elif kind == "binary":
            a = pick(WIDE, ROW, TURNED, FLAT)
            b = pick(a.type.shape)
            add("aten.add.Tensor", (Ref(a.id), Ref(b.id)), a.type.shape)
        elif kind == "row" and any(n.type.shape == ROW for n in nodes):
            add("aten.mul.Tensor", (Ref(pick(WIDE).id), Ref(pick(ROW).id)), WIDE)
        elif kind == "fold":
            add("aten.amax.default", (Ref(pick(WIDE).id), (1,), True), ROW)
        elif kind == "turn":
            a = pick(WIDE, TURNED)
            add("aten.permute.default", (Ref(a.id), (1, 0)), a.type.shape[::-1])
        elif kind == "flat":
            add("aten.view.default", (Ref(pick(WIDE).id), FLAT), FLAT)
        elif kind == "scan":
            a = pick(WIDE, TURNED, FLAT)
            add("aten.digamma.default", (Ref(a.id),), a.type.shape)
        elif kind == "full":
            add("aten.full.default", (WIDE, 0.5), WIDE)
    read = {i for n in nodes for i in n.inputs}
    ends = [n.id for n in nodes if n.id not in read and not is_input(n)]
    also = [n.id for n in nodes if n.id in read and not is_input(n)]
    some = draw(st.lists(st.sampled_from(also), max_size=2, unique=True)) if also else []
    return Graph(tuple(nodes), tuple(ends + some))


def homes(graph: Graph, groups: Groups) -> dict[int, int]:
    """Group number by compute node; opaque nodes stand for themselves."""
    home = {n: number for number, g in enumerate(groups) for n in g if works(graph, n)}
    for node in graph.nodes:
        if node.id not in home and not is_copied(graph, node.id) and not is_input(node):
            home[node.id] = len(home) + len(groups)
    return home


def is_acyclic(edges: set[tuple[int, int]]) -> bool:
    left = {end for edge in edges for end in edge}
    while left:
        ready = {n for n in left if not any(b == n and a in left for a, b in edges)}
        if not ready:
            return False
        left -= ready
    return True


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_any_partition_is_a_legal_cover(graph: Graph, random) -> None:
    cuts = frozenset(edge for edge in cut_edges(graph) if random.random() < 0.4)
    groups = partition(graph, cuts)
    assert partition(graph, cuts) == groups
    check_cover(graph, groups)


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_groups_by_rule_are_a_legal_cover(graph: Graph) -> None:
    check_cover(graph, groups_by_rule(graph))


def check_cover(graph: Graph, groups: Groups) -> None:
    compute = [n.id for n in graph.nodes if works(graph, n.id)]
    assert sorted(n for g in groups for n in g if works(graph, n)) == compute
    home = homes(graph, groups)
    sources = Dependences(graph).sources
    between = {
        (home[source], home[node])
        for node in home
        for source in bits(sources[node])
        if source in home and home[source] != home[node]
    }
    assert is_acyclic(between)
    for nodes in groups:
        members = bitset(n for n in nodes if works(graph, n))
        if members.bit_count() > 1:
            assert may_be_kernel(graph, members) is None


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_uncut_groups_cannot_grow(graph: Graph) -> None:
    dependences = Dependences(graph)
    home = {}
    for nodes in partition(graph, frozenset()):
        members = [n for n in nodes if is_compute(graph.nodes[n])]
        home.update(dict.fromkeys(members, bitset(members)))
    for a, b in dependences.edges:
        if home[a] != home[b]:
            assert may_join(graph, dependences, home, home[a], home[b]) is not None


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_bounded_look_at_paths_finds_what_the_whole_one_does(graph: Graph, random) -> None:
    dependences = Dependences(graph)
    home = Homes(graph, (n.id for n in graph.nodes if works(graph, n.id)))
    nodes = sorted(home)
    for _ in range(2 * len(nodes)):
        merged = home[random.choice(nodes)] | home[random.choice(nodes)]
        whole = comes_back(dependences, home, merged)
        assert comes_back(dependences, home, merged, home.within(merged)) == whole
        if not whole:
            home.join(merged)


def test_a_path_through_a_group_that_began_before_is_looked_at() -> None:
    b = Builder()
    x = b.input(8, 64)
    early, first = b.op("sin.default", x), b.op("exp.default", x)
    last = b.op("add.Tensor", first, early)
    beyond = b.op("relu.default", first)
    end = b.op("sqrt.default", beyond)
    graph = b.graph(b.op("mul.Tensor", last, end))
    dependences = Dependences(graph)
    home = Homes(graph, (n.id for n in graph.nodes if is_compute(n)))
    merged = 1 << first.node | 1 << last.node
    assert home.within(merged) == (1 << (last.node + 1)) - 1
    assert not comes_back(dependences, home, merged, home.within(merged))
    home.join(1 << early.node | 1 << end.node)  # It reads the pair, and the pair reads it.
    assert home.within(merged) == (1 << (end.node + 1)) - 1
    assert comes_back(dependences, home, merged, home.within(merged))


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_cutting_everything_leaves_single_operations(graph: Graph) -> None:
    groups = partition(graph, frozenset(cut_edges(graph)))
    assert all(sum(works(graph, n) for n in g) == 1 for g in groups)


@given(graphs())
@settings(max_examples=16, deadline=None)
def test_any_graph_has_a_modelled_plan(graph: Graph) -> None:
    # What reads nothing is in test_cost.py.
    plan = modelled_plan(graph, H200)
    for group in plan.groups:
        assert group.config is not None
        part = subgraph(graph, group.nodes, group.copies).graph
        assert isinstance(lower(part, group.config), Program)


# --- plans as JSON -----------------------------------------------------------------------------

seconds = st.none() | st.floats(0, 10, allow_nan=False)
configs = st.builds(
    Config,
    st.lists(st.tuples(st.sampled_from(["x0", "x1", "r0"]), st.integers(1, 1 << 14))).map(tuple),
    num_warps=st.sampled_from([1, 2, 4, 8]),
    tiling=st.sampled_from(["natural", "flat"]),
    reduction=st.sampled_from(["held", "loop"]),
)
group_plans = st.builds(
    GroupPlan,
    st.lists(st.integers(0, 99), min_size=1).map(tuple),
    st.sampled_from(["triton", "aten", "inductor"]),
    st.text("0123456789abcdef", min_size=8, max_size=8),
    st.none() | configs,
    predicted=seconds,
    measured=seconds,
    kernels=st.integers(0, 9),
)
plans = st.builds(
    Plan,
    st.text("0123456789abcdef", min_size=8, max_size=8),
    st.just("NVIDIA H200"),
    st.just((("torch", "2.11"), ("triton", "3.6"))),
    st.sampled_from(["measured", "modelled"]),
    st.lists(group_plans, max_size=3).map(tuple),
    predicted=seconds,
    measured=seconds,
    baselines=st.just(()) | st.tuples(st.tuples(st.just("eager"), st.floats(0, 10))),
    cudagraph=st.booleans(),
)


@given(plans)
@settings(deadline=None)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan


def places(data: object, path: tuple = ()) -> list[tuple]:
    """Every place in JSON data."""
    items = data.items() if isinstance(data, dict) else ()
    items = enumerate(data) if isinstance(data, list) else items
    return [path, *(p for k, v in items for p in places(v, (*path, k)))]


garbage = st.sampled_from(
    [None, True, -1, 1.5, float("nan"), float("inf"), 1 << 70, "", "x", [], [[]], {}, {"a": 1}]
)


@given(plans, st.data())
@settings(deadline=None, max_examples=300)
def test_a_damaged_plan_is_read_whole_or_refused(plan: Plan, data: st.DataObject) -> None:
    damaged = copy.deepcopy(plan.to_json())
    path = data.draw(st.sampled_from(places(damaged)[1:]))
    place = damaged
    for step in path[:-1]:
        place = place[step]
    if data.draw(st.booleans()):
        del place[path[-1]]
    else:
        place[path[-1]] = data.draw(garbage)
    try:
        read = Plan.from_json(damaged)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
        assert Plan.from_json(read.to_json()) == read
    assert not refused or refused.startswith("no plan: ")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"evidence": "guessed"},
        {"groups": [{"nodes": [0], "lowering": "magic", "kernel_key": "k"}]},
        {"groups": [{"nodes": [-1], "lowering": "triton", "kernel_key": "k"}]},
        {"measured": -1.0},
        {"predicted": float("nan")},
        {"graph_key": None},
        {"groups": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_garbage_is_refused_by_the_place_it_stands_in(change: dict) -> None:
    good = Plan("k", "NVIDIA H200", (), "modelled", ()).to_json()
    (place,) = change
    with pytest.raises(ValueError, match=f"no plan: {place}"):
        Plan.from_json({**good, **change})


@pytest.mark.parametrize("junk", [[], [1, 2], "", "plan", 3, None], ids=repr)
def test_what_is_no_object_is_no_plan(junk: object) -> None:
    with pytest.raises(ValueError, match="no plan"):
        Plan.from_json(junk)
