"""Scales of packed weights behind the product that reads the weights."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.bench.decode_models import Linear8
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.rewrites.move_weight_scales import MOST_ROWS, move_weight_scales
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.costs.device import H100
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.ops import is_compute
from fusionplan.tuner.capture.capture_model import CallArguments, capture_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
K, N = 64, 48


def traced(function, *given):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in given]
        return make_fx(lambda *x: [function(*x)], decomposition_table=decompositions())(*fakes)


def weights(dtype=torch.int8, shape=(N, K)) -> torch.Tensor:
    return torch.randint(-8, 8, shape).to(dtype)


def is_product_of_packed(gm) -> bool:
    """Whether the right operand of the only product is made of the weights by views and casts."""
    (product,) = (n for n in gm.graph.nodes if n.target is aten.mm.default)
    node = product.args[1]
    while node.op != "placeholder":
        if node.target is aten.mul.Tensor:
            return False
        node = node.args[0]
    return True


def layer(x, w, s):
    return F.linear(x, w.to(x.dtype) * s[:, None])


def wide(x, w, s):
    return F.linear(x, (w.float() * s[:, None]).to(x.dtype))


def turned(x, w, s):
    return x @ (s * w.t().to(x.dtype))


def of_columns(x, w, s):
    return x @ (w.to(x.dtype) * s)


SAME = {
    "layer": (layer, weights(), torch.rand(N)),
    "float8": (layer, weights(torch.float8_e4m3fn), torch.rand(N)),
    "in float32": (wide, weights(), torch.rand(N)),
    "turned": (turned, weights(), torch.rand(N)),
    "of columns": (of_columns, weights(shape=(K, N)), torch.rand(N)),
    "one number": (of_columns, weights(shape=(K, N)), torch.rand(1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", SAME)
def test_a_scale_for_each_column_of_the_result_moves(name, rows, dtype) -> None:
    function, w, s = SAME[name]
    given = torch.randn(rows, K, dtype=dtype), w, s if name == "in float32" else s.to(dtype)
    gm = traced(function, *given)
    moved = move_weight_scales(gm)
    assert not is_product_of_packed(gm)
    assert is_product_of_packed(moved)
    (found,), (eager,) = moved(*given), gm(*given)
    assert found.dtype is eager.dtype
    exact = function(*(t.double() for t in given))
    error, allowed = ((each.double() - exact).norm() for each in (found, eager))
    assert error <= 2 * allowed + 1e-5 * exact.norm()


def along_the_sum(x, w, s):
    return F.linear(x, w.to(x.dtype) * s)


def by_groups(x, w, s):
    return F.linear(x, (w.to(x.dtype).view(N, 4, -1) * s[..., None]).view(N, K))


STAYS = {
    "along the sum": (along_the_sum, 1, torch.float32, weights(), torch.rand(K)),
    "by groups": (by_groups, 1, torch.float32, weights(), torch.rand(N, 4)),
    "many rows": (layer, MOST_ROWS + 1, torch.float32, weights(), torch.rand(N)),
    "float16 might overflow": (layer, 1, torch.float16, weights(), torch.rand(N).half()),
    "weights that are not packed": (layer, 1, torch.float32, torch.randn(N, K), torch.rand(N)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_before_the_product(name) -> None:
    function, rows, dtype, w, s = STAYS[name]
    gm = traced(function, torch.randn(rows, K, dtype=dtype), w, s)
    assert move_weight_scales(gm) is gm


def test_with_the_numerics_of_eager_nothing_moves() -> None:
    function, w, s = SAME["layer"]
    gm = traced(function, torch.randn(1, K), w, s)
    assert not is_product_of_packed(rewritten(gm, "inference", "eager"))
    assert is_product_of_packed(rewritten(gm, "inference", "fast"))


class Projections(torch.nn.Module):
    """Queries, keys and values of one row, their heads apart."""

    def __init__(self) -> None:
        super().__init__()
        self.all = torch.nn.ModuleList(Linear8(K, n, torch.int8) for n in (N, 16, 16))
        for each in self.all:
            each.fill()

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x).view(1, 1, -1, 8).transpose(1, 2).exp() for layer in self.all]


@pytest.mark.dynamo
@torch.no_grad()
def test_products_of_one_row_are_stacked_with_their_scales() -> None:
    """One kernel reads all weights, and scales what it sums."""
    torch.manual_seed(0)
    model = Projections().to(torch.bfloat16)
    for each in model.all:
        each.weight = each.weight.to(torch.int8)
    x = torch.randn(1, K, dtype=torch.bfloat16)
    (part,) = capture_model(model, CallArguments((x,))).parts
    graph = part.captured.graph
    products = [n for n in graph.nodes if n.op == "aten.mm.default"]
    assert [n.type.shape for n in products] == [(1, N + 32)]
    (streams,) = (g for g in modelled_plan(graph, H100).groups if products[0].id in g.nodes)
    scaled = [n for n in graph.users(products[0].id) if is_compute(graph.nodes[n])]
    assert len(scaled) == 1
    assert set(scaled) <= set(streams.nodes)
