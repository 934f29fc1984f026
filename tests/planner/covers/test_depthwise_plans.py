"""Which depthwise convolutions plans leave to the vendor, and what a kernel of ours reads."""

from __future__ import annotations

import pytest
from fusionplan.planner.config import NATURAL
from fusionplan.planner.costs.depthwise import is_multiplied, vendor_s
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers import pricing
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph, TensorType, contiguous
from fusionplan.planner.graph.ops import is_input
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.nests.nest import Nest, schedule
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.values.values import Load
from graphs import Builder

BATCH = 64


def convolution(
    channels: int,
    size: int,
    kernel: int,
    stride: int = 1,
    *,
    dtype: str = "bfloat16",
    planes: bool = False,
    silu: bool = False,
    mean: bool = False,
    before: bool = False,
    copied: bool = False,
    multiplied: int = 0,
    viewed: bool = False,
) -> Graph:
    """With a bias for each channel. multiplied: channels of a 1x1 convolution behind it. viewed:
    the image is a view of the rows of a matrix, as a product gives them."""

    def strides(of: tuple[int, ...]) -> tuple[int, ...]:
        _, c, h, w = of
        return contiguous(of) if planes else (h * w * c, 1, w * c, c)

    b = Builder()
    image = (BATCH, channels, size, size)
    result = (BATCH, channels, size // stride, size // stride)
    if viewed:
        x = b.input(BATCH * size * size, channels, dtype=dtype)
        rows = (BATCH, size, size, channels)
        x = b.node("aten.view.default", (x, rows), TensorType(rows, contiguous(rows), dtype))
        kind = TensorType(image, strides(image), dtype)
        x = b.node("aten.permute.default", (x, (0, 3, 1, 2)), kind)
    else:
        x = b.input(*image, dtype=dtype, stride=strides(image))
    if before:
        x = b.node("aten.exp.default", (x,), TensorType(image, strides(image), dtype))
    w = b.input(channels, 1, kernel, kernel, dtype=dtype)
    bias = b.input(channels, dtype=dtype)
    how = (*((n, n) for n in (stride, kernel // 2, 1)), False, (0, 0), channels)
    kind = TensorType(result, strides(result), dtype)
    found = b.node("aten.convolution.default", (x, w, bias, *how), kind)
    if silu:
        chance = b.node("aten.sigmoid.default", (found,), kind)
        found = b.node("aten.mul.Tensor", (found, chance), kind)
    if copied:
        found = b.node(
            "aten.clone.default", (found,), TensorType(result, contiguous(result), dtype)
        )
    if multiplied:
        pixels = BATCH * result[2] * result[3]
        rows = TensorType(
            (BATCH, *result[2:], channels), contiguous((*image[:1], *result[2:], channels)), dtype
        )
        found = b.node("aten.permute.default", (found, (0, 2, 3, 1)), rows)
        found = b.op("view.default", found, (pixels, channels), shape=(pixels, channels))
        matrix = b.input(channels, multiplied, dtype=dtype)
        found = b.op("mm.default", found, matrix, shape=(pixels, multiplied))
    if mean:
        found = b.op("mean.dim", found, (2, 3), shape=result[:2])
    return b.graph(found)


MEASURED = {
    (96, 56, 7, 1): 142.3,
    (192, 28, 7, 1): 87.2,
    (384, 14, 7, 1): 46.4,
    (768, 7, 7, 1): 33.1,
    (144, 56, 3, 1): 58.4,
    (480, 14, 5, 1): 32.0,
    (1152, 7, 5, 1): 24.8,
    (96, 112, 3, 2): 79.0,
}
"""Microseconds of the vendor's kernels on an H200 (bfloat16, channels last)."""


@pytest.mark.parametrize("shape", MEASURED)
def test_the_vendors_convolutions_count_as_a_little_faster_than_timed(
    shape: tuple[int, int, int, int],
) -> None:
    graph = convolution(*shape)
    (node,) = graph.outputs
    assert node is not None
    assert 0.8 < vendor_s(graph, node, H200) * 1e6 / MEASURED[shape] < 1.0


@pytest.mark.parametrize("shape", [(384, 14, 7), (144, 56, 3), (96, 112, 3, 2), (144, 14, 11, 2)])
def test_a_convolution_is_a_kernel_of_ours_with_what_follows(shape: tuple[int, ...]) -> None:
    graph = convolution(*shape, silu=True)
    (group,) = modelled_plan(graph, H200).groups
    assert group.lowering == "triton"
    assert group.config is not None


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("planes", [False, True])
def test_one_tap_is_a_product_of_the_pixel(planes: bool, stride: int) -> None:
    graph = convolution(48, 64, 1, stride, silu=True, planes=planes)
    (group,) = modelled_plan(graph, H200).groups
    assert group.lowering == "triton"
    assert not is_multiplied(convolution(48, 64, 1, stride, multiplied=16))


@pytest.mark.parametrize(
    "graph",
    [
        convolution(384, 14, 7, silu=True, planes=True),
        convolution(384, 14, 7, silu=True, dtype="float32"),
        convolution(384, 17, 7, silu=True),
    ],
    ids=["planes", "float32", "no neighbours"],
)
def test_what_was_not_timed_is_left_to_the_vendor(graph: Graph) -> None:
    assert not any(map(convolves, operations(graph)))


def test_pixels_are_stored_before_they_are_summed() -> None:
    graph = convolution(384, 14, 7, silu=True, mean=True)
    with_it, apart = sorted(operations(graph), key=convolves, reverse=True)
    assert convolves(with_it)
    assert "aten.mean.dim" not in with_it
    assert "aten.mean.dim" in apart


def test_a_result_in_planes_is_copied_there() -> None:
    """As a store of the convolution's kernel each pixel would be one of two bytes."""
    convolution_alone, copy = operations(convolution(384, 14, 7, copied=True))
    assert convolves(convolution_alone)
    assert copy == ["aten.clone.default"]


def test_pixels_are_not_computed_again_under_every_tap() -> None:
    for each in operations(convolution(384, 14, 7, before=True)):
        assert not convolves(each) or "aten.exp.default" not in each


def test_a_convolution_of_many_neighbours_is_no_operand_of_a_loop() -> None:
    """All neighbours and weights are loaded at once: it spilled 2,500 bytes a thread."""
    (apart,) = modelled_plan(convolution(64, 128, 3, silu=True), H200).groups
    best = next(iter(space_of(convolution(64, 128, 3, silu=True, multiplied=32), H200).ranked(1)))
    assert apart.predicted is not None
    assert best[1].seconds > apart.predicted


@pytest.mark.parametrize("channels, seconds", [(0, 1.0), (16, 6.0)])
def test_a_product_of_a_convolution_takes_longer_than_the_model_says(
    monkeypatch: pytest.MonkeyPatch, channels: int, seconds: float
) -> None:
    """The first block of MobileNetV2 took nine times as long as one kernel."""
    monkeypatch.setattr(pricing, "has_nest", lambda part: None)
    monkeypatch.setattr(pricing, "modelled_s", lambda part, device: 1.0)
    monkeypatch.setattr(pricing, "spares", lambda part: False)
    graph = convolution(32, 112, 3, silu=True, multiplied=channels)
    part = GroupContent.of(graph, tuple(n.id for n in graph.nodes if not is_input(n)))
    assert pricing.price_s(part, H200, single=False) == seconds


def operations(graph: Graph) -> list[list[str]]:
    """Of the groups of the model's plan, but for those that ATen runs."""
    return [[graph.nodes[n].op for n in g.nodes] for g in modelled_plan(graph, H200).groups]


def convolves(operations: list[str]) -> bool:
    return "aten.convolution.default" in operations


def loads(graph: Graph, node: int) -> list[Load]:
    """Those of one input."""
    nest = schedule(graph, NATURAL)
    assert isinstance(nest, Nest), nest
    kinds = (v.kind for v in nest.values)
    return [kind for kind in kinds if isinstance(kind, Load) and kind.input == node]


@pytest.mark.parametrize("planes", [False, True])
def test_neighbours_load_the_pixels_that_they_share_once(planes: bool) -> None:
    """In planes seven neighbours, and three more pixels at both ends of each of seven columns; of
    fourteen in a row the pixels that there are."""
    graph = convolution(8, 14, 7, planes=planes)
    image, weight, _ = graph.inputs
    assert len(loads(graph, image)) == 7 * (13 if planes else 14)
    assert len(loads(graph, weight)) == 49


def test_the_model_counts_an_unrolled_image_once() -> None:
    graph = convolution(384, 14, 7)
    found = space_of(graph, H200)
    assert isinstance(found, Space), found
    top = found.top()
    assert top is not None
    _, cost = top
    image = BATCH * 384 * 14 * 14 * 2
    assert cost.hbm_bytes == pytest.approx(2 * image, rel=0.02)
    # Triton 3.6 and 3.7 give such kernels 128 to 168 registers; none spills.
    assert 120 <= cost.registers <= 180
    assert cost.spill_bytes == 0


def test_the_model_counts_the_rows_that_a_step_passes_over() -> None:
    """Other taps read them."""
    found = space_of(convolution(96, 112, 3, 2), H200)
    assert isinstance(found, Space), found
    image = BATCH * 96 * 112 * 112 * 2
    assert found.ranked(1)[0][1].hbm_bytes == pytest.approx(1.25 * image, rel=0.02)
