"""The width of a kernel's indices: 32 bits, or 64 where a tensor or an axis is too long."""

from __future__ import annotations

from ..graph.graph import TensorType
from ..memo import by_identity
from ..nests.nest import Nest

INT32_LIMIT = 2**31 - 1
MOST_LANES = 2**20
"""Elements of a tile; Triton takes no more."""


@by_identity(256)
def needs_int64(nest: Nest) -> bool:
    """Whether offsets and indices of a kernel may not fit into 32 bits."""
    accesses = [*nest.loads.values(), *nest.stores.values()]
    if any(_span(access.type) > INT32_LIMIT for access in accesses):
        return True
    # What is broadcast may have many elements though no tensor has: the last block of an axis
    # reaches past its end.
    return any(axis.extent > INT32_LIMIT - MOST_LANES for axis in nest.axes)


def _span(tensor: TensorType) -> int:
    return sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)
