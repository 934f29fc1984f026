"""Costs of depthwise convolutions: the vendor's, and where those of ours are known."""

from __future__ import annotations

import math

from ..errors import Refused
from ..graph.dtypes import NARROW
from ..graph.graph import Graph, Ref, TensorType
from ..graph.ops import Contraction, Depthwise, View, bound, is_input, row
from ..trace.trace import trace
from .device import DeviceProfile
from .vendor_products import vendor_rate

# Of eight in bfloat16 with channels side by side, of 3 x 3 to 7 x 7 taps and 7 to 56 pixels a row,
# timed on an H200: all within 7% but for the last factor, which makes ours be surely faster.
_ROW, _RESULT = 7.0, 4.6
"""What a row, and a result, cost beside their taps, in taps."""
_SURE = 0.9


def taps_of(graph: Graph, node: int) -> int:
    """Taps of the filters of a depthwise convolution of a graph."""
    kind = _operand(graph, node, "weight")
    return math.prod(kind.shape[2:]) if kind else 0


def vendor_s(graph: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds of the vendor's kernel: that of memory, or of its taps. What was not timed counts as
    if it were as fast as memory."""
    this = graph.nodes[node]
    assert this.type is not None
    moved = sum(t.nbytes for t in (graph.nodes[i].type for i in this.inputs) if t)
    streamed_s = device.stream_s(moved + this.type.nbytes)
    if not is_timed(graph, node):
        return streamed_s
    width, steps = this.type.shape[-1], bound(this)["stride"]
    assert isinstance(steps, tuple)
    step = steps[-1]
    assert isinstance(step, int)
    each = taps_of(graph, node) * (1 + _ROW / width) + _RESULT
    rate = device.depthwise * device.sm_count * device.clock_hz
    return max(streamed_s, _SURE * step * this.type.numel * each / rate)


def convolution_work(graph: Graph, node: int, device: DeviceProfile) -> tuple[float, float] | None:
    """Floating-point operations of a convolution of a graph, and their rate a second: that of the
    vendor's matrix products, or of taps where each channel has a filter of its own. None where the
    type of its image is not known."""
    this, named = graph.nodes[node], bound(graph.nodes[node])
    image, filters = _operand(graph, node, "input"), _operand(graph, node, "weight")
    if this.type is None or image is None or filters is None:
        return None
    # A transposed one spreads each pixel of the image, any other gathers each of the result.
    pixels = image if named["transposed"] else this.type
    flops = 2.0 * pixels.numel * math.prod(filters.shape[1:])
    if filters.shape[1] == 1:
        return flops, 2.0 * device.depthwise * device.sm_count * device.clock_hz
    return flops, vendor_rate(filters.dtype, device)


def is_timed(graph: Graph, node: int) -> bool:
    """Whether it is of a kind of which the vendor's kernels and ours were timed: of 16-bit images
    with their channels side by side."""
    image = _operand(graph, node, "input")
    if image is None or len(image.shape) != 4:
        return False
    return image.dtype in NARROW and image.stride[1] == 1


def is_predicted(group: Graph) -> bool:
    """Whether the model may speak for ours in a group: not for those without neighbours that share
    pixels, which took two to four times as long as it says, nor where pixels are computed first,
    again under every tap, nor where the channels that lie side by side in the image lie apart in a
    result (one in planes took 3.5 times as long: each element is a store of its own). Of one tap a
    convolution is a product of the pixel; beside products of matrices none was timed."""
    convolutions = _of_several_taps(group)
    if any(isinstance(row(node), Contraction) for node in group.nodes):
        convolutions = [n.id for n in group.nodes if isinstance(row(n), Depthwise)]
    if not convolutions:
        return True
    try:
        stores = trace(group).outputs
    except Refused:
        return False
    parts = [output for output in stores if output.part is not None]
    is_unrolled = bool(parts) and all(1 in output.type.stride for output in parts)
    return is_unrolled and all(is_timed(group, n) and _is_loaded(group, n) for n in convolutions)


def is_multiplied(group: Graph) -> bool:
    """Whether a product of a group multiplies what is computed of a depthwise convolution in it."""
    behind = {*_of_several_taps(group)}
    for node in group.nodes:
        if not behind.isdisjoint(node.inputs):
            if isinstance(row(node), Contraction):
                return True
            behind.add(node.id)
    return False


def _of_several_taps(group: Graph) -> list[int]:
    own = (node.id for node in group.nodes if isinstance(row(node), Depthwise))
    return [node for node in own if taps_of(group, node) > 1]


def _is_loaded(group: Graph, node: int) -> bool:
    image = bound(group.nodes[node])["input"]
    assert isinstance(image, Ref)
    source = group.nodes[image.node]
    return is_input(source) or isinstance(row(source), View)


def _operand(graph: Graph, node: int, name: str) -> TensorType | None:
    given = bound(graph.nodes[node])[name]
    assert isinstance(given, Ref)
    return graph.nodes[given.node].type
