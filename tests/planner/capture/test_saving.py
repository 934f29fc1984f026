"""Which values a training step's forward graph saves: large intermediates are not among them."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from fusionplan.api import executors
from fusionplan.backend import planner
from fusionplan.planner.capture import saving
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.graph.graph import key
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.dispatch.dispatch import Dispatcher
from fusionplan.planner.runtime.dispatch.plan_runners import Policy, Sources
from fusionplan.tuner.capture.capture_model import capture_model
from oracle import DEVICE
from torch import nn
from torch._functorch.partitioners import default_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from training_steps import (
    CLASSES,
    ROWS,
    STEPS,
    WIDTH,
    B,
    Bert,
    D,
    H,
    S,
    accurate,
    attention,
    close,
    dropped,
    gradients,
    heads,
    mlp_inputs,
    needs_grad,
    rows,
    soft_capped,
    step,
    wide_mlp,
)

pytestmark = pytest.mark.usefixtures("few_looks", "fresh_dynamo")

aten = torch.ops.aten


def opaque(captured):
    """Everything by ATen, but through our executor, which keeps AOTAutograd's graphs."""
    work = [n.id for n in captured.graph.nodes if n.op != "input" and n.type is not None]
    group = GroupPlan(tuple(work[:1]), "inductor", "")
    return Plan(key(captured.graph), DEVICE, (), "measured", (group,))


@pytest.fixture
def no_floor(monkeypatch):
    monkeypatch.setattr(saving, "FLOOR_BYTES", 0)


@pytest.mark.dynamo
@pytest.mark.parametrize("name", STEPS)
def test_large_intermediates_are_not_saved(name):
    make, inputs, large = STEPS[name]
    function, inputs = make(), inputs()
    ours, usual = step(function, inputs), step(function, inputs, default_partition)
    close(ours.results, gradients(function, inputs))
    assert ours.bytes <= usual.bytes
    if large is not None:
        assert usual.widest() >= large
        assert ours.widest() < large
        assert ours.contractions() == usual.contractions() + 1


@pytest.mark.dynamo
@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_by_the_back_end_equals_eager(name, no_floor):
    make, inputs, large = STEPS[name]
    function, inputs = make(), inputs()
    graphs = []

    def find(captured):
        graphs.append(captured.graph)
        return opaque(captured)

    dispatcher = Dispatcher(Policy(), Sources(find))
    fast = torch.compile(function, backend=dispatcher)
    close(gradients(fast, inputs), gradients(function, inputs))
    assert {stage for _, stage in dispatcher.live} == {"forward", "backward"}
    assert all(live.runner.calls for live in dispatcher.live.values())
    stored = [graphs[0].nodes[o].type for o in graphs[0].outputs if o is not None]
    if large is not None:
        assert all(torch.Size(t.shape).numel() < large for t in stored if t is not None)


@pytest.mark.dynamo
def test_what_is_tuned_is_what_runs(no_floor):
    dispatcher = Dispatcher(Policy(), Sources(opaque))
    inputs = heads()
    gradients(torch.compile(attention, backend=dispatcher), inputs)
    torch._dynamo.reset()
    parts = capture_model(attention, inputs, training=True).parts
    assert {(part.key, part.stage) for part in parts} == set(dispatcher.live)


@pytest.mark.dynamo
def test_our_kernels_compute_the_same(no_floor, tmp_path):
    options = {"store": tmp_path / "plans.db", "on_miss": "model"}
    inputs = heads(length=32)
    fast = torch.compile(attention, backend=planner, options=options)
    close(gradients(fast, inputs), gradients(attention, inputs))
    assert len(executors(fast)) == 2


@pytest.mark.dynamo
def test_statistics_are_saved():
    ours = step(attention, heads())
    assert sum(t.shape == (B, H, S, 1) for t in ours.saved) == 2
    assert ours.bytes == 2 * B * H * S * 4


@pytest.mark.dynamo
def test_scores_in_float32_of_16_bit_operands():
    def function(q, k, v):
        return (q @ k.mT).float().softmax(-1).to(q.dtype) @ v

    inputs = heads(dtype=torch.bfloat16)
    ours = step(function, inputs)
    # Two statistics of a row, and the result in float32 for the gradient of the softmax.
    assert ours.bytes == (2 + D) * B * H * S * 4
    accurate(ours.results, function, inputs)


@pytest.mark.dynamo
def test_max_with_its_indices_streams():
    def function(x, y):
        return torch.relu(x @ y.T).max(-1)[0]

    inputs = needs_grad(ROWS, WIDTH), needs_grad(CLASSES, WIDTH)
    ours, usual = step(function, inputs), step(function, inputs, default_partition)
    assert ours.widest() == ROWS  # the indices, from the forward pass
    assert ours.contractions() == usual.contractions() + 1
    close(ours.results, gradients(function, inputs))


@pytest.mark.dynamo
@pytest.mark.parametrize("part", [None, default_partition], ids=["ours", "default"])
def test_dropout_is_the_same_in_both_passes(part):
    # The result is linear in v: y.g = v.grad, if and only if the mask is the same.
    q, k, v = heads()
    ours = step(dropped, [q, k, v], part)
    torch.manual_seed(1)
    left = (ours.results[0] * torch.randn(v.shape, device=DEVICE)).sum()
    close(left, (v * ours.results[3]).sum(), atol=1e-3)
    assert not torch.equal(ours.results[0], attention(q, k, v))


@pytest.mark.dynamo
def test_random_numbers_are_drawn_once_and_the_mask_is_saved():
    def function(q, k, v):
        p = (q @ k.mT).softmax(-1)
        return (p * (torch.rand_like(p) > 0.25)) @ v

    for step_ in (step(function, heads()), step(dropped, heads())):
        large = [t for t in step_.saved if t.numel() >= B * H * S * S]
        assert {t.dtype for t in large} <= {torch.bool}
        assert not any(is_random(n) for n in step_.backward.graph.nodes)
        assert any(is_random(n) for n in step_.forward.graph.nodes)


def is_random(node):
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


@pytest.mark.dynamo
def test_a_block_with_dropout_saves_no_scores():
    block, inputs = Bert().to(DEVICE).train(), (needs_grad(2, 256, 320),)
    ours, usual = step(block, inputs), step(block, inputs, default_partition)
    scores = [t for t in ours.saved if t.numel() >= 2 * 10 * 256 * 256]
    assert {t.dtype for t in scores} <= {torch.bool}
    assert ours.bytes < usual.bytes


@pytest.mark.dynamo
def test_the_second_layer_of_a_wide_mlp_needs_the_first_one_stored():
    inputs = mlp_inputs()
    ours, usual = step(wide_mlp, inputs), step(wide_mlp, inputs, default_partition)
    assert ours.contractions() == usual.contractions()
    assert ours.widest() == 64 * 1280


@pytest.mark.dynamo
def test_a_pointwise_chain_is_computed_again():
    make, inputs, _ = STEPS["norm"]
    ours = step(make(), inputs())
    assert ours.bytes == ROWS * 4  # one statistic a row


@pytest.mark.dynamo
def test_a_projection_is_no_fold_of_what_it_projects():
    """Short sequences: each of q, k and v is larger than what it comes from, and is stored."""

    def function(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 4, -1)).movedim(2, 0).transpose(2, 3)
        return (q @ k.mT).softmax(-1) @ v

    inputs = needs_grad(64, 32, 128), needs_grad(128, 384)
    ours, usual = step(function, inputs), step(function, inputs, default_partition)
    assert ours.contractions() == usual.contractions()
    close(ours.results, gradients(function, inputs), atol=1e-2)


@pytest.mark.dynamo
def test_shallow_products_are_computed_again_whatever_their_size():
    """Scores as large as the queries and keys, which their gradients read in any case."""
    inputs = heads(length=2 * D)
    ours = step(attention, inputs)
    assert ours.bytes == 2 * B * H * 2 * D * 4
    close(ours.results, gradients(attention, inputs))


@pytest.mark.dynamo
def test_a_cast_of_an_input_to_a_wider_type_is_no_second_copy():
    def function(q, k, v):
        return attention(q.float(), k.float(), v.float())

    inputs = heads(dtype=torch.bfloat16)
    assert step(function, inputs).bytes == 2 * B * H * S * 4
    assert step(function, inputs, default_partition).bytes > 3 * B * H * S * D * 4


@pytest.mark.dynamo
def test_repeated_keys_are_not_saved():
    def function(q, k, v):
        k, v = (torch.tanh(t).repeat_interleave(4, 1) for t in (k, v))
        return attention(q, k, v)

    inputs = needs_grad(B, 8, S, D), needs_grad(B, 2, S, D), needs_grad(B, 2, S, D)
    ours = step(function, inputs)
    assert ours.widest() <= B * 8 * S
    close(ours.results, gradients(function, inputs))


@pytest.mark.dynamo
def test_what_is_small_is_saved():
    ours = step(attention, heads(), saving.partition)
    assert ours.widest() == B * H * S * S


@pytest.mark.dynamo
def test_a_value_that_is_returned_is_saved():
    def function(h, weight, labels):
        logits = h @ weight.T
        return F.cross_entropy(logits, labels), logits

    ours, usual = step(function, rows()), step(function, rows(), default_partition)
    assert ours.contractions() == usual.contractions()


@pytest.mark.dynamo
def test_a_value_that_is_stored_for_an_opaque_operation_may_be_saved():
    def function(h, weight, labels):
        return F.cross_entropy((h @ weight.T).cummax(-1).values, labels)

    ours, usual = step(function, rows()), step(function, rows(), default_partition)
    assert ours.contractions() == usual.contractions()


@pytest.mark.dynamo
def test_parameters_count_for_nothing():
    """A few rows by a large weight: the product is smaller than the weight, which is there."""
    head, few = nn.Linear(WIDTH, CLASSES).to(DEVICE), (needs_grad(8, WIDTH),)

    def function(x):
        return head(x).logsumexp(-1)

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head

        def forward(self, x):
            return self.head(x).logsumexp(-1)

    assert step(Module(), few).widest() <= 8
    close(step(Module(), few).results[0], function(*few))


@pytest.mark.dynamo
def test_a_bias_of_the_size_of_the_scores_is_there_in_any_case():
    def function(q, k, v, bias):
        return (q @ k.mT + bias).softmax(-1) @ v

    inputs = [*heads(), needs_grad(B, H, S, S)]
    ours = step(function, inputs)
    assert ours.widest() == B * H * S  # a statistic
    close(ours.results, gradients(function, inputs))


@pytest.mark.dynamo
def test_symbolic_sizes():
    inputs = heads()
    ours = step(soft_capped, inputs, dynamic=True)
    assert any(isinstance(n, torch.SymInt) for t in ours.saved for n in t.shape)
    assert ours.bytes == 2 * B * H * S * 4
    close(ours.results, gradients(soft_capped, inputs))


@pytest.mark.dynamo
def test_checkpoints_of_the_user_stay():
    def function(x, up, down):
        return checkpoint(wide_mlp, x, up, down, use_reentrant=False).softmax(-1)

    inputs = mlp_inputs()
    ours, usual = step(function, inputs), step(function, inputs, default_partition)
    assert ours.contractions() == usual.contractions()
    assert 64 * 1280 not in [t.numel() for t in ours.saved]
    close(ours.results, gradients(function, inputs))


@pytest.mark.parametrize("shown", [torch.Tensor.float, torch.Tensor.abs, torch.clone])
@pytest.mark.parametrize("operations", [1, 2])
def test_what_is_compared_with_its_maximum_is_saved(shown, operations):
    """Computed again by another kernel it may have other last bits, and none equals the maximum;
    but for one operation on inputs, which has the same."""

    def joint(a, b, tangent):
        x = a + b if operations == 1 else a * 2 + b
        largest = shown(x).amax(0)
        return largest, tangent * (shown(x) == largest)

    a, b = torch.randn(2, 4, 6, dtype=torch.bfloat16)
    graph = make_fx(joint, tracing_mode="fake")(a, b, torch.randn(6)).graph
    *_, output = graph.nodes
    survey = saving._Survey(graph, [output.args[0][0]], [output.args[0][1]], set(), 0)
    survey.look()
    survey.mark()
    (total,) = (n for n in graph.nodes if n.target is aten.add.Tensor)
    is_saved = total.meta.get("recompute") is CheckpointPolicy.MUST_SAVE
    assert is_saved == (operations == 2)


def test_what_is_compared_through_a_view_is_saved():
    """torch's cut computes a view again whatever is asked; so what it shows is saved."""

    def joint(a, b, tangent):
        x = (a * 2 + b).view(2, 2, 6)
        largest = x.amax(0)
        return largest, tangent * (x == largest)

    a, b = torch.randn(2, 4, 6, dtype=torch.bfloat16)
    graph = make_fx(joint, tracing_mode="fake")(a, b, torch.randn(6)).graph
    *_, output = graph.nodes
    survey = saving._Survey(graph, [output.args[0][0]], [output.args[0][1]], set(), 0)
    survey.look()
    survey.mark()
    saved = [n.target for n in graph.nodes if "recompute" in n.meta]
    assert saved == [aten.add.Tensor]


@pytest.mark.dynamo
def test_a_failure_is_told_once_and_the_model_runs(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no flow network")

    monkeypatch.setattr(saving, "min_cut_rematerialization_partition", fail)
    saving._warn.cache_clear()
    inputs = heads()
    with pytest.warns(FusionplanWarning, match="no flow network"):
        ours = step(attention, inputs)
    close(ours.results, gradients(attention, inputs))
    assert ours.widest() == B * H * S * S
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        step(attention, inputs)
