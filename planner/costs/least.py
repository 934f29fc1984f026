"""The time that a device needs at least for a graph or a group, whatever the kernels."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
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
    products and convolutions at the vendor's rate (products_s; of a whole graph what they pass on
    counts too), one launch. seconds: the longer of the two, and the launch."""

    nbytes: int
    flops: float
    bytes_s: float
    products_s: float
    launch_s: float
    seconds: float


def least(group: Graph, device: DeviceProfile) -> Least:
    """Of a group as a graph of its own, all of which one kernel may hold. By the model some
    products that fill the device evenly are faster than the vendor's rate, and count as that."""
    works = _works(group, device)
    seconds = {
        n: min(flops / rate, _alone_s(group, n, device)) for n, (flops, rate) in works.items()
    }
    return _least(group, device, works, seconds)


def least_of_whole(graph: Graph, device: DeviceProfile) -> Least:
    """Of a whole graph, if each of its products and convolutions is a kernel, with all that is
    between them a part of one: each takes its operations at the vendor's rate, or `passed_bytes`
    at the bandwidth, whichever is longer."""
    works = _works(graph, device)
    passed = passed_bytes(graph, tuple(works))
    seconds = {
        node: max(flops / rate, passed[node] / device.bandwidth)
        for node, (flops, rate) in works.items()
    }
    return _least(graph, device, works, seconds)


def _least(
    part: Graph,
    device: DeviceProfile,
    works: Mapping[int, tuple[float, float]],
    seconds: Mapping[int, float],
) -> Least:
    ends = dict.fromkeys([*inputs_read_whole(part), *(o for o in part.outputs if o is not None)])
    nbytes = sum(_nbytes(part, node) for node in ends)
    bytes_s, products_s = nbytes / device.bandwidth, sum(seconds.values())
    return Least(
        nbytes,
        sum(flops for flops, _ in works.values()),
        bytes_s,
        products_s,
        device.launch_s,
        device.launch_s + max(bytes_s, products_s),
    )


def passed_bytes(part: Graph, products: Sequence[int]) -> dict[int, int]:
    """The bytes that each product of a graph reads of what is computed from other products, and
    writes for others. What one product makes for one other alone, and is larger than what the two
    read and make, does not count, such as the scores of attention: one kernel may hold both.
    products: in the order of the graph."""
    before, after = _between(part, products)
    sizes = {node: _nbytes(part, node) for node in products}
    inner = {node for node in products if _is_held(part, node, after[node])}
    found = {}
    for node in products:
        read = 0
        for operand in part.nodes[node].inputs:
            earlier = before[operand]
            if earlier and not inner.intersection(earlier):
                # Of an expanded or padded operand no more than what was made is new.
                read += min(_nbytes(part, operand), sum(sizes[e] for e in earlier))
        writes = after[node] and node not in inner
        found[node] = read + (sizes[node] if writes else 0)
    return found


def _between(
    part: Graph, products: Sequence[int]
) -> tuple[list[frozenset[int]], dict[int, set[int]]]:
    """For each node the products of which it is computed without another one between, itself where
    it is one; and for each product those that come next after it."""
    before: list[frozenset[int]] = []
    after: dict[int, set[int]] = {node: set() for node in products}
    for node in part.nodes:
        sources = frozenset().union(*(before[i] for i in node.inputs))
        if node.id in after:
            for source in sources:
                after[source].add(node.id)
            sources = frozenset((node.id,))
        before.append(sources)
    return before, after


def _is_held(part: Graph, node: int, after: Collection[int]) -> bool:
    """Whether what a product makes is for one other alone, and larger than what the first of the
    two reads and the second makes."""
    if len(after) != 1:
        return False
    read = sum(_nbytes(part, operand) for operand in part.nodes[node].inputs)
    return _nbytes(part, node) > read + sum(_nbytes(part, later) for later in after)


def _nbytes(part: Graph, node: int) -> int:
    kind = part.nodes[node].type
    return kind.nbytes if kind else 0


def _works(part: Graph, device: DeviceProfile) -> dict[int, tuple[float, float]]:
    """The floating-point operations of each product and convolution, and their rate."""
    return {n.id: work for n in part.nodes if (work := _work(part, n, device)) is not None}


def _work(part: Graph, node: Node, device: DeviceProfile) -> tuple[float, float] | None:
    if isinstance(kind := row(node), Contraction):
        flops, rate = vendor_work(part, node.id, device)
        # Of float32 that was 16 bits, or will be, a kernel multiplies no more than is in it.
        left, right = (bound(node)[name] for name in (kind.left, kind.right))
        assert isinstance(left, Ref)
        assert isinstance(right, Ref)
        dtype, precision = product_dtypes(part, node, left.node, right.node)
        return flops, max(rate, vendor_rate(dtype, device, precision == "tf32"))
    return convolution_work(part, node.id, device) if is_convolution(node) else None


def _alone_s(part: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds of the vendor's product without the launch; of a convolution nothing is known."""
    if not isinstance(row(part.nodes[node]), Contraction):
        return math.inf
    return max(0.0, vendor_s(part, node, device) - device.launch_s)
