"""Products of matrices in the nest: numerics of prologues, epilogues, reductions behind a product
and attention, in Triton's interpreter or on a GPU, and that no product is ever a buffer."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.ops import Contraction, row
from fusionplan.planner.lower import lower
from fusionplan.planner.space.space import Space, space_of
from oracle import DEVICE, captured, check, data, interpreted, space, whole_group

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("few_ranked")]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def variants(found: Space) -> list[Config]:
    """The model's best config of every layout; the first of them by descriptors, persistent, with
    and without stripes, its loops run as one and apart, where the space has such configs."""
    best: dict[tuple[str, str, int], Config] = {}
    for config, _ in found.seeds(600):
        best.setdefault((config.tiling, config.reduction, config.split), config)
    assert best, "no config of any layout"
    # One split stands for all.
    kept = [c for c in best.values() if c.split == 1]
    kept += [c for c in best.values() if c.split > 1][:2]
    more = [
        replace(config, **change)
        for config in kept[:3]
        for change in (
            {"access": "descriptor" if config.access == "pointer" else "pointer"},
            {"programs": 3 if config.reduction != "nested" else 0, "group": 1},
            {"flatten": not config.flatten and config.reduction == "nested"},
        )
    ]
    judged = [c for c in dict.fromkeys(more) if isinstance(found.judge(c), Cost)]
    return [*kept, *(c for c in judged if c not in kept)]


def verify(function, inputs) -> None:
    """Every variant agrees with eager, as one group, and never stores a product of matrices."""
    found = space(function, inputs)
    chosen = variants(found)
    assert check(function, inputs, chosen) >= len(chosen)
    products = [n for n in found.group.nodes if isinstance(row(n), Contraction)]
    assert products
    for config in chosen:
        program = lower(found.group, config, interpreted=interpreted())
        assert not isinstance(program, Refusal)
        largest = max((t.numel for t in program.temporaries), default=0)
        streamed = [n for n in products if n.id not in found.group.outputs]
        if config.split == 1:
            assert not program.temporaries
            assert len(program.kernels) == 1
        elif streamed and len(products) > 1:
            assert largest < max(n.type.numel for n in streamed)


PRODUCTS = {
    "mm": (lambda x, y: x @ y, (33, 40), (40, 50)),
    "transposed": (lambda x, y: x.t() @ y.t(), (40, 33), (50, 40)),
    "strided": (lambda x, y: x[::2, 3:] @ y[:, ::3], (40, 35), (32, 70)),
    "bmm": (lambda x, y: x @ y, (3, 20, 24), (3, 24, 17)),
    "broadcast": (torch.matmul, (2, 3, 20, 24), (24, 17)),
    "linear_3d": (F.linear, (2, 9, 24), (40, 24)),
    "einsum": (lambda x, y: torch.einsum("bsd,btd->bst", x, y).sin(), (2, 18, 24), (2, 33, 24)),
    "skinny": (lambda x, y: x @ y, (1, 130), (130, 40)),
    "tiny": (lambda x, y: x @ y, (1, 1), (1, 1)),
    "outer": (lambda x, y: x @ y, (40, 1), (1, 33)),
    "own_transpose": (lambda x, y: x @ x.t() + y[:33, :33], (33, 40), (40, 50)),
}


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: torch.dtype) -> None:
    function, left, right = PRODUCTS[name]
    verify(function, [data(*left, dtype=dtype), data(*right, dtype=dtype, seed=1)])


def test_a_bias_is_scaled_as_asked() -> None:
    x, y, b = data(20, 24), data(24, 33, seed=1), data(33, seed=2)
    verify(lambda x, y, b: torch.addmm(b, x, y, alpha=0.5, beta=2.0), [x, y, b])
    verify(lambda x, y, b: torch.addmm(b, x, y, beta=0.0), [x, y, b])
    x, y, b = data(2, 20, 24), data(2, 24, 33, seed=1), data(2, 20, 33, seed=2)
    verify(lambda x, y, b: torch.baddbmm(b, x, y, alpha=-1.5), [x, y, b])


AROUND = {
    "relu": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "gelu_tanh": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "residual": lambda x, w, b: F.linear(x, w, b).sigmoid() + b * 2,
    "prologue": lambda x, w, b: F.linear(F.relu(x) * 2, w.tanh(), b),
    "two_outputs": lambda x, w, b: (F.linear(x, w, b), F.linear(x, w, b).relu()),
    "gated": lambda x, w, b: F.silu(x @ w.t()) * (x @ (w * 0.5 + 1).t()) + b,
    "layer_norm_row": lambda x, w, b: F.layer_norm(F.linear(x, w) + b, (40,), b),
    "softmax_row": lambda x, w, b: torch.softmax(F.linear(x, w).float(), -1),
    "rms_norm_before": lambda x, w, b: F.linear(F.rms_norm(x, (24,)), w, b),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_before_and_behind_a_product(name: str) -> None:
    verify(AROUND[name], [data(35, 24), data(40, 24, seed=1), data(40, seed=2)])


def statistics_too(x, w, b):
    """Attention over rows, with an output that lacks the columns."""
    scores = (x @ w.t()).float() * 0.2
    return scores.softmax(-1).to(x.dtype) @ w, scores.logsumexp(-1)


IN_PARTS = {
    "gelu": (AROUND["gelu"], (70, 40), (100, 40)),
    "gated": (AROUND["gated"], (35, 24), (70, 24)),
    "two_outputs": (AROUND["two_outputs"], (35, 24), (70, 24)),
    "layer_norm_row": (
        lambda x, w, b: F.layer_norm(F.linear(x, w) + b, (64,), b),
        (35, 24),
        (64, 24),
    ),
    "statistics": (statistics_too, (70, 32), (40, 32)),
    "transposed": (lambda x, w, b: F.relu(F.linear(x, w, b)).t().contiguous(), (35, 24), (70, 24)),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_an_epilogue_in_parts(name: str) -> None:
    function, left, right = IN_PARTS[name]
    inputs = [data(*left), data(*right, seed=1), data(right[0], seed=2)]
    found = space(function, inputs)
    halved = (replace(config, subtiles=2) for config, _ in found.seeds(600))
    chosen = list(islice((c for c in halved if isinstance(found.judge(c), Cost)), 2))
    assert chosen
    others = ({"subtiles": 4}, {"access": "pointer"}, {"programs": 3, "group": 1})
    more = [replace(chosen[0], **other) for other in others if chosen[0].reduction != "nested"]
    chosen += [config for config in more if isinstance(found.judge(config), Cost)]
    assert check(function, inputs, chosen) == len(chosen)
    for config in chosen:
        program = lower(found.group, config)
        assert not isinstance(program, Refusal)
        assert f"_0of{config.subtiles}" in program.kernels[0].text


BEHIND = {
    "max_row": lambda x, y: (x @ y.t()).amax(-1),
    "max_column": lambda x, y: (x @ y.t()).amax(0),
    "min": lambda x, y: (x @ y.t()).amin(-1),
    "sum": lambda x, y: (x @ y.t()).float().sum(-1),
    "mean": lambda x, y: F.relu(x @ y.t()).float().mean(-1),
    "argmax": lambda x, y: (x.float() @ y.float().t()).argmax(-1),
    "logsumexp": lambda x, y: torch.logsumexp((x @ y.t()).float(), -1),
    "softmax_statistics": lambda x, y: ((x @ y.t()).float().softmax(-1) * 3).amax(-1),
    "cosine": lambda x, y: (x @ y.t() / (x.float().norm(dim=-1, keepdim=True) + 1)).amax(-1),
    "z_loss": lambda x, y: torch.logsumexp((x @ y.t()).float(), -1) ** 2,
    "gaussian": lambda x, y: torch.exp(-0.05 * (x @ y.t()).float().abs()) @ y.float(),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_reduction_behind_a_product(name: str) -> None:
    verify(BEHIND[name], [data(35, 24), data(70, 24, seed=1)])


@pytest.mark.parametrize("mask", [torch.bool, torch.int64, BF16], ids=str)
def test_the_head_of_splade(mask: torch.dtype) -> None:
    keep = (data(3, 37, seed=3) > 0).to(mask)
    inputs = [data(3, 37, 24), data(70, 24, seed=1), data(70, seed=2), keep]
    verify(
        lambda h, e, b, m: (torch.log1p(torch.relu(F.linear(h, e, b))) * m[:, :, None]).amax(1),
        inputs,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_linear_and_cross_entropy(smoothing: float) -> None:
    target = torch.arange(35, device=DEVICE) * 2
    target[3] = -100

    def loss(h: torch.Tensor, e: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = F.linear(h, e).float()
        return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)

    inputs = [data(35, 24), data(70, 24, seed=1), target]
    if smoothing:
        found = space_of(whole_group(captured(loss, inputs)[0].graph).graph, H200)
        assert isinstance(found, Space)  # a second pass: held whole only
    else:
        verify(loss, inputs)


def attention(change, q, k, v, **keywords):
    scores = change((q @ k.transpose(-1, -2)).float() * 0.3, **keywords)
    return torch.softmax(scores, -1).to(v.dtype) @ v


def positions(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = (torch.arange(n, device=scores.device) for n in scores.shape[-2:])
    return rows[:, None], columns[None, :]


def causal(scores: torch.Tensor) -> torch.Tensor:
    i, j = positions(scores)
    return torch.where(j > i, float("-inf"), scores)


def window(scores: torch.Tensor) -> torch.Tensor:
    i, j = positions(scores)
    return scores.masked_fill(~((j <= i) & (j > i - 7)), float("-inf"))


def soft_cap_alibi_causal(scores: torch.Tensor) -> torch.Tensor:
    i, j = positions(scores)
    slopes = torch.arange(1, 4, device=scores.device).float()[:, None, None] * 0.1
    return causal(5 * torch.tanh(scores / 5) + slopes * (j - i))


SCORES = {
    "plain": lambda s: s,
    "soft_cap": lambda s: 5 * torch.tanh(s / 5),
    "causal": causal,
    "window": window,
    "soft_cap_alibi_causal": soft_cap_alibi_causal,
}


@pytest.mark.parametrize("width", [16, 48])
@pytest.mark.parametrize("name", SCORES)
def test_attention_of_any_score(name: str, width: int) -> None:
    inputs = [data(2, 3, n, width, seed=i) for i, n in enumerate((33, 40, 40))]
    verify(lambda q, k, v: attention(SCORES[name], q, k, v), inputs)


def test_attention_in_other_layouts_and_with_several_outputs() -> None:
    q, k, v = (data(2, n, 3, 16, seed=i) for i, n in enumerate((33, 40, 40)))
    verify(
        lambda q, k, v: attention(SCORES["plain"], *(x.transpose(1, 2) for x in (q, k, v))),
        [q, k, v],
    )

    def with_statistics(q, k, v):
        scores = (q @ k.transpose(-1, -2)).float()
        weights = torch.softmax(scores, -1)
        return weights.to(v.dtype) @ v, torch.logsumexp(scores, -1)

    verify(with_statistics, [x.transpose(1, 2).contiguous() for x in (q, k, v)])


def test_a_rounded_product_takes_quick_forms_beside_wide_outputs() -> None:
    """Eager knows the scores to 9 bits; what is added in float32 is known better."""

    def capped(x, y):
        scores = 5 * torch.tanh((x @ y.t()).float() * 0.1)
        return scores.softmax(-1), scores.logsumexp(-1)

    def shifted(x, y, b):
        return torch.tanh((x @ y.t()).float() * 0.1 + b)

    x, y, b = data(35, 24), data(70, 24, seed=1), data(70, seed=2, dtype=F32)
    for function, inputs, quick in ((capped, [x, y], True), (shifted, [x, y, b], False)):
        verify(function, inputs)
        found = space(function, inputs)
        program = lower(found.group, variants(found)[0])
        assert not isinstance(program, Refusal)
        assert ("quick_tanh(" in program.kernels[0].text) == quick


def test_attention_with_groups_of_queries() -> None:
    q, k, v = data(2, 4, 18, 16), data(2, 2, 33, 16, seed=1), data(2, 2, 33, 16, seed=2)

    def grouped(q, k, v):
        k, v = (x[:, :, None].expand(2, 2, 2, 33, 16).reshape(2, 4, 33, 16) for x in (k, v))
        return attention(SCORES["plain"], q, k, v)

    verify(grouped, [q, k, v])


def test_a_row_that_a_mask_hides_whole_is_what_eager_makes_of_it() -> None:
    # In float32: eager's bfloat16 on a CPU with AMX lets the NaN of a row into its neighbour.
    q, k, v = (data(2, 33, 16, dtype=F32, seed=i) for i in range(3))
    mask = torch.zeros(33, 33, device=DEVICE)
    mask[:, 20:] = float("-inf")
    mask[5] = float("-inf")
    mask[7, :18] = float("-inf")
    verify(lambda q, k, v, m: attention(lambda s: s + m, q, k, v), [q, k, v, mask])


def test_a_row_that_a_mask_hides_whole_is_zero_in_torch_s_attention() -> None:
    q, k, v = (data(2, 2, 33, 16, seed=i) for i in range(3))
    mask = torch.zeros(33, 33, device=DEVICE, dtype=torch.bfloat16)
    mask[:, 20:] = mask[5] = mask[7, :18] = float("-inf")
    v[0, 1, 3, 2], v[1, 1, 30, 4] = float("inf"), float("nan")  # zero times these is seen

    def masked(q, k, v, m):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    verify(masked, [q, k, v, mask])


def test_a_mask_leaves_out_the_loop_what_it_empties() -> None:
    found = space(
        lambda q, k, v: attention(causal, q, k, v), [data(2, 64, 16, seed=i) for i in range(3)]
    )
    schedule = next(s for layout, s in found.schedules.items() if layout.name == "loop")
    (kernel,) = schedule.kernels
    (limits,) = (limits for limits in kernel.nest.limits.values() if limits)
    assert [limit.scale for limit in limits] == [1]
    window_space = space(
        lambda q, k, v: attention(window, q, k, v), [data(2, 64, 16, seed=i) for i in range(3)]
    )
    schedule = next(s for layout, s in window_space.schedules.items() if layout.name == "loop")
    both = next(limits for limits in schedule.kernels[0].nest.limits.values() if limits)
    assert sorted(limit.scale for limit in both) == [-1, 1]


def test_few_rows_and_a_long_axis_are_cut_over_the_grid() -> None:
    def statistics(x, y):
        return torch.logsumexp((x @ y.t()).float(), -1)

    inputs = [data(16, 16), data(8192, 16, seed=1)]
    found = space(statistics, inputs)
    cut = [c for c, _ in found.seeds(600) if c.split > 1]
    assert cut
    assert check(statistics, inputs, cut[:2]) == 4


def test_a_weight_gradient_over_images_is_cut_between_axes() -> None:
    """No one of images, rows and columns divides into 32 parts; images and eighths of rows do."""

    def gradient(dy, x):
        return dy.flatten(0, 2).t() @ x.flatten(0, 2)

    inputs = [data(4, 56, 37, 300), data(4, 56, 37, 24, seed=1)]
    cut = [c for c, _ in space(gradient, inputs).seeds(600) if c.split == 32]
    assert cut
    assert check(gradient, inputs, cut[:1]) == 2


@pytest.mark.parametrize("r1", [4, 16])
def test_a_product_in_a_later_loop_follows_no_extremum(r1: int) -> None:
    """The softmax is complete before the loops over both products begin."""

    def function(x, first, second):
        y = torch.softmax(x, 1)
        return y * 2, F.linear(F.linear(y, first), second)

    inputs = [data(8, 16) * 4, data(3, 16, seed=1), data(8, 3, seed=2)]
    config = Config(
        (("r0", 4), ("r1", r1), ("x0", 1)), num_warps=1, num_stages=1, reduction="nested"
    )
    assert check(function, inputs, [config]) == 1
