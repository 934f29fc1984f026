"""Generated kernels against eager and float64, ugly shapes first, in Triton's interpreter."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.config import NATURAL, Config, Layout
from fusionplan.planner.costs.device import H200
from fusionplan.planner.errors import Refusal
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.space.points import loose
from fusionplan.planner.space.space import Space, space_of
from oracle import DEVICE, captured, check, whole_group

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("few_ranked")]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (1, 127), (5, 37), (16, 64), (3, 4, 33)]


def configs(function, inputs) -> list[Config]:
    """The model's best config of every layout of the function's group, and one of tiny blocks."""
    group = whole_group(captured(function, inputs)[0].graph).graph
    space = space_of(group, H200)
    assert isinstance(space, Space), space
    best: dict[Layout, Config] = {}
    for config, _ in space.seeds(400):
        best.setdefault(config.layout, config)
    assert best, "no config of any layout"
    if NATURAL not in best:
        return list(best.values())
    tiny = tuple(
        (name, min(size, 2 + 2 * (i % 2))) for i, (name, size) in enumerate(best[NATURAL].blocks)
    )
    return [*best.values(), replace(best[NATURAL], blocks=tiny, num_warps=1)]


def fewest_parts(found: list[Config]) -> list[Config]:
    """Those of split reductions, the ones of few programs first: the interpreter runs them one
    after the other."""
    return sorted((c for c in found if c.split > 1), key=lambda c: c.split)


def verify(function, inputs) -> None:
    chosen = configs(function, inputs)
    assert check(function, inputs, chosen) >= len(chosen) > 0


def data(*shape: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


ELEMENTWISE = {
    "log_relu_add": lambda x, y: torch.log(torch.relu(x + y) + 0.5),
    "sigmoid_tanh": lambda x, y: torch.sigmoid(x) * torch.tanh(y + 1),
    "article": lambda x, y: torch.relu((x + 1) * 2) ** 2 - y,
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "silu_mish": lambda x, y: F.silu(x) + F.mish(y),
    "clamp": lambda x, y: x.clamp(-0.5, 0.7) + y.clamp_min(0.1),
    "where": lambda x, y: torch.where(x > y, x, y.abs()).masked_fill(x < -1, 3.0),
    "exp_family": lambda x, y: torch.exp(x) + torch.expm1(y) - torch.log1p(x.abs()),
    "trigonometry": lambda x, y: torch.sin(x) * torch.cos(y) + torch.atan(x),
    "division": lambda x, y: x / (y.abs() + 1) + torch.reciprocal(x.abs() + 2),
    "roots": lambda x, y: torch.sqrt(x.abs()) + torch.rsqrt(y.abs() + 1),
    "rounding": lambda x, y: torch.floor(x) + torch.ceil(y) + torch.round(x * 3) + torch.trunc(y),
    "extremes": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y * 2),
    "leaky": lambda x, y: F.leaky_relu(x, 0.1) + F.elu(y) + F.hardswish(x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, dtype: torch.dtype) -> None:
    verify(ELEMENTWISE[name], [data(5, 37, dtype=dtype), data(37, dtype=dtype, seed=1)])


REDUCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax_outer": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: F.rms_norm(x, (x.shape[-1],), eps=1e-6),
    "sum_rows": lambda x: (x * x).sum(-1),
    "sum_outer": lambda x: x.sum(0),
    "mean_all": lambda x: (x + 1).mean(),
    "extrema": lambda x: (x.amax(-1), x.amin(-1, keepdim=True)),
    "variance": lambda x: (x.var(-1), x.std(-1, unbiased=False)),
    "several": lambda x: (x.mean(-1), x.amax(-1), torch.relu(x)),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, shape: tuple[int, ...]) -> None:
    if name == "variance" and shape[-1] == 1:
        shape = (3, 2)
    verify(REDUCTIONS[name], [data(*shape)])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_in_16_bits(name: str, dtype: torch.dtype) -> None:
    verify(REDUCTIONS[name], [data(6, 41, dtype=dtype)])


def rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


def causal(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[-1], device=x.device)
    return torch.where(place[:, None] >= place[None, :], x, float("-inf")).softmax(-1)


def test_rotary_embedding() -> None:
    verify(rotary, [data(2, 3, 5, 16), data(5, 16, seed=1), data(5, 16, seed=2)])


def test_masks_from_indices() -> None:
    verify(causal, [data(9, 9)])


def test_a_fully_masked_row_is_what_eager_makes_of_it() -> None:
    x = data(4, 21)
    x[2] = float("-inf")
    x[1, 3] = float("-inf")
    verify(lambda x: torch.softmax(x, -1), [x])
    verify(lambda x: torch.logsumexp(x, -1).nan_to_num(0.0) + x.amax(-1).clamp_min(0), [x])


def test_nan_propagates_as_in_eager() -> None:
    x = data(4, 21)
    x[1, 5] = float("nan")
    verify(lambda x: (x.amax(-1), torch.relu(x), x.clamp(0, 1), torch.softmax(x, -1)), [x])


def test_group_and_batch_norm_reduce_over_several_axes() -> None:
    x, w, b = data(2, 8, 5, 5), data(8, seed=1), data(8, seed=2)
    verify(lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), [x, w, b])
    verify(lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)), [x, w, b])


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1::3],
        lambda x: x[3:, :-2],
        lambda x: x[:1].expand(6, x.shape[1]),
        lambda x: torch.as_strided(x, (4, 4), (1, 5), 2),
    ],
    ids=["transposed", "strided", "offset", "expanded", "overlapping"],
)
def test_any_stride(arrange) -> None:
    x = arrange(data(12, 12))
    verify(lambda x: torch.tanh(x) * 2, [x])
    verify(lambda x: torch.softmax(x * 2, -1), [x])


VIEWS = {
    "transpose": lambda x: torch.relu(x).transpose(0, 1) + 1,
    "with_own_transpose": lambda x: x + x.t(),
    "reshape": lambda x: (x * 2).reshape(3, 2, 12).sum(1),
    "slices": lambda x: x[:, :6] * x[:, 6:],
    "strided_slices": lambda x: x[:, ::2] - x[:, 1::2],
    "select": lambda x: x[:, 3] + x[2].sum(),
    "cat": lambda x: torch.cat([x * 2, x - 1, x[:, :3]], 1),
    "cat_then_slice": lambda x: torch.cat([x.exp(), -x], 1)[:, 4:20] * 3,
    "stack": lambda x: torch.stack([x.relu(), -x], 0),
    "split": lambda x: sum(part * i for i, part in enumerate(x.split(5, 1)) if part.shape[1] == 5),
    "expand": lambda x: (
        x[:, None, :].expand(6, 4, 12) * torch.arange(4.0, device=x.device)[None, :, None]
    ),
    "flatten": lambda x: x.reshape(-1) * torch.ones(72, device=x.device),
    "squeeze": lambda x: x.unsqueeze(1).mul(2).squeeze(1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_no_work(name: str) -> None:
    x = data(12, 12) if "own" in name else data(6, 12)
    verify(VIEWS[name], [x])


def test_integers_and_bools() -> None:
    i = torch.arange(-30, 30, device=DEVICE).reshape(5, 12)
    j = i.to(torch.int32)
    verify(lambda i, j: (i * 3 - j, (i > 2) & (j < 7), i.remainder(7), j.abs().sum(-1)), [i, j])
    verify(lambda i, j: (i.float() / 3 + j, (i != 0).sum(0), (j > 0).any(-1), i.amax(0)), [i, j])
    flags = i % 2 == 0
    verify(
        lambda b, j: (b.all(-1), ~b, b.to(torch.bfloat16) + 1, torch.where(b, j, -j)), [flags, j]
    )


def test_floats_beyond_32_bits_are_converted_as_eager_does() -> None:
    beyond = [math.inf, -math.inf, math.nan, 3e9, -3e9, 2.5]
    verify(lambda x: ((x * 2).int(), x.int().clamp(0, 9)), [torch.tensor(beyond, device=DEVICE)])


def test_type_promotion_is_eagers() -> None:
    x, y, i = data(4, 9, dtype=torch.bfloat16), data(4, 9), torch.arange(9, device=DEVICE)
    verify(lambda x, y, i: (x + y, x * i, i / 2, i + 0.5, (x > y).float()), [x, y, i])


def test_large_and_tiny_values_keep_their_accuracy() -> None:
    x = torch.cat([data(3, 40) * 1e4, data(3, 40) * 1e-6, torch.full((1, 40), 7.0, device=DEVICE)])
    verify(lambda x: F.layer_norm(x, (40,)), [x])
    verify(lambda x: torch.softmax(x, -1), [x])
    verify(lambda x: torch.tanh(x) + torch.sigmoid(x), [x])


def test_the_whole_range_of_the_exponential() -> None:
    x = torch.cat([torch.linspace(-200, 200, 4001), torch.tensor([float("inf"), float("-inf")])])
    x = x.to(DEVICE)
    # Clamped: the interpreter has no fused multiply-add, which the last bits of exp(88) need.
    for function, given in (
        (lambda x: (torch.exp(x).clamp_max(1e4), torch.sigmoid(x), torch.tanh(x)), x),
        (lambda x: (torch.exp(x), torch.sigmoid(x), torch.tanh(x)), x.bfloat16()),
    ):
        assert check(function, [given], configs(function, [given])[:1]) == 1


def test_a_difference_that_has_no_elements_left_writes_nothing() -> None:
    x = data(3, 1, 3)
    group = whole_group(captured(lambda x: torch.diff(x * 2, dim=1), [x])[0].graph).graph
    found = space_of(group, H200)
    assert isinstance(found, Refusal)
    assert found.rule == "empty"


def test_any_and_all_of_fractions() -> None:
    x = torch.tensor([[0.3, 0.0, -0.2, 0.1], [0.0, 0.0, 5.0, 0.7]], device=DEVICE)
    verify(lambda x: (x.any(0), (x * 0.5).all(-1), x.bfloat16().any()), [x])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_maximum_equals_the_element_it_came_of(dtype: torch.dtype) -> None:
    """Also where registers keep more than the dtype, and one of the two was stored in between."""
    x = data(7, 33, dtype=dtype)
    sums = (x * 1.7 + 0.3).sum(-1)
    largest = sums.amax()

    def count(x, largest):
        sums = (x * 1.7 + 0.3).sum(-1)
        return (sums == largest).sum(), (sums == sums.amax()).sum()

    verify(count, [x, largest])
    assert int(count(x, largest)[0]) >= 1


def test_a_split_reduction_is_several_kernels_with_the_same_result() -> None:
    x = data(2, 32768)
    for function, kernels in (
        (lambda x: x.sum(), 2),
        (lambda x: (x.amax(-1), x.mean()), 2),
        (lambda x: torch.softmax(x, -1), 2),
    ):
        split = fewest_parts(configs(function, [x]))[:2]
        assert split, "the space of a few long rows has no split layout"
        assert check(function, [x], split) == kernels * len(split)


@pytest.mark.parametrize("x0, stages", [(1, 1), (1, 3), (4, 3)])
def test_few_programs_that_walk_over_many_rows(x0: int, stages: int) -> None:
    inputs = [data(37, 100), data(100, seed=1)]
    one = Config((("x0", x0),), num_warps=1, num_stages=stages, programs=3)
    assert check(lambda x, w: torch.softmax(x, -1) * w, inputs, [one]) == 1


def layer_norm_backward(dy, x, mean, rstd, w):
    wanted = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(dy, x, [x.shape[-1]], mean, rstd, w, w, wanted)


@pytest.mark.parametrize("width", [33])
def test_a_norms_gradients_are_one_pass_over_memory(width: int) -> None:
    """The first kernel writes the gradient of every row, and sums over the rows of its part."""
    x, dy, w = data(4096, width), data(4096, width, seed=1), data(width, seed=2)
    mean, rstd = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + 1e-5).rsqrt()
    inputs = [dy, x, mean, rstd, w]
    found = fewest_parts(configs(layer_norm_backward, inputs))
    split = [c for c in found if c.reduction == "loop"][:1]
    # Fewer turns: the interpreter takes its time for each.
    split = [replace(c, blocks=tuple((dict(c.blocks) | {"r0": 16}).items())) for c in split]
    split += [c for c in found if c.reduction == "held"][:1]
    assert len(split) == 2
    assert check(layer_norm_backward, inputs, split) == 4
    group = whole_group(captured(layer_norm_backward, inputs)[0].graph).graph
    for config in split:
        program = lower(group, config)
        assert not isinstance(program, Refusal)
        first, last = ([(b.kind, b.index) for b in k.buffers] for k in program.kernels)
        assert ("out", 0) in first
        assert not [kind for kind, _ in last if kind == "in"]
        assert [t.shape for t in program.temporaries] == 2 * [(config.split, width)]


@pytest.mark.parametrize("rows, width, blocks", [(64, 300, 2), (48, 1000, 1)])
def test_fewer_rows_than_columns_are_cut_all_the_same(rows: int, width: int, blocks: int) -> None:
    """Each program holds rows whole: what lies along memory is not cut, though it is longer."""
    x, dy, w = data(rows, width), data(rows, width, seed=1), data(width, seed=2)
    mean, rstd = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + 1e-5).rsqrt()
    inputs = [dy, x, mean, rstd, w]
    sizes = (("r0", blocks), ("x0", 1), ("y0", 8))
    config = Config(sizes, 1, 1, reduction="loop", split=16)
    assert check(layer_norm_backward, inputs, [config]) == 2
    group = whole_group(captured(layer_norm_backward, inputs)[0].graph).graph
    program = lower(group, config)
    assert not isinstance(program, Refusal)
    assert [t.shape for t in program.temporaries] == 2 * [(16, width)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.var_mean(x, (0, 1, 2)),
        lambda x: (x.relu() * 2, x.sum((0, 1, 2))),
        lambda x: (x.amax((0, 1, 2)), x.exp().mean((0, 1, 2))),
    ],
)
def test_a_reduction_is_cut_between_axes(function) -> None:
    """Into 16 parts: images and quarters of rows, of which none divides into so many."""
    x = data(4, 28, 41, 6)
    group = whole_group(captured(function, [x])[0].graph).graph
    assert isinstance(schedule_group(group, Layout("natural", "loop", 64)), Refusal)
    for reduction in ("loop", "held"):
        schedule = schedule_group(group, Layout("natural", reduction, 16))
        assert not isinstance(schedule, Refusal), schedule
        blocks = {a.name: 64 for kernel in schedule.kernels for a in loose(kernel.nest)}
        config = Config(tuple(sorted(blocks.items())), 1, 1, reduction=reduction, split=16)
        assert check(function, [x], [config]) == len(schedule.kernels) > 1


@pytest.mark.parametrize(
    "function, kernels",
    [
        (lambda x: torch.softmax(x.flip(-1), -1), 2),
        (lambda x: F.layer_norm(x, x.shape[-1:]), 3),
        (lambda x: ((x + 1).sum(-1), x.amin(-1)), 2),
    ],
    ids=["softmax", "layer norm", "sum and minimum"],
)
def test_the_last_part_of_an_odd_row_is_shorter(function, kernels: int) -> None:
    x = data(2, 4999)
    x[1, 4900:] = float("-inf") if kernels == 2 else 0.0
    x[0, -1] = 50.0
    for reduction in ("held", "loop"):
        schedule = schedule_group(
            whole_group(captured(function, [x])[0].graph).graph, Layout("natural", reduction, 4)
        )
        assert not isinstance(schedule, Refusal), schedule
        axes = [axis for kernel in schedule.kernels for axis in loose(kernel.nest)]
        blocks = {axis.name: min(1024, axis.extent) for axis in axes}
        config = Config(tuple(sorted(blocks.items())), 1, 1, reduction=reduction, split=4)
        assert check(function, [x], [config]) == kernels


def test_an_output_that_waits_for_no_sum_is_written_on_the_way_to_it() -> None:
    x = data(2, 32768)
    function = lambda x: (x.relu() * 2, x.sum(-1), x.amax())  # noqa: E731
    split = fewest_parts(configs(function, [x]))[:2]
    assert split
    assert check(function, [x], split) == 2 * len(split)


def test_every_block_size_gives_the_same_numbers() -> None:
    x, y = data(7, 19), data(7, 19, seed=1)
    every = [
        Config((("x0", a), ("x1", b)), num_warps=w)
        for a, b, w in itertools.product((1, 2, 8), (1, 4, 32), (1, 4))
    ]
    assert (
        check(lambda x, y: torch.exp(x).t() * y.t().tanh(), [x, y.t().contiguous().t()], every)
        == 18
    )


def test_a_config_without_a_block_is_refused_by_name() -> None:
    part = whole_group(captured(lambda x: x.relu() + 1, [data(4, 4)])[0].graph)
    refusal = lower(part.graph, Config((("y7", 4),)))
    assert isinstance(refusal, Refusal)
    assert "x0" in refusal.reason
