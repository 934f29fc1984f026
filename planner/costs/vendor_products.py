"""Products of matrices by the vendor's library: their work, the rate and the seconds at which they
run, and what they ask of their operands' rows.
"""

from __future__ import annotations

import math

from ..graph.dtypes import NARROW, itemsize
from ..graph.graph import Graph, Ref, TensorType
from ..graph.ops import Contraction, bound, row
from ..tiles.passes.swap_mmas import FEW
from .device import DeviceProfile
from .vendor_tiles import tiles_s


def vendor_work(graph: Graph, node: int, device: DeviceProfile) -> tuple[float, float]:
    """Floating-point operations of a contraction of a graph, and the rate a second at which the
    vendor's large products of its type run."""
    this = graph.nodes[node]
    contraction, named = row(this), bound(this)
    assert isinstance(contraction, Contraction)
    assert this.type is not None
    left = graph.nodes[operand(named[contraction.left])].type
    assert left is not None
    tf32 = dict(this.kwargs).get("precision") == "tf32"
    return 2.0 * this.type.numel * left.shape[-1], vendor_rate(left.dtype, device, tf32)


def vendor_rate(dtype: str, device: DeviceProfile, tf32: bool = False) -> float:
    """Floating-point operations a second of the vendor's large products of a type."""
    rate = device.tensor_flops * device.vendor
    if dtype != "float32":
        return rate
    return rate * (0.5 if tf32 else 0.07)


ALIGNED = 16
"""Bytes: the vendor's fast kernels of matrix products read and write rows that start on them."""

_UNALIGNED = {2: 5.0, 4: 3.0, 8: 3.0}
"""Times the work of the vendor's products of 16-bit numbers where rows start on so many bytes.
Timed in bfloat16 on an H200: of 8192 x 1024 x 50257, the rows of the result alone on 2, 7.5; of
4096 x 1024 x 50257, those of an operand too, 5.0; of 8192 x 1024 x 50258 and 50260, and of operands
with rows of 1026 and 1028, 3.0."""


_ONE_ROW = 1.33
"""Times the seconds of a copy of as many bytes that the vendor's product of one row takes. Timed in
bfloat16 on an H200: 1 x 1024 x 50257 takes 38.9 us, 103 MB copied 29.3; 16 rows take 34.0."""


def alignment(tensor: TensorType) -> int:
    """Bytes, at most 16, on which every row of a matrix starts if the first one does."""
    size = itemsize(tensor.dtype)
    steps = [s * size for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1 and s != 1]
    return math.gcd(ALIGNED, *steps)


def unaligned(graph: Graph, node: int) -> float:
    """How many times as long the vendor's product takes for its rows: those of both operands and of
    the result may start anywhere."""
    this, named = graph.nodes[node], bound(graph.nodes[node])
    contraction = row(this)
    assert isinstance(contraction, Contraction)
    sides = (graph.nodes[operand(named[n])].type for n in (contraction.left, contraction.right))
    types = [t for t in (*sides, this.type) if t is not None]
    # Of numbers of 32 bits the fast kernels ask for nothing.
    narrow = this.type is not None and this.type.dtype in NARROW
    return _UNALIGNED.get(min(map(alignment, types)), 1.0) if narrow else 1.0


def vendor_s(graph: Graph, node: int, device: DeviceProfile) -> float:
    """Seconds of the vendor's product for a contraction of a graph."""
    this = graph.nodes[node]
    assert this.type is not None
    work, rate = vendor_work(graph, node, device)
    moved = sum(t.nbytes for t in (graph.nodes[i].type for i in this.inputs) if t)
    moved += this.type.nbytes
    streamed_s = device.stream_s(moved) * (_ONE_ROW if is_stream(graph, node) else 1.0)
    rows, columns = this.type.shape[-2:]
    batches, summed = this.type.numel // (rows * columns), work / (2.0 * this.type.numel)
    size = itemsize(this.type.dtype)
    worked_s = tiles_s(batches, rows, columns, round(summed), size, rate, device)
    return max(streamed_s, device.launch_s + worked_s * unaligned(graph, node))


def is_stream(graph: Graph, node: int) -> bool:
    """Whether a contraction of 16-bit numbers is one row times a matrix, or a matrix times one
    column: there is nothing to it but to read the matrix."""
    kind = graph.nodes[node].type
    return kind is not None and kind.dtype in NARROW and kind.numel == max(kind.shape, default=0)


def is_skinny(graph: Graph, node: int) -> bool:
    """Whether a contraction of 16-bit numbers is a few rows times one matrix."""
    kind = graph.nodes[node].type
    if kind is None or kind.dtype not in NARROW or len(kind.shape) < 2:
        return is_stream(graph, node)
    short, long = sorted(kind.shape[-2:])
    return short <= FEW < long and kind.numel == short * long


def operand(argument: object) -> int:
    """The node that an argument names."""
    assert isinstance(argument, Ref)
    return argument.node
