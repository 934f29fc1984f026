"""What is captured: which operations are left, and when two graphs are the same."""

import json

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.errors import PlanError
from fusionplan.planner.graph import graph as graphs
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("fresh_dynamo")]

X = torch.randn(4, 8, 16)
IMAGE = torch.randn(2, 8, 6, 6)
WEIGHT = torch.randn(16)

# Function and the only operations that it may leave behind, besides arithmetic and views.
OPENED = {
    "softmax": (lambda x: F.softmax(x, -1), X),
    "softmax_bf16": (lambda x: F.softmax(x, -1), X.bfloat16()),
    "log_softmax": (lambda x: F.log_softmax(x, -1), X),
    "layer_norm": (lambda x: F.layer_norm(x, (16,), WEIGHT, WEIGHT), X),
    "layer_norm_bf16": (lambda x: F.layer_norm(x, (16,)), X.bfloat16()),
    "rms_norm": (lambda x: F.rms_norm(x, (16,), WEIGHT), X),
    "group_norm": (lambda x: F.group_norm(x, 2), IMAGE),
    "group_norm_affine": (lambda x: F.group_norm(x, 4, WEIGHT[:8], WEIGHT[8:]), IMAGE),
    "group_norm_channels_last": (
        lambda x: F.group_norm(x, 2),
        IMAGE.to(memory_format=torch.channels_last),
    ),
    "group_norm_f16": (lambda x: F.group_norm(x, 2), IMAGE.half()),
    "instance_norm": (F.instance_norm, IMAGE),
    "batch_norm_train": (lambda x: F.batch_norm(x, None, None, training=True), IMAGE),
    "batch_norm_eval": (
        lambda x: F.batch_norm(x, WEIGHT[:8], WEIGHT[:8].abs(), training=False),
        IMAGE,
    ),
    "var": (lambda x: x.var(-1), X),
    "var_all": (lambda x: x.var(), X),
    "var_correction": (lambda x: x.var((0, 2), correction=3, keepdim=True), X),
    "std_bf16": (lambda x: x.std(-1), X.bfloat16()),
    "var_mean": (lambda x: torch.var_mean(x, (0, 1)), X),
    "mean": (lambda x: x.mean(-1), X),
    "mean_all": (lambda x: x.mean(), X),
    "mean_bf16": (lambda x: x.mean((0, 1), keepdim=True), X.bfloat16()),
    "mean_dtype": (lambda x: x.mean(-1, dtype=torch.float64), X),
    "gelu": (F.gelu, X),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "gelu_bf16": (F.gelu, X.bfloat16()),
    "silu": (F.silu, X),
    "mish": (F.mish, X),
    "softplus": (F.softplus, X),
    "hardswish": (F.hardswish, X),
    "leaky_relu": (F.leaky_relu, X),
    "elu": (F.elu, X),
    "glu": (F.glu, X),
    "cross_entropy": (lambda x: F.cross_entropy(x.view(32, 16), torch.arange(32) % 16), X),
    "clamp": (lambda x: x.clamp(-1, 1), X),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), X),
    "chunk": (lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], X),
    "split": (lambda x: x.split([4, 12], -1)[1] + 1, X),
    "unbind": (lambda x: sum(x.unbind(1)), X),
    "stack": (lambda x: torch.stack([x, -x], 1), X),
    "flatten": (lambda x: x.flatten(1) * 2, X),
    "pad": (lambda x: F.pad(x, (1, 2)), X),
    "rotate_half": (lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1), X),
    "roll": (lambda x: x.roll((3, -1), (2, 1)), X),
    "roll_flat": (lambda x: x.roll(5), X),
    "repeat": (lambda x: x.repeat(2, 1, 3), X),
    "lerp": (lambda x: torch.lerp(x, x * 2, 0.3), X),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=0.5), X),
    "normalize": (lambda x: F.normalize(x, dim=-1), X),
    "logsumexp": (lambda x: x.logsumexp(-1), X),
    "max_values": (lambda x: x.max(-1).values, X),
    "min_values": (lambda x: x.min(1, keepdim=True).values, X),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x * 2), X),
}
PLAIN = """
    abs add alias amax amin any arange bitwise_and bitwise_not cat clamp clone constant_pad_nd
    cos div eq erf exp expand expm1 fmod full full_like gather ge gt le log log1p logical_not lt
    mul ne neg permute pow reciprocal remainder rsqrt scalar_tensor select sigmoid sin slice
    sqrt squeeze sub sum tanh unsqueeze view where _to_copy
"""


@pytest.mark.parametrize("name", OPENED)
def test_composites_are_opened_and_compute_the_same(captured, name):
    function, value = OPENED[name]
    found = captured(function, value)
    left = {n.op.split(".")[1] for n in found.graph.nodes if n.op.startswith("aten.")} - {
        *PLAIN.split()
    }
    assert not left
    others = {n.op for n in found.graph.nodes if not n.op.startswith("aten.")}
    # A rounding that a decomposition makes is no cast of the user's.
    assert others <= {"input", "constant", "prims.convert_element_type.default"}
    got = found.gm(*_inputs(found, value))
    want = function(value)
    want = want if isinstance(want, tuple) else (want,)
    for a, b in zip(got, want, strict=True):
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(b.dtype, 1e-5)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def _inputs(found, value):
    """The tensors that the graph takes: `value`, and those that the function closes over."""
    known = [value, WEIGHT, WEIGHT[:8], WEIGHT[8:], WEIGHT[:8].abs()]
    for i in found.graph.inputs:
        shape = found.graph.nodes[i].type.shape
        yield next(k for k in known if tuple(k.shape) == shape)


@pytest.mark.parametrize(
    "function, whole",
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), "flash_attention"),
        (lambda x: x @ x.transpose(1, 2), "aten.bmm"),
        (lambda x: x @ torch.ones(16, 3), "aten.mm"),
        (lambda x: F.linear(x, torch.ones(4, 16), torch.ones(4)), "aten.addmm"),
        (lambda x: F.conv1d(x, torch.ones(2, 8, 3)), "aten.convolution"),
        (lambda x: F.embedding(torch.arange(3), x[0]), "aten.embedding"),
        (lambda x: x.sort(-1).values, "aten.sort"),
        (lambda x: x.digamma(), "aten.digamma"),
    ],
)
def test_what_a_vendor_does_in_one_call_stays_whole(captured, function, whole):
    found = captured(function, X if "attention" not in whole else X[None])
    assert any(whole in n.op for n in found.graph.nodes)


def test_the_text_of_a_graph(captured):
    found = captured(lambda x: (x.bfloat16().mean(-1), None), torch.randn(4, 8))
    assert str(found.graph) == (
        "%0 = input() : float32[4, 8]\n"
        "%1 = aten._to_copy.default(%0, dtype=bfloat16) : bfloat16[4, 8]\n"
        "%2 = aten.sum.dim_IntList(%1, (1), dtype=float32) : float32[4]\n"
        "%3 = aten.div.Tensor(%2, 8) : float32[4]\n"
        "%4 = prims.convert_element_type.default(%3, bfloat16) : bfloat16[4]\n"
        "return %4"
    )
    assert [n.name for n in found.graph.nodes] == [n.name for n in found.fx_nodes]


def test_variance_of_data_far_from_zero(captured):
    x = torch.randn(64, 512) + 1e4
    found = captured(lambda x: x.var(-1), x)
    torch.testing.assert_close(found.gm(x)[0], x.double().var(-1).float(), rtol=1e-3, atol=0)


def test_the_same_work_has_the_same_key(captured):
    first = captured(lambda x: (x + 1).relu(), X)
    torch._dynamo.reset()
    second = captured(lambda other: torch.relu(torch.add(other, 1)), torch.randn(4, 8, 16))
    assert graphs.key(first.graph) == graphs.key(second.graph)


@pytest.mark.parametrize(
    "other", [torch.randn(4, 8, 17), X.double(), X.transpose(0, 1).contiguous().transpose(0, 1)]
)
def test_shape_dtype_and_stride_are_in_the_key(captured, other):
    def function(x):
        return (x + 1).relu()

    first = captured(function, X)
    torch._dynamo.reset()
    assert graphs.key(first.graph) != graphs.key(captured(function, other).graph)


def test_a_graph_goes_to_json_and_back(captured):
    found = captured(lambda x: x.masked_fill(x > 0, float("-inf")).to(torch.int8), X).graph
    assert graphs.from_json(json.loads(json.dumps(graphs.to_json(found)))) == found


def test_duplicates_merge_but_random_numbers_do_not(captured):
    def function(x):
        return (x + 1).sin() * (x + 1).sin(), torch.rand_like(x).sum() - torch.rand_like(x).sum()

    ops = [n.op for n in captured(function, X).graph.nodes]
    assert ops.count("aten.add.Tensor") == ops.count("aten.sin.default") == 1
    assert ops.count("aten.rand_like.default") + ops.count("aten.rand.default") == 2


def test_numbers_that_are_equal_but_not_the_same_make_no_duplicates(captured):
    def function(x):
        return torch.copysign(x, 0.0) + torch.copysign(x, -0.0), x.int() + 1, x.int() + 1.0

    found = captured(function, X)
    assert [n.op for n in found.graph.nodes].count("aten.copysign.Scalar") == 2
    assert all(map(torch.equal, found.gm(X), function(X)))


def test_equal_outputs_stay_two_tensors(captured):
    found = captured(lambda x: (x * 2, x * 2), X)
    a, b = found.gm(X)
    assert a.data_ptr() != b.data_ptr()


def test_an_operation_of_several_results_is_kept_whole(captured):
    found = captured(lambda x: x.median(-1), X)
    assert any(n.op == "aten.median.dim" and n.type is None for n in found.graph.nodes)


def test_indices_of_a_maximum_are_opened(captured):
    found = captured(lambda x: x.max(-1), X)
    assert all(n.type is not None for n in found.graph.nodes)


def test_an_alias_that_is_handed_out_is_another_tensor():
    found = capture(make_fx(lambda x: (x.detach(), x * 2), tracing_mode="fake")(X))
    assert found.gm(X)[0] is not X


def test_numbers_that_are_negated_as_they_are_read_are_no_plain_tensor(captured):
    x = torch.complex(X, X).conj().imag
    assert x.is_neg()
    found = captured(lambda x: x * 2, x)
    assert found.graph.nodes[0].type is None
    assert captured(lambda x: x * 2, X).graph.nodes[0].type is not None


def test_aliases_are_seen_through(captures):
    x = X.clone().requires_grad_()
    forward, backward = captures(lambda x: x.softmax(-1).sum(), x, backward=True)
    assert not any(n.op == "aten.alias.default" for n in backward.graph.nodes)
    # One that is handed out stays, but nothing else reads through it.
    aliases = [n.id for n in forward.graph.nodes if n.op == "aten.alias.default"]
    assert all(not forward.graph.users(i) and i in forward.graph.outputs for i in aliases)


@pytest.mark.parametrize("backward", [False, True])
def test_a_dynamic_graph_specialises_to_the_static_one(captures, backward):
    linear = nn.Linear(16, 4)

    def function(x):
        return linear(x).relu().softmax(-1) * x.shape[0]

    static = captures(function, X, backward=backward)
    torch._dynamo.reset()
    dynamic = captures(function, X, dynamic=True, backward=backward)
    assert len(static) == len(dynamic) == 1 + backward
    # A backward graph also returns None for each size, so only the forward graphs are the same.
    assert graphs.key(static[0].graph) == graphs.key(dynamic[0].graph)


def test_symbolic_sizes_are_refused():
    gm = torch.fx.symbolic_trace(lambda x: x)
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    node = next(iter(gm.graph.nodes))
    node.meta["val"] = shape_env.create_unbacked_symint()
    with pytest.raises(PlanError, match="symbolic sizes"):
        capture(gm)


def test_sub_graphs_count_for_the_key(captured):
    def branch(function):
        return lambda x: torch.cond(x.sum() > 0, function, lambda a: a.cos(), (x,))

    first = captured(branch(lambda a: a.sin()), X)
    torch._dynamo.reset()
    second = captured(branch(lambda a: a.exp()), X)
    assert any(n.op == "higher_order.cond" for n in first.graph.nodes)
    assert graphs.key(first.graph) != graphs.key(second.graph)


def root_of(number):
    """The root of a size, as torch computes it where sizes vary: of tensors on the CPU."""
    size = torch.scalar_tensor(number, dtype=torch.float64)
    return torch.pow(size, torch.scalar_tensor(0.5, dtype=torch.float64)).float()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (16,)) + torch.arange(16, device=x.device),
        lambda x: x.masked_fill(x > 0, 0.0).softmax(-1),
        lambda x: x / root_of(17),
    ],
)
def test_cpu_and_cuda_give_the_same_graph(function):
    def on(device):
        with torch._subclasses.FakeTensorMode():
            x = torch.empty(4, 16, dtype=torch.bfloat16, device=device)
            traced = torch.fx.experimental.proxy_tensor.make_fx(
                lambda x: [function(x)], decomposition_table=decompositions()
            )(x)
        return capture(traced)

    assert on("cuda").device.type == "cuda"
    assert graphs.key(on("cpu").graph) == graphs.key(on("cuda").graph)


@pytest.mark.parametrize("is_output", [False, True])
def test_what_numbers_give_is_made_where_it_is_read(is_output):
    def function(x):
        root = root_of(17)
        return [x / root, root] if is_output else [x / root]

    with torch._subclasses.FakeTensorMode():
        x = torch.empty(4, 16, device="cuda")
        found = capture(torch.fx.experimental.proxy_tensor.make_fx(function)(x))
    assert found.device.type == "cuda"
    made = [n for n in found.fx_nodes if n.target is torch.ops.aten.scalar_tensor.default]
    assert len(made) == 2
    devices = {torch.device(n.kwargs.get("device") or "cpu").type for n in made}
    assert devices == {"cpu" if is_output else "cuda"}
    types = [n.type for n in found.graph.nodes]
    assert (None in types) == is_output


def test_a_number_held_as_a_tensor_is_a_number(captured):
    def function(x):
        return torch.where(x > 0, x, torch.tensor(2.5)) + torch.tensor(3)

    found = captured(function, X)
    ops = {node.op for node in found.graph.nodes}
    assert not ops & {"aten.lift_fresh_copy.default", "constant"}
    numbers = [n.args[0] for n in found.graph.nodes if "scalar_tensor" in n.op]
    assert sorted(numbers) == [2.5, 3]
    torch.testing.assert_close(found.gm(X)[0], function(X))


def test_a_tensor_of_several_numbers_stays_a_constant(captured):
    found = captured(lambda x: x * torch.tensor([1.0, 2.0])[0], X)
    assert any(node.op == "constant" for node in found.graph.nodes)


def test_a_tensor_elsewhere_has_no_type():
    with torch._subclasses.FakeTensorMode():
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x, y: [x + y, x * 2, x * 3])(
            torch.empty(4, device="cuda"), torch.empty(())
        )
    found = capture(traced)
    assert found.graph.nodes[0].type is not None
    assert found.graph.nodes[1].type is None


def test_complex_and_conjugate(captured):
    found = captured(lambda x: torch.view_as_real(torch.view_as_complex(x).conj() * 2), X[..., :2])
    types = {n.type.dtype for n in found.graph.nodes if n.type is not None}
    assert types <= {"float32", "complex64"}
