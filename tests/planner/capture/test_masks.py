"""Masks that follow from positions: what is known of them, and what attention makes of that."""

import math

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.decompositions.decompose import decompositions
from fusionplan.planner.capture.masks.derived_values import known
from fusionplan.planner.capture.masks.masks import Band, band
from fusionplan.planner.capture.masks.positions import Cases, PositionForm
from fusionplan.planner.capture.masks.simplify_masks import simplify_masks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
LOWEST = torch.finfo(torch.bfloat16).min
L = 6


def traced(function, *inputs):
    """The ATen graph of a function, as a compiler is given it, with fake values."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        return make_fx(function, decomposition_table=decompositions())(*fakes)


def dense(value, shape, dtype):
    """All elements of a known value."""
    index = torch.ones(shape).nonzero().T.reshape(len(shape), *shape)

    def of(form):
        steps = (0,) * (len(shape) - len(form.steps)) + form.steps
        total = torch.full(shape, form.constant)
        return total + sum((s * i for s, i in zip(steps, index, strict=True)), torch.tensor(0))

    if isinstance(value, PositionForm):
        return of(value).to(dtype)
    outcome = sum((of(a) >= 0).long() << k for k, a in enumerate(value.atoms))
    return torch.tensor(value.values, dtype=dtype)[torch.as_tensor(outcome).expand(shape)]


def q_and_k():
    return torch.arange(L)[:, None], torch.arange(L)[None, :]


def packed():
    """Sequences told apart by positions that do not go on by one; here they always do."""
    positions = torch.arange(L)[None].expand(2, -1)
    first = positions[:, :1] - 1
    sequence = (torch.diff(positions, prepend=first, dim=-1) != 1).cumsum(-1)
    batch = torch.arange(2)[:, None, None, None]
    q, k = torch.arange(L)[None, None, :, None], torch.arange(L)[None, None, None, :]
    return (sequence[batch, q] == sequence[batch, k]) & (positions[batch, k] <= positions[batch, q])


def inverted():
    """All ones as a mask to be added, as it is made of one that may hold zeros."""
    mask = 1.0 - torch.ones(2, L)[:, None, None, :].expand(2, 1, L, L).to(torch.bfloat16)
    return mask.masked_fill(mask.to(torch.bool), LOWEST)


def scaled_down():
    return (1.0 - torch.ones(2, L, dtype=torch.int64)[:, None, None, :].half()) * -65504.0


MASKS = {
    "tril": lambda: torch.ones(L, L, dtype=torch.bool).tril(),
    "triu of -inf": lambda: torch.full((L, L), -math.inf).triu(1),
    "not greater": lambda: ~(q_and_k()[1] > q_and_k()[0]),
    "masked fill": lambda: torch.zeros(L, L).masked_fill(q_and_k()[1] > q_and_k()[0], -math.inf),
    "by where": lambda: torch.where(q_and_k()[0] >= q_and_k()[1], 0.0, LOWEST).bfloat16(),
    "padded": lambda: F.pad(torch.ones(L, L, dtype=torch.bool).tril(), (0, 3))[:, :L],
    "packed": packed,
    "inverted": inverted,
    "scaled down": scaled_down,
    "window": lambda: (q_and_k()[1] <= q_and_k()[0]) & (q_and_k()[1] > q_and_k()[0] - 3),
    "steps of two": lambda: (q_and_k()[0] - q_and_k()[1]).neg() * 2 <= 4,
    "block of keys": lambda: torch.arange(L) < 4,
    "one key": lambda: torch.arange(L) == 2,
    "not one key": lambda: torch.arange(L) != 2,
    "either": lambda: (q_and_k()[1] > q_and_k()[0]) | (q_and_k()[0] == 0),
    "flipped twice": lambda: torch.logical_not(q_and_k()[1] - 1 >= q_and_k()[0]).T.T,
    "joined counts": lambda: torch.cat([torch.arange(3), 3 + torch.arange(L - 3)]),
    "joined others": lambda: torch.cat([torch.arange(3), torch.arange(L - 3)]),
    "viewed": lambda: (torch.arange(12).view(2, 6) * 3)[:, 1:5:2].flatten() - 4,
    "halves": lambda: torch.arange(L) // 2,
    "as float": lambda: torch.arange(L).float() * 0.5,
    "alibi": lambda: (q_and_k()[1] - q_and_k()[0]) * torch.full((2, 1, 1), 0.5),
    "nan": lambda: torch.where(torch.arange(L) > 2, math.nan, -0.0),
    "clamped": lambda: torch.ones(L).cumsum(0).clamp(max=1),
    "counted ones": lambda: torch.ones(2, L, dtype=torch.int64).cumsum(1) - 1,
    "large": lambda: torch.arange(2**31 - 4, 2**31 + 2, dtype=torch.int64).int() > 0,
    "many": lambda: sum((torch.arange(L) > n).int() for n in range(5)),
}
UNKNOWN = {"joined others", "viewed", "halves", "as float", "alibi", "clamped", "large"}
"""Of which nothing is said: they are no form, or a float that varies."""


@pytest.mark.parametrize("name", MASKS)
def test_what_is_known_is_what_the_operations_compute(name):
    gm = traced(lambda x: (MASKS[name](), x), torch.zeros(1))
    (end, _) = gm.graph.output_node().args[0]
    found = known(gm.graph)
    assert (end in found) == (name not in UNKNOWN)
    run = torch.fx.Interpreter(gm, garbage_collect_values=False)
    run.run(torch.zeros(1))
    assert found
    for node, value in found.items():
        held = run.env[node]
        said = dense(value, held.shape, held.dtype)
        torch.testing.assert_close(said, held, rtol=0, atol=0, equal_nan=True)


BANDS = {
    "tril": Band(None, 0),
    "triu of -inf": Band(None, 0),
    "not greater": Band(None, 0),
    "masked fill": Band(None, 0),
    "by where": Band(None, 0),
    "padded": Band(None, 0),
    "packed": Band(None, 0),
    "inverted": Band(),
    "scaled down": Band(),
    "window": Band(2, 0),
    "steps of two": Band(None, 2),
    "flipped twice": Band(None, 0),
    "block of keys": None,
    "either": None,
    "alibi": None,
    "nan": None,
}


@pytest.mark.parametrize("name", BANDS)
def test_bands(name):
    gm = traced(lambda x: (MASKS[name](), x), torch.zeros(1))
    (end, _) = gm.graph.output_node().args[0]
    found = known(gm.graph).get(end)
    assert (None if found is None else band(found, end.meta["val"].dtype)) == BANDS[name]


def test_a_band_leaves_every_query_a_key_or_is_none():
    assert Band(None, 0).is_seen_by_all(4, 4)
    assert not Band(None, -1).is_seen_by_all(4, 4)  # the first query sees nothing
    assert not Band(1, None).is_seen_by_all(8, 4)  # the last sees keys from 6 on
    assert not Band(0, -1).is_seen_by_all(4, 4)
    assert Band(2, 0).is_seen_by_all(4, 9)


def test_numbers_that_keep_no_score_whole_are_no_mask():
    for number in (-1e4, 1.0, math.inf, -3.0):
        assert band(Cases((PositionForm(0, (1, -1)),), (number, 0.0)), torch.float32) is None
    assert band(Cases((PositionForm(0, (1, -1)),), (-math.inf, 0.0)), torch.float32) == Band(
        None, 0
    )
    assert band(Cases((), (1,)), torch.int64) is None


# --- attention ---


def operands(queries=L, keys=L, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 2, n, 8, dtype=dtype) for n in (queries, keys, keys)]


def attended(mask):
    return lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, attn_mask=mask(), scale=0.3),)


def calls(gm, target=FLASH):
    return [n for n in gm.graph.nodes if n.target is target]


def mask_of(node):
    return node.kwargs.get("attn_mask")


@pytest.mark.parametrize("name", [n for n, b in BANDS.items() if b in (Band(), Band(None, 0))])
def test_attention_loses_a_mask_that_says_nothing_else(name):
    dtype = MASKS[name]().dtype if MASKS[name]().dtype.is_floating_point else torch.float32
    given = operands(dtype=dtype)
    gm = traced(attended(MASKS[name]), *given)
    assert mask_of(*calls(gm)) is not None
    found = simplify_masks(gm)
    (call,) = calls(found)
    assert mask_of(call) is None
    assert list(call.args[3:5]) == ([0.0, True] if BANDS[name].after == 0 else list(call.args[3:5]))
    assert not [n for n in found.graph.nodes if n.target is aten.where.self]
    assert mask_of(*calls(gm)) is not None  # what was given stays
    torch.testing.assert_close(found(*given), gm(*given))


REFUSED = {
    "a window, on a CPU": (MASKS["window"], L, L),
    "keys left out for all": (lambda: torch.arange(L).expand(L, L) < 4, L, L),
    "no key for the first query": (lambda: q_and_k()[1] < q_and_k()[0], L, L),
    "not quite -inf": (lambda: torch.where(q_and_k()[0] >= q_and_k()[1], 0.0, -1e4), L, L),
    "fewer queries": (lambda: torch.arange(3)[:, None] >= torch.arange(L), 3, L),
    "added numbers": (lambda: torch.full((L, L), 1.0).tril(), L, L),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_keeps_any_other_mask(name):
    mask, queries, keys = REFUSED[name]
    given = operands(queries, keys)
    gm = traced(attended(mask), *given)
    found = simplify_masks(gm)
    assert mask_of(*calls(found)) is not None
    torch.testing.assert_close(found(*given), gm(*given))


def test_a_mask_that_is_an_input_is_no_constant():
    given = [*operands(), torch.ones(2, L, dtype=torch.bool)]

    def function(q, k, v, kept):
        causal = torch.ones(L, L, dtype=torch.bool).tril()
        mask = torch.ones((), dtype=torch.bool) & kept[:, None, None, :] & causal
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)

    gm = traced(function, *given)
    found = simplify_masks(gm)
    assert mask_of(*calls(found)) is not None
    given[3][:, -2:] = False
    torch.testing.assert_close(found(*given), gm(*given))
    ands = (aten.logical_and.default, aten.bitwise_and.Tensor)
    assert sum(n.target in ands for n in found.graph.nodes) == 1  # not with what is True


def test_gradients_of_attention_without_its_mask():
    given = [x.requires_grad_() for x in operands()]

    def step(q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=MASKS["masked fill"]())
        return (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))

    gm = traced(step, *given)
    found = simplify_masks(gm)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert len(calls(found)) == len(calls(found, backward)) == 1
    assert mask_of(*calls(found)) is None
    assert mask_of(*calls(found, backward)) is None
    torch.testing.assert_close(found(*given), step(*given))


def on_a_gpu(target, bias, *more):
    """The graph of one of a GPU's own calls of attention with a mask, as fake tensors have it."""
    with FakeTensorMode() as mode:
        q = torch.empty(2, L, 4, 64, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        with mode:
            return make_fx(lambda x: (target(x, x, x, bias(), *more)[0],))(q)


def device_mask(compare):
    def make():
        positions = torch.arange(L, device="cuda")
        kept = compare(positions.unsqueeze(1), positions.unsqueeze(0))
        return torch.where(kept, 0.0, -math.inf).bfloat16().expand(2, 4, L, L)

    return make


EFFICIENT = aten._scaled_dot_product_efficient_attention.default


def test_a_gpus_attention_loses_its_mask():
    for compare, causal in ((lambda q, k: q >= k, True), (lambda q, k: q - k < L, False)):
        found = simplify_masks(on_a_gpu(EFFICIENT, device_mask(compare), False))
        attention = [n for n in found.graph.nodes if "attention" in str(n.target)]
        assert len(attention) == 1
        # Without a GPU torch cannot choose anew, and the call is the same without its mask.
        assert not attention[0].all_input_nodes[1:]
        assert causal in (attention[0].args[4:7] if causal else [False])


CUDNN = aten._scaled_dot_product_cudnn_attention.default


def by_cudnn(q, k, v, attn_mask=None, is_causal=False, scale=None):
    """What torch makes of attention on a GPU that has cuDNN's."""
    return CUDNN(q, k, v, attn_mask, False, 0.0, is_causal, False, scale=scale)[0]


def test_a_gpus_attention_is_chosen_anew_without_its_mask(monkeypatch):
    gm = on_a_gpu(CUDNN, device_mask(lambda q, k: q >= k), False)
    monkeypatch.setattr(F, "scaled_dot_product_attention", by_cudnn)
    found = simplify_masks(gm)
    (call,) = calls(found, CUDNN)
    assert len(call.all_input_nodes) == 1
    assert call.args[3:7] == (None, False, 0.0, True)
    assert not [n for n in found.graph.nodes if n.target is aten.where.self]


def test_a_gpus_attention_with_a_window_is_flash_attention():
    gm = on_a_gpu(EFFICIENT, device_mask(lambda q, k: (k <= q) & (k > q - 3)), False)
    found = simplify_masks(gm)
    (call,) = calls(found, aten._flash_attention_forward.default)
    assert (call.kwargs["window_size_left"], call.kwargs["window_size_right"]) == (2, 0)
    assert not calls(found, EFFICIENT)
    assert not [n for n in found.graph.nodes if n.target is aten.where.self]
    before, after = (g.graph.output_node().args[0][0].meta["val"] for g in (gm, found))
    assert (before.shape, before.stride()) == (after.shape, after.stride())


# --- what else reads a mask ---


def test_scores_are_masked_by_one_comparison():
    given = [torch.randn(2, 1, L, L)]

    def function(scores):
        return (scores + torch.where(packed(), 0.0, -math.inf)).softmax(-1)

    gm = traced(lambda x: (function(x),), *given)
    found = simplify_masks(gm)
    targets = [n.target for n in found.graph.nodes]
    assert aten.cumsum.default not in targets
    assert aten.index.Tensor not in targets
    assert targets.count(aten.ge.Tensor) == 1
    torch.testing.assert_close(found(*given), gm(*given))


def test_a_choice_that_is_made_is_no_choice():
    given = [torch.randn(3, 1), torch.randn(4)]

    def function(x, y):
        kept = torch.arange(4) >= 0
        return torch.where(kept, x, y).exp(), torch.where(~kept, x, y) * 2

    gm = traced(function, *given)
    found = simplify_masks(gm)
    assert aten.where.self not in [n.target for n in found.graph.nodes]
    torch.testing.assert_close(found(*given), gm(*given))


def test_integers_joined_with_true_keep_their_other_bits():
    given = [torch.tensor([2, 3])]
    gm = traced(lambda x: (x & torch.ones(2, dtype=torch.bool),), *given)
    torch.testing.assert_close(simplify_masks(gm)(*given), gm(*given))


def test_a_graph_without_such_masks_is_left_alone():
    gm = traced(lambda x: (torch.where(torch.arange(4) > 1, x, 0.0),), torch.randn(4))
    assert simplify_masks(gm) is gm
