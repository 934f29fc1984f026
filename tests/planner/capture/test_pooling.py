"""Pooling and padding opened into slices, reshapes and lookups: numbers forward and backward in
every layout, and nothing left to ATen."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.cures import FusionplanWarning
from oracle import DEVICE
from test_losses import data, verify

pytestmark = pytest.mark.dynamo

NAN, INF = float("nan"), float("inf")

POOLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "average_overlapping": lambda x: F.avg_pool1d(x[0], 3, 2, 1, count_include_pad=False),
    "average_ragged": lambda x: F.avg_pool2d(x, (3, 2), ceil_mode=True),
    "average_of_many": lambda x: F.avg_pool2d(x, 6, divisor_override=5),
    "average_with_gaps": lambda x: F.avg_pool2d(x, 1, 3) + 1,
    "area": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "maximum": lambda x: F.max_pool2d(x, 2),
    "maximum_overlapping": lambda x: F.max_pool2d(x, (2, 3), 2, (0, 1)),
    "adaptive_maximum": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    "replicate": lambda x: F.pad(x, (0, 1, 2, 0), mode="replicate").sigmoid(),
    "replicate_and_cut": lambda x: F.pad(x[0], (-1, 2), mode="replicate") * 2,
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    verify(POOLS[name], [data(2, 1, 6, 8).requires_grad_()])


@pytest.mark.parametrize("name", ["average_ragged", "maximum"])
def test_pools_of_bfloat16(name: str) -> None:
    verify(POOLS[name], [data(2, 1, 6, 8, dtype=torch.bfloat16).requires_grad_()])


def test_what_is_before_and_after_a_pool_is_in_its_kernel() -> None:
    x, scale = data(2, 3, 6, 8), data(3, 1, 1, seed=1)
    runner = verify(lambda x, s: F.max_pool2d(torch.relu(x * s), 2) + 1, [x, scale])
    assert runner.kernels == runner.layouts


def test_places_of_maxima_are_eagers() -> None:
    x = data(1, 2, 6, 8).round()
    x[0, 0] = -INF
    x[0, 1, 2, 3], x[0, 1, 3, 3], x[0, 1, 3, 2] = NAN, NAN, INF

    def places(x: torch.Tensor, **how: Any) -> Any:
        return F.max_pool2d(x, return_indices=True, **how)

    verify(lambda x: places(x, kernel_size=2, stride=1, dilation=2), [x])
    verify(lambda x: places(x, kernel_size=(2, 3), padding=1, ceil_mode=True), [x])


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_places_of_windows_of_one_element_may_be_written_to(form: torch.memory_format) -> None:
    """They are the same in all images and channels, and were one view."""

    def places(x: torch.Tensor) -> Any:
        return F.max_pool2d(x * 2, 1, 2, return_indices=True)

    x = data(2, 3, 4, 6).to(memory_format=form)
    options = {"on_miss": "model", "evidence": "any", "store": "/nonexistent"}
    compiled = torch.compile(places, backend=planner, options=options)
    with torch.no_grad():
        got, want = (function(x)[1].add_(1) for function in (compiled, places))
    assert torch.equal(got, want)
    assert got.stride() == want.stride()
    (runner,) = executors(compiled)
    assert runner.kernels_per_call


def test_pools_left_to_the_vendor() -> None:
    x = data(1, 1, 12, 12)
    verify(lambda x: F.avg_pool2d(x, 6, 1) * 2, [x], ["aten.avg_pool2d.default"])
    verify(lambda x: F.adaptive_avg_pool2d(x, 5) * 2, [x], ["aten._adaptive_avg_pool2d.default"])


UPSAMPLED: dict[str, dict[str, Any]] = {
    "nearest": {"scale_factor": 2},
    "bilinear": {"size": (4, 6), "mode": "bilinear"},
}


@pytest.mark.parametrize("name", UPSAMPLED)
def test_upsampling_is_one_kernel(name: str) -> None:
    x = data(1, 2, 3, 4)
    runner = verify(lambda x: F.interpolate(x, **UPSAMPLED[name]).relu(), [x])
    assert runner.kernels == runner.layouts


def test_a_padding_that_only_cuts_is_a_tensor_of_its_own() -> None:
    """What the caller writes to the result must not reach the source."""
    x = torch.arange(12.0, device=DEVICE).reshape(1, 2, 6)
    cut = F.pad(x, (-1, -2), mode="replicate")
    runner = verify(lambda x: F.pad(x, (-1, -2), mode="replicate"), [x])
    assert cut.shape == (1, 2, 3)
    assert "clone" in str(runner.graphs[0].graph)


def test_a_training_step_with_rows_that_overlap_is_cut_in_two() -> None:
    """Its backward pass looks up at a fixed step, in views that belong to that pass."""
    x = data(2, 3, 3).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.max_pool1d(x, 2, 1, 1), backend="planner")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        (ours,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (eager,) = torch.autograd.grad(F.max_pool1d(x, 2, 1, 1).square().sum(), x)
    assert torch.equal(ours, eager)


def test_a_row_of_one_is_the_maximum_of_its_own_window() -> None:
    """Beside it are minus infinities alone, numbers that a comparison has for itself."""
    function = partial(F.max_pool1d, kernel_size=3, stride=2, padding=1)
    x = data(7, 7, 1).requires_grad_()
    runner = verify(lambda x: function(x * 2, return_indices=True), [x.detach()])
    assert runner.kernels
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: function(x * 2), backend="planner")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionplanWarning)
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.equal(ours, torch.full_like(x, 2.0))
