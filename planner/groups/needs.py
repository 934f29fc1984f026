"""The values that must be read as a whole, whatever the kernel. A lower bound on time may count
them.
"""

from __future__ import annotations

from ..bitsets import bits, bitset
from ..graph.graph import Graph, Node, refs
from ..graph.ops import Depthwise, IndexedWrite, Lookup, bound, row
from ..memo import by_identity
from .group import is_copied


def read_whole(graph: Graph, needed: int) -> tuple[int, ...]:
    """For every node the sources (inputs or other nodes, as bitsets) of which a kernel needs every
    element for it, where every element of the nodes in `needed` is asked for: not those that are
    read as a slice or by index, nor where only such a part is read of the node itself."""
    through: list[int] = []
    for node in graph.nodes:
        own = 0
        for source in _read(node):
            if not is_copied(graph, source):
                own |= 1 << source
            elif not _narrows(graph, source):
                own |= through[source]
        through.append(own)
    found = [0] * len(through)
    for number in reversed(range(len(through))):
        if needed >> number & 1:
            found[number] = through[number]
            needed |= through[number]
    return tuple(found)


@by_identity(64)
def inputs_read_whole(group: Graph) -> tuple[int, ...]:
    """The inputs of a group of which every kernel of it reads every element."""
    outputs = bitset(o for o in group.outputs if o is not None)
    found = outputs
    for own in read_whole(group, outputs):
        found |= own
    return tuple(n for n in bits(found) if n in group.inputs)


def _read(node: Node) -> tuple[int, ...]:
    """The inputs of a node without what a lookup reads by index, or a convolution in steps."""
    kind = row(node)
    if isinstance(kind, Depthwise):
        named = bound(node)
        image, weight, bias = named["input"], named["weight"], named["bias"]
        stride = named["stride"]
        steps = isinstance(stride, tuple) and set(stride) != {1}
        return tuple(refs((weight, bias) if steps else (image, weight, bias)))
    if isinstance(kind, IndexedWrite):
        return tuple(refs((bound(node)[kind.index], bound(node)[kind.values])))
    if not isinstance(kind, Lookup):
        return node.inputs
    return tuple(refs(bound(node)[kind.index]))


def _narrows(graph: Graph, view: int) -> bool:
    """Whether a view may hold fewer elements than what it is of."""
    node = graph.nodes[view]
    held = [graph.nodes[i].type for i in node.inputs]
    own = 0 if node.type is None else node.type.numel
    return any(t is not None and t.numel > own for t in held)
