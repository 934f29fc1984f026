"""What an explanation says: derivations, masks, intermediates, refusals, boundaries."""

import json
from dataclasses import replace

import pytest
import torch
from corpus import HALF, corpus_graph, graph_of, tensor
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost, total
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import PlanError
from fusionplan.planner.explain_plan import condition, explain_plan
from fusionplan.planner.explanation import Denied, Explanation, Measured
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lowerings.aten import aten_s
from fusionplan.planner.nests.linear_forms import Affine, Role, Term, TileAxis
from fusionplan.planner.nests.mask_bounds import Limit
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.stream.online import Proof

pytestmark = pytest.mark.dynamo

SOFTMAX_H = "H(t, x, x') = t * exp(x - x'), x = amax"
N = 1024
FIRST = 400
"""Configs of a group that are looked at, spread over its layouts."""


def masked(scores, mask):
    n = scores.shape[-1]
    i, j = torch.arange(n).unsqueeze(1), torch.arange(n).unsqueeze(0)
    return scores.masked_fill(mask(i, j), float("-inf"))


def attention(mask):
    """Attention with a soft cap and a mask, as a user writes it, and its inputs."""

    def function(q, k, v):
        scores = 30 * torch.tanh(q @ k.transpose(-1, -2) * 0.125 / 30)
        return torch.softmax(masked(scores, mask), -1) @ v

    return graph_of(function, [tensor(16, N, 64, dtype=HALF, device="cpu") for _ in range(3)])


def config_of(part: Graph, *reductions: str) -> Config:
    """The best by the model of the first configs of a group with one of these ways to reduce."""
    space = space_of(part, H200)
    assert isinstance(space, Space), space
    judged = ((space.judge(c), c) for c in space.enumerate(FIRST) if fits(c, reductions))
    possible = [(cost.seconds, str(c), c) for cost, c in judged if isinstance(cost, Cost)]
    return min(possible, key=lambda each: each[:2])[2]


def fits(config: Config, reductions: tuple[str, ...]) -> bool:
    return not reductions or config.reduction in reductions


def generated(graph: Graph, nodes, *reductions: str) -> GroupPlan:
    nodes = with_free_nodes(graph, nodes)
    part = subgraph(graph, nodes).graph
    return GroupPlan(nodes, "triton", key(part), config_of(part, *reductions), predicted=1e-5)


def compute(graph: Graph) -> list[int]:
    return [n.id for n in graph.nodes if is_compute(n)]


def plan_of(graph: Graph, *groups: GroupPlan) -> Plan:
    return Plan(key(graph), H200.key, (("codegen", "1"),), "modelled", groups)


def whole(graph: Graph, *reductions: str) -> Plan:
    return plan_of(graph, generated(graph, compute(graph), *reductions))


@pytest.fixture(scope="module")
def causal() -> tuple[Graph, Plan]:
    graph = attention(lambda i, j: j > i)
    return graph, whole(graph, "loop", "nested")


# --- groups ---


def test_attention_is_derived(causal):
    (group,) = explain_plan(*causal, H200).groups
    assert Proof("sum_1", "exponent", SOFTMAX_H) in group.derived
    assert Proof("bmm_1", "exponent", SOFTMAX_H) in group.derived
    assert Proof("bmm_1", "multiplier", "sum(u * x) = sum(u) * x, x = div_1") in group.derived
    assert group.denied == ()
    assert [str(t) for t in group.inputs] == [f"arg{i}_1: bfloat16[16, {N}, 64]" for i in range(3)]
    assert [str(t) for t in group.outputs] == [f"bmm_1: bfloat16[16, {N}, 64]"]


def test_attention_never_stores_its_scores(causal):
    (group,) = explain_plan(*causal, H200).groups
    largest, product = group.never_stored
    assert (largest.dtype, largest.nbytes) == ("float32", 16 * N * N * 4)
    assert str(product) == f"bmm: bfloat16[16, {N}, {N}]"
    assert product.nbytes == 16 * N * N * 2


def test_a_causal_mask_leaves_half(causal):
    (kernel,) = explain_plan(*causal, H200).groups[0].kernels
    (bound,) = kernel.bounds
    looped = [a for a in kernel.axes if a.role == "loop" and a.extent == N]
    assert [a.name for a in looped] == [bound.axis]
    (condition,) = bound.conditions
    rows = next(a.name for a in kernel.axes if a.role == "grid" and a.extent == N)
    assert condition == f"{bound.axis} <= {rows}"
    assert bound.whole == N // looped[0].block
    assert 0.5 * bound.whole <= bound.turns <= 0.5 * bound.whole + 1


def test_a_window_has_two_ends():
    graph = attention(lambda i, j: (j > i) | (j < i - 127))
    (kernel,) = explain_plan(graph, whole(graph, "loop", "nested"), H200).groups[0].kernels
    (bound,) = kernel.bounds
    rows = next(a.name for a in kernel.axes if a.role == "grid" and a.extent == N)
    assert set(bound.conditions) == {f"{bound.axis} <= {rows}", f"{bound.axis} >= {rows} - 127"}
    assert bound.turns < 0.5 * bound.whole


def test_layouts_that_a_group_lacks():
    graph = graph_of(lambda x: torch.softmax(x, -1), [tensor(4096, 1 << 17)])
    (group,) = explain_plan(graph, whole(graph, "loop"), H200).groups
    assert group.layouts == (
        Denied("natural", "held", "a tile of 131072 elements is too large"),
        Denied("flat", "flat", "flat tiling is for groups without a reduction"),
        Denied("nested", "loop", "there is only one axis to loop over"),
    )


def test_predicted_beside_measured(causal):
    graph, plan = causal
    part = subgraph(graph, plan.groups[0].nodes).graph
    cost = space_of(part, H200).judge(plan.groups[0].config)
    known = {plan.groups[0].kernel_key: Measured(9e-5, 128, 16, 4096)}
    (group,) = explain_plan(graph, plan, H200, measured=known).groups
    assert group.predicted == cost
    assert group.predicted_s == 1e-5
    assert group.measured == Measured(9e-5, 128, 16, 4096)
    later = replace(plan, groups=(replace(plan.groups[0], measured=8e-5),))
    (group,) = explain_plan(graph, later, H200, measured=known).groups
    assert group.measured == Measured(8e-5, 128, 16, 4096)


def test_long_rows_are_one_pass():
    graph = graph_of(lambda x: torch.softmax(x, -1), [tensor(4096, 32768)])
    (group,) = explain_plan(graph, whole(graph, "loop"), H200).groups
    assert group.derived == (Proof("sum_1", "exponent", SOFTMAX_H),)
    (kernel,) = group.kernels
    assert kernel.bounds == ()
    assert {a.role for a in kernel.axes} == {"grid", "loop"}
    assert kernel.nest.startswith("axis x0: 4096 grid\naxis r0: 32768 loop\nloop r0 carrying")
    assert kernel.programs == 4096 // kernel.axes[0].block


def test_a_split_hands_on_its_parts():
    graph = graph_of(lambda x: torch.softmax(x, -1), [tensor(4, 1 << 20)])
    nodes = with_free_nodes(graph, compute(graph))
    part = subgraph(graph, nodes).graph
    space = space_of(part, H200)
    config = next(c for c in space.enumerate() if c.split > 1)
    group = GroupPlan(nodes, "triton", key(part), config)
    (found,) = explain_plan(graph, plan_of(graph, group), H200).groups
    assert len(found.kernels) > 1
    assert {t.shape[0] for t in found.temporaries} == {config.split}
    assert found.derived == (Proof("sum_1", "exponent", SOFTMAX_H),)
    assert found.predicted == total([k.predicted for k in found.kernels])
    assert len({k.name for k in found.kernels}) == len(found.kernels)


@pytest.mark.parametrize(
    "function, fold, reason",
    [
        (
            lambda x: torch.exp(x * x.amax(-1, keepdim=True)).sum(-1),
            "sum_1",
            "mul in the exponent is not linear in amax",
        ),
        (
            lambda x: (torch.exp(x - x.amax(-1, True)) + x.amin(-1, True)).sum(-1),
            "sum_1",
            "add is no product: amax, amin cannot leave it",
        ),
        (
            lambda x: torch.prod(x - x.amax(-1, keepdim=True), -1),
            "prod",
            "no rule corrects a prod under way",
        ),
    ],
    ids=["no linear exponent", "a sum of two terms", "a product"],
)
def test_the_step_that_failed(function, fold, reason):
    graph = graph_of(function, [tensor(4096, 32768)])
    (group,) = explain_plan(graph, whole(graph, "loop"), H200).groups
    assert group.denied == (Denied(fold, "online", reason),)
    assert group.kernels[0].nest.count("loop r0 carrying") == 2


def test_texts_are_only_given_when_asked_for(causal):
    (kernel,) = explain_plan(*causal, H200).groups[0].kernels
    assert kernel.text == ""
    (kernel,) = explain_plan(*causal, H200, texts=True).groups[0].kernels
    assert f"def {kernel.name}(" in kernel.text
    assert "tl.dot" in kernel.text


def test_a_kernel_that_copies_rows_is_told():
    """Weights of an odd length, read by many rows, are copied so that vectors can be read."""
    inputs = [torch.empty(s, device="meta", dtype=HALF) for s in ((32768, 4099), (4099,), (4099,))]
    graph = graph_of(lambda x, w, b: torch.layer_norm(x, (4099,), w, b), inputs)
    config = Config((("x0", 1),), num_warps=8, num_stages=1)
    nodes = tuple(with_free_nodes(graph, compute(graph)))
    group = GroupPlan(nodes, "triton", key(subgraph(graph, nodes).graph), config, predicted=1e-5)
    (told,) = explain_plan(graph, plan_of(graph, group), H200, texts=True).groups
    (kernel,) = told.kernels
    assert kernel.copied_by == f"{kernel.name}_rows"
    assert told.launches == 2
    assert f"def {kernel.copied_by}(" in kernel.text
    assert f"def {kernel.name}(" in kernel.text


def test_lines_of_the_user(causal):
    (group,) = explain_plan(*causal, H200, sources={8: "model.py:3: q @ k"}).groups
    lines = {o.node: o.source for o in group.operations}
    assert lines[8] == "model.py:3: q @ k"
    assert {line for node, line in lines.items() if node != 8} == {""}


# --- what is not generated ---


def test_a_group_left_to_aten():
    graph = corpus_graph("softmax")
    group = replace(generated(graph, compute(graph)), lowering="aten", config=None)
    (found,) = explain_plan(graph, plan_of(graph, group), H200).groups
    assert found.kernels == ()
    assert found.predicted is None
    assert found.never_stored == ()
    part = subgraph(graph, group.nodes).graph
    assert found.otherwise.refusal is None
    assert found.otherwise.generated_s == space_of(part, H200).quick().seconds
    assert found.otherwise.aten_s == aten_s(part, H200)


def test_a_config_that_no_longer_fits():
    graph = corpus_graph("softmax")
    group = generated(graph, compute(graph))
    other = replace(group, config=replace(group.config, blocks=(("y9", 4),)))
    (found,) = explain_plan(graph, plan_of(graph, other), H200).groups
    assert found.kernels == ()
    assert found.otherwise.refusal.rule == "config"


OPAQUE_GROUPED = ("embedding.default", "exp.default", "mul.Tensor", "add.Tensor")


def test_nodes_in_no_group():
    graph = corpus_graph("opaque")
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200)
    alone = {each.operation.op: each.otherwise for each in explanation.alone}
    digamma = alone["aten.digamma.default"]
    assert digamma.refusal.rule == "opaque"
    assert "aten.digamma.default" in digamma.refusal.reason
    assert digamma.aten_s is None
    grouped = {o.op for group in explanation.groups for o in group.operations}
    assert grouped == {f"aten.{op}" for op in OPAQUE_GROUPED}
    assert grouped.isdisjoint(alone)


# --- boundaries ---


def test_neighbours_that_cannot_be_one():
    graph = corpus_graph("slice_of_a_reduction")
    (boundary,) = explain_plan(graph, modelled_plan(graph, H200), H200).boundaries
    assert (boundary.left.group, boundary.right.group) == (0, 1)
    assert boundary.refusal.rule == "window"
    assert boundary.refusal.reason == "sum_1 is a reduction read through a slice"
    assert (boundary.together_s, boundary.apart_s) == (None, None)


def test_neighbours_that_are_faster_apart():
    graph = corpus_graph("two_axes")
    (boundary,) = explain_plan(graph, modelled_plan(graph, H200), H200).boundaries
    assert boundary.refusal is None
    assert boundary.apart_s < boundary.together_s


def test_neighbours_that_would_be_faster_together():
    graph = graph_of(lambda x: torch.sin(torch.exp(x)), [tensor(4096, 4096)])
    first, second = compute(graph)
    plan = plan_of(graph, generated(graph, [first]), generated(graph, [second]))
    (boundary,) = explain_plan(graph, plan, H200).boundaries
    assert boundary.edges == ((first, second),)
    assert boundary.refusal is None
    assert boundary.together_s < boundary.apart_s
    parts = [subgraph(graph, g.nodes).graph for g in plan.groups]
    apart_s = sum(space_of(part, H200).quick().seconds for part in parts)
    assert boundary.apart_s == pytest.approx(apart_s)


def test_a_padded_product_stands_apart_by_its_own_seconds():
    x, w = tensor(4096, 2047, dtype=HALF), tensor(4096, 2047, dtype=HALF)
    graph = graph_of(lambda x, w: (x @ w.t()).exp().sin(), [x, w])
    plan = modelled_plan(graph, H200)
    assert [g.options for g in plan.groups] == ["linear_padded", ""]
    (boundary,) = explain_plan(graph, plan, H200).boundaries
    assert boundary.apart_s == pytest.approx(plan.predicted, rel=0.05)


def test_a_path_that_comes_back():
    graph = graph_of(lambda x: torch.exp(x).digamma() + torch.exp(x), [tensor(4096, 4096)])
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200)
    rules = [b.refusal and b.refusal.rule for b in explanation.boundaries]
    assert rules == ["convex"]


def test_a_group_and_a_node_in_none():
    graph = corpus_graph("does_not_factor")
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200)
    found = {(b.left.group, b.right.group): b for b in explanation.boundaries}
    assert found.keys() == {(0, None), (1, None)}
    assert {b.refusal.rule for b in found.values()} == {"factor"}


# --- the whole ---


def test_only_some_groups():
    graph = corpus_graph("does_not_factor")
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200, only={1})
    assert [g.number for g in explanation.groups] == [1]
    assert [b.left.group for b in explanation.boundaries] == [1]
    assert explanation.alone == ()


def test_a_plan_without_groups():
    graph = corpus_graph("softmax")
    explanation = explain_plan(graph, plan_of(graph), H200)
    assert explanation.groups == ()
    assert [each.operation.node for each in explanation.alone] == compute(graph)
    assert all(each.otherwise.generated_s > 0 for each in explanation.alone)
    assert {b.left.group for b in explanation.boundaries} == {None}


def test_a_plan_of_another_graph():
    plan = plan_of(corpus_graph("softmax"))
    with pytest.raises(PlanError, match="not for this one"):
        explain_plan(corpus_graph("two_axes"), plan, H200)


@pytest.mark.parametrize(
    "terms, base, text",
    [
        ([(0, -1)], 0, "r0 <= x0"),
        ([(0, 1)], 4, "r0 <= -x0 - 4"),
        ([(0, -2), (1, 3)], -1, "r0 <= 2 * x0 - 3 * x1 + 1"),
        ([], 0, "r0 <= 0"),
    ],
)
def test_how_a_condition_reads(terms, base, text):
    """From scale * index + rest <= 0."""
    rest = Affine(tuple(Term(axis, 1, 0, scale) for axis, scale in terms), base)
    axes = [TileAxis(name, Role.GRID, (), ()) for name in ("x0", "x1", "r0")]
    assert condition(axes, 2, Limit(1, rest)) == text
    opposite = Affine(tuple(Term(axis, 1, 0, -scale) for axis, scale in terms), -base)
    assert condition(axes, 2, Limit(-1, opposite)) == text.replace("<=", ">=")


@pytest.mark.parametrize("name", ["mlp", "opaque", "slice_of_a_reduction", "two_axes"])
def test_json_round_trip(name):
    graph = corpus_graph(name)
    explanation = explain_plan(graph, modelled_plan(graph, H200), H200, texts=True)
    text = json.dumps(explanation.to_json(), allow_nan=False)
    assert Explanation.from_json(json.loads(text)) == explanation


def test_json_keys(causal):
    """Programs read these: a change of them is a change of the format."""
    data = explain_plan(*causal, H200).to_json()
    assert list(data) == [
        "graph_key",
        "device",
        "evidence",
        "predicted_s",
        "measured_s",
        "groups",
        "alone",
        "boundaries",
        "chosen",
        "bucket",
        "least",
        "format",
    ]
    assert data["chosen"] is None  # a plan made by hand
    assert {"derived", "denied", "never_stored", "layouts", "predicted", "measured"} <= set(
        data["groups"][0]
    )
    assert {"fold", "rule", "formula"} == set(data["groups"][0]["derived"][0])


def test_json_of_something_else():
    with pytest.raises(ValueError, match="no explanation"):
        Explanation.from_json({"groups": 3})
