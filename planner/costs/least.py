"""The time that a device needs at least for a graph or a group, whatever the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.graph import Graph, Node, Ref
from ..graph.ops import Contraction, bound, is_convolution, row
from ..groups.needs import inputs_read_whole
from ..trace.precision import product_dtypes
from .depthwise import convolution_work
from .device import DeviceProfile
from .vendor_products import vendor_rate, vendor_s, vendor_work


@dataclass(frozen=True, slots=True)
class Least:
    """The bound that the device cannot go below, by the model: every input that is needed as a
    whole is read once and every result written once at the device's bandwidth (bytes_s), all matrix
    products and convolutions at the vendor's rate (products_s; by the model some products that fill
    the device evenly are faster, and count as that), one launch. seconds: the longer of the two,
    and the launch."""

    nbytes: int
    flops: float
    bytes_s: float
    products_s: float
    launch_s: float
    seconds: float


def least(part: Graph, device: DeviceProfile) -> Least:
    """Of a graph, or of a group as a graph of its own."""
    ends = dict.fromkeys([*inputs_read_whole(part), *(o for o in part.outputs if o is not None)])
    nbytes = sum(t.nbytes for t in (part.nodes[n].type for n in ends) if t)
    works = [work for node in part.nodes if (work := _work(part, node, device)) is not None]
    bytes_s = nbytes / device.bandwidth
    products_s = sum(seconds for _, seconds in works)
    return Least(
        nbytes,
        sum(flops for flops, _ in works),
        bytes_s,
        products_s,
        device.launch_s,
        device.launch_s + max(bytes_s, products_s),
    )


def _work(part: Graph, node: Node, device: DeviceProfile) -> tuple[float, float] | None:
    """Floating-point operations and their seconds; None where there is no product."""
    if isinstance(kind := row(node), Contraction):
        flops, rate = vendor_work(part, node.id, device)
        alone_s = vendor_s(part, node.id, device) - device.launch_s
        # Of float32 that was 16 bits, or will be, a kernel multiplies no more than is in it.
        left, right = (bound(node)[name] for name in (kind.left, kind.right))
        assert isinstance(left, Ref)
        assert isinstance(right, Ref)
        dtype, precision = product_dtypes(part, node, left.node, right.node)
        rate = max(rate, vendor_rate(dtype, device, precision == "tf32"))
        return flops, min(flops / rate, max(0.0, alone_s))
    work = convolution_work(part, node.id, device) if is_convolution(node) else None
    return None if work is None else (work[0], work[0] / work[1])
