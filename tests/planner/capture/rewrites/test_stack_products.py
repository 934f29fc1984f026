"""Several products of one row as one product with all of their weights."""

import re

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.stack_products import stack_products
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.groups.group import subgraph
from fusionplan.planner.lower import lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
K = 64
ROW, Q, KEY = (1, K), (48, K), (16, K)


def traced(function, *shapes, dtype=torch.float32):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(torch.empty(shape, dtype=dtype)) for shape in shapes]
        flat = lambda *x: [*function(*x)]  # noqa: E731
        return make_fx(flat, decomposition_table=decompositions())(*fakes)


def products(gm) -> list[tuple[int, ...]]:
    """The shapes of the products of a graph."""
    return [tuple(n.meta["val"].shape) for n in gm.graph.nodes if n.target is aten.mm.default]


def same(gm, *shapes) -> None:
    """Whether the stacked graph gives what the graph gives."""
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(stack_products(gm)(*given), gm(*given))


def projections(x, q, k, v):
    """The heads of each; each linear layer has a view of the row of its own."""
    return [F.linear(x.view(1, 1, K), w).view(1, 1, -1, 8).transpose(1, 2).exp() for w in (q, k, v)]


def test_projections_of_a_row_are_one_product() -> None:
    shapes = ROW, Q, KEY, KEY
    gm = traced(projections, *shapes)
    assert products(gm) == [(1, 48), (1, 16), (1, 16)]
    assert products(stack_products(gm)) == [(1, 80)]
    same(gm, *shapes)


def test_weights_that_are_no_transposes_are_stacked_by_columns() -> None:
    shapes = ROW, (K, 48), (K, 16)
    gm = traced(lambda x, a, b: [torch.exp(x @ a), torch.sin(x @ b)], *shapes)
    assert products(stack_products(gm)) == [(1, 64)]
    same(gm, *shapes)


def test_what_is_combined_element_by_element_stays_apart() -> None:
    """One kernel computes both, and what combines them; a third is stacked with one of them."""
    gate = lambda x, a, b: [F.silu(x @ a.t()).half() * (x @ b.t())]  # noqa: E731
    gm = traced(gate, ROW, Q, Q)
    assert stack_products(gm) is gm
    three = lambda x, a, b, c: [*gate(x, a, b), torch.exp(x @ c.t())]  # noqa: E731
    shapes = ROW, Q, Q, KEY
    gm = traced(three, *shapes)
    assert products(stack_products(gm)) == [(1, 64), (1, 48)]
    same(gm, *shapes)


def unpacked(x, *weights):
    """Two numbers in a byte, each matrix with a scale for every eighth of its rows."""

    def one(w, s):
        halves = torch.stack([(w & 15).to(torch.int8) - 8, (w >> 4).to(torch.int8) - 8], -1)
        return (halves.reshape(len(w), 8, -1).float() * s[..., None]).reshape(len(w), -1)

    pairs = zip(weights[::2], weights[1::2], strict=True)
    return [F.linear(x, one(w, s)).sin().view(-1, 8).exp() for w, s in pairs]


def test_weights_computed_in_one_way_are_stacked_before_they_are_computed() -> None:
    torch.manual_seed(0)
    sizes = 48, 16, 16
    weights = [torch.randint(0, 256, (n, K // 2), dtype=torch.uint8) for n in sizes]
    given = [torch.randn(ROW)]
    for w in weights:
        given += [w, torch.rand(len(w), 8)]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in given]
        gm = make_fx(unpacked, decomposition_table=decompositions())(*fakes)
    stacked = stack_products(gm)
    assert products(gm) == [(1, 48), (1, 16), (1, 16)]
    assert products(stacked) == [(1, 80)]
    assert len([n for n in stacked.graph.nodes if n.target is aten.bitwise_and.Scalar]) == 1
    torch.testing.assert_close(stacked(*given), gm(*given))


def of_several_rows(x, a, b):
    return [
        torch.exp(x.view(2, -1) @ a.view(-1, K // 2).t()),
        torch.exp(x.view(2, -1) @ b[:, :32].t()),
    ]


def of_other_rows(x, a, b):
    return [torch.exp(x @ a.t()), torch.exp(torch.sin(x) @ b.t())]


def of_computed_weights(x, a, b):
    return [torch.exp(x @ (2 * a).t()), torch.exp(x @ (b + 1).t())]


def that_are_outputs(x, a, b):
    return [x @ a.t(), x @ b.t()]


def of_weights_that_meet(x, a, b):
    """Each row is computed from all rows."""
    return [torch.exp(x @ (w / w.sum(0)).t()) for w in (a, b)]


def of_weights_of_one_row(x, a, b):
    """A row is the same for all rows of each."""
    return [torch.exp(x @ (w * w[0]).t()) for w in (a, b)]


OTHERS = [
    of_several_rows,
    of_other_rows,
    of_computed_weights,
    of_weights_that_meet,
    of_weights_of_one_row,
    that_are_outputs,
]


@pytest.mark.parametrize("function", OTHERS, ids=lambda function: function.__name__)
def test_other_products_stay_as_they_are(function) -> None:
    gm = traced(function, ROW, Q, KEY)
    assert stack_products(gm) is gm


def test_one_kernel_reads_each_weight_where_it_lies() -> None:
    """With the norm before; the weights are copied nowhere."""

    def layer(x, scale, q, k, v):
        h = x.float()
        y = scale * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        return [torch.sort(y @ w.t())[0] for w in (q, k, v)]

    shapes = (1, 2048), (2048,), (2048, 2048), (512, 2048), (512, 2048)
    gm = stack_products(traced(layer, *shapes, dtype=torch.bfloat16))
    graph = capture(gm).graph
    plan = modelled_plan(graph, H200)
    (group,) = plan.groups
    ops = {graph.nodes[n].op for n in group.nodes}
    assert group.lowering == "triton"
    assert {"aten.cat.default", "aten.mm.default", "aten.rsqrt.default"} <= ops
    # One load reads all three. What it loads in 16 bits is not rounded to them again.
    program = lower(subgraph(graph, group.nodes, group.copies).graph, group.config)
    (kernel,) = program.kernels
    (read,) = [line for line in kernel.text.splitlines() if "tl.load(tl.where(" in line]
    (chosen,) = re.findall(r"^ *(v\d+) = .* in2 .* in3 .* in4 ", read)
    assert f"* {chosen}" in kernel.text
    assert f"as_bfloat16({chosen})" not in kernel.text
