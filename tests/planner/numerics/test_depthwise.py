"""Depthwise convolutions as kernels of ours: strides, dilation, padding, both orders of an image,
and what stands before and after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.capture import capture
from fusionplan.planner.capture.rewrites.channels_last import channels_last
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.nests import laid_vectors
from fusionplan.planner.space.space import Space, space_of
from oracle import captured, check, whole_group
from test_losses import verify

pytestmark = pytest.mark.interpreter

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LAST, PLANES = torch.channels_last, torch.contiguous_format


def normal(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def given(
    channels: int = 5,
    size: tuple[int, ...] = (9, 14),
    kernel: tuple[int, ...] = (3, 3),
    dtype: torch.dtype = F32,
    order: torch.memory_format = LAST,
) -> list[torch.Tensor]:
    """An image, filters and biases."""
    image = normal(2, channels, *size, dtype=dtype)
    if len(size) == 2:
        image = image.contiguous(memory_format=order)
    filters = normal(channels, 1, *kernel, dtype=dtype, seed=1)
    return [image, filters, normal(channels, dtype=dtype, seed=2)]


def configs(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[Config]:
    """The first of every layout that fits."""
    found = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(found, Space), found
    first = (
        next((c for c in found.enumerate(400, (layout,)) if is_possible(found, c)), None)
        for layout in found.schedules
    )
    return [config for config in first if config is not None]


def is_possible(found: Space, config: Config) -> bool:
    return isinstance(found.judge(config), Cost)


def holds(function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """Whole as one kernel it is as exact as eager."""
    wanted = configs(function, inputs)
    assert check(function, inputs, wanted) == len(wanted)


def convolved(**how: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w, b: F.conv2d(x, w, b, groups=x.shape[1], **how)


@pytest.mark.parametrize("order", [LAST, PLANES], ids=["channels_last", "planes"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_dtypes_and_orders(dtype: torch.dtype, order: torch.memory_format) -> None:
    holds(convolved(padding=1), given(dtype=dtype, order=order))


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stride": ({"stride": 2, "padding": 1}, {}),
    "strides that differ": ({"stride": (1, 3), "padding": (0, 2)}, {}),
    "dilation": ({"dilation": 2, "padding": 2}, {}),
    "no padding": ({}, {"kernel": (2, 5)}),
    "padding beyond the filter": ({"padding": 3}, {"size": (4, 6)}),
    "filter as large as the image": ({"padding": 2}, {"size": (3, 4), "kernel": (5, 5)}),
    "a result of one pixel": ({}, {"size": (3, 3)}),
    "a prime width": ({"padding": 1}, {"size": (5, 13)}),
    "apart": ({"stride": 4}, {"size": (9, 12)}),
}


@pytest.mark.parametrize("order", [LAST, PLANES], ids=["channels_last", "planes"])
@pytest.mark.parametrize("name", SHAPES)
def test_strides_padding_and_sizes(name: str, order: torch.memory_format) -> None:
    how, image = SHAPES[name]
    holds(convolved(**how), given(**image, order=order))


def test_filters_of_49_taps() -> None:
    holds(convolved(padding=3), given(size=(7, 7), kernel=(7, 7), dtype=BF16))


TURNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole rows": ({"padding": 3}, {"size": (7, 7), "kernel": (7, 7)}),
    "two runs": ({"padding": 2}, {"size": (6, 28), "kernel": (5, 5), "channels": 3}),
    "steps": ({"padding": 2, "stride": 2}, {"size": (9, 28), "kernel": (5, 5)}),
    "steps down alone": ({"padding": 2, "stride": (2, 1)}, {"size": (9, 14), "kernel": (4, 5)}),
    "dilation": ({"padding": 4, "dilation": 2}, {"size": (9, 14), "kernel": (5, 5)}),
    "rows that all see pixels": ({"padding": (0, 2)}, {"size": (9, 14), "kernel": (4, 5)}),
    "rows in the padding": ({"padding": 2}, {"size": (1, 14), "kernel": (5, 5)}),
}


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", TURNS)
def test_rows_that_are_turns_of_a_loop(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights from a copy, however few read them."""
    monkeypatch.setattr(laid_vectors, "_READ_BYTES", 0)
    monkeypatch.setattr(laid_vectors, "_FEWEST", 4)
    how, image = TURNS[name]
    function, inputs = convolved(**how), given(**image, dtype=dtype)
    wanted = configs(function, inputs)
    assert check(function, inputs, wanted) > len(wanted)


def test_one_dimension_and_three() -> None:
    """Of what is padded for a causal filter the end is cut off again."""

    def causal(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv1d(x, w, b, groups=5, padding=3)[..., :-3])

    def solid(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv3d(x, w, b, groups=5)

    holds(causal, given(size=(14,), kernel=(4,)))
    holds(solid, given(size=(3, 4, 5), kernel=(2, 3, 3)))


REPEATED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "twice": ({"padding": 2, "stride": 2}, {"size": (9, 28), "kernel": (5, 5)}, 2),
    "four times": ({"padding": 2, "dilation": 2}, {"channels": 6}, 4),
    "three times": ({"stride": (2, 1), "padding": (0, 1)}, {}, 3),
}


@pytest.mark.parametrize("name", REPEATED)
def test_several_channels_of_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "capture", lambda gm: capture(channels_last(gm)))
    how, image, times = REPEATED[name]
    x, w, b = given(**image, dtype=BF16)
    inputs = [x, *(torch.cat([t, t.flip(0), *[-t] * (times - 2)]) for t in (w, b))]
    holds(lambda *given: F.silu(convolved(**how)(*given).permute(0, 2, 3, 1)), inputs)


def layer_norm_after(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x, w, b, padding=1, groups=x.shape[1])
    return F.layer_norm(y.permute(0, 2, 3, 1), (y.shape[1],))


def batch_norm_and_silu_after(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x, w, None, stride=2, padding=1, groups=x.shape[1])
    y = F.batch_norm(y, b.sigmoid(), b.sigmoid(), w[:, 0, 0, 0], b)
    return F.silu(y)


def pixels_and_their_mean(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    y = F.conv2d(x, w, b, padding=1, groups=x.shape[1])
    return y, F.silu(y).mean(1)


def multiplied_by_positions(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x, w, b, padding=1, groups=x.shape[1])
    return y * torch.arange(y.shape[3], device=y.device)


def computed_before(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """0 in the padding is not what the function makes of 0."""
    return F.conv2d(torch.sigmoid(x) + b.view(-1, 1, 1), w, b, padding=1, groups=x.shape[1])


@pytest.mark.parametrize(
    "function",
    [
        layer_norm_after,
        batch_norm_and_silu_after,
        pixels_and_their_mean,
        multiplied_by_positions,
        computed_before,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_with_what_is_before_and_after(function: Callable[..., Any], dtype: torch.dtype) -> None:
    holds(function, given(dtype=dtype))


def test_gradients_are_eagers() -> None:
    """The backward pass is ATen's; what it needs is saved."""

    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(x, w, b, padding=1, groups=5))

    inputs = [x.requires_grad_() for x in given(size=(5, 8))]
    verify(block, inputs, ["aten.convolution_backward.default", *["operator.getitem"] * 3])


def test_padding_is_zero_where_a_channel_is_chosen() -> None:
    """The channel is the place of a maximum: an index of a value, which is NaN where it lies
    outside of the channels. Beside the image it once was NaN as well."""

    def chosen(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = convolved(padding=1)(x, w, b).bfloat16().float()
        return found.gather(1, found.argmax(1, keepdim=True)).exp()

    holds(chosen, given(channels=4, size=(6, 8)))
