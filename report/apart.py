"""The bytes of a group's ends, and of a graph's operations by themselves."""

from __future__ import annotations

from ..planner.costs import depthwise
from ..planner.costs.device import DeviceProfile
from ..planner.costs.vendor_products import vendor_s
from ..planner.graph.graph import Graph, Node
from ..planner.graph.ops import Contraction, Depthwise, Lookup, is_compute, is_free, is_input, row
from ..planner.groups.needs import inputs_read_whole


def ends_bytes(part: Graph) -> int:
    """Bytes of the inputs and the results of a group, each once; of what is read in part or by
    index, no more than there are results."""
    whole, outputs = inputs_read_whole(part), dict.fromkeys(part.outputs)
    given = [(n, part.nodes[n].type) for n in part.inputs if n not in outputs]
    made = [part.nodes[n].type for n in outputs if n is not None]
    written = sum(t.nbytes for t in made if t)
    read = sum(t.nbytes if n in whole else min(t.nbytes, written) for n, t in given if t)
    return read + written


def apart(graph: Graph, device: DeviceProfile) -> tuple[int, float]:
    """Bytes and seconds of all operations of a graph that do work, one after the other and each by
    itself: products by the vendor, every other at the speed of memory, none that the model does
    not know."""
    nbytes, seconds = 0, 0.0
    for node in graph.nodes:
        if is_input(node) or is_free(node):
            continue
        own = _node_bytes(graph, node)
        nbytes += own
        if isinstance(row(node), Contraction):
            seconds += vendor_s(graph, node.id, device)
        elif isinstance(row(node), Depthwise):
            seconds += depthwise.vendor_s(graph, node.id, device)
        elif is_compute(node):
            seconds += device.stream_s(own)
    return nbytes, seconds


def _node_bytes(graph: Graph, node: Node) -> int:
    """Read and written; of what is read by index, no more than there are results."""
    written = node.type.nbytes if node.type else 0
    read = [graph.nodes[i].type for i in node.inputs]
    if isinstance(row(node), Lookup):
        return written + sum(min(t.nbytes, written) for t in read if t)
    return written + sum(t.nbytes for t in read if t)
