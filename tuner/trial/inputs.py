"""Inputs for a group, made from their types alone: ordinary and adversarial.

A data set is named, so that a failure can say on which it happened. Storage is exactly as large
as the strides ask for, so that a tool that watches memory sees a read beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...planner.graph.graph import Graph, TensorType, refs
from ...planner.graph.ops import IndexedWrite, Lookup, bound, row

_DIVIDES = ("remainder", "fmod", "floor_divide", "div.Tensor_mode")


def _normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def _large(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, generator) * 1e4


def _tiny(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, generator) * 1e-6


def _masked(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """-inf here and there, every fifth row all of it, as masks of attention make them."""
    values = _normal(shape, generator)
    if not shape or 0 in shape:
        return values
    hit = torch.rand(shape, generator=generator, device=generator.device) < 0.25
    values.masked_fill_(hit, float("-inf"))
    if len(shape) > 1:
        values.view(-1, shape[-1])[2::5] = float("-inf")
    return values


def _constant(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Each row one number: no variance, and every element is the maximum."""
    return (
        _normal([*shape[:-1], 1], generator).expand(*shape) if shape else _normal(shape, generator)
    )


def _zeros(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape, device=generator.device)


DATA_SETS: dict[str, Callable[[Sequence[int], torch.Generator], torch.Tensor]] = {
    "random": _normal,
    "masked": _masked,
    "large": _large,
    "tiny": _tiny,
    "constant": _constant,
    "zeros": _zeros,
}
"""By name; "random" first: it is the one that is timed."""


def make(graph: Graph, data_set: str, device: torch.device, seed: int) -> list[torch.Tensor]:
    """One tensor for each input of the graph, in order; equal seeds give equal values.

    Raises ValueError for an input that is no single tensor.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    fill = DATA_SETS[data_set]
    within = places(graph)
    positive = any(word in node.op for node in graph.nodes for word in _DIVIDES)
    made = []
    for node in graph.inputs:
        kind = graph.nodes[node].type
        if kind is None:
            raise ValueError(f"input {graph.nodes[node].name} is no single tensor")
        low, high = within.get(node, (1 if positive else -8, 9))
        made.append(
            _tensor(kind, _whole(low, high) if node in within else fill, generator, low, high)
        )
    return made


def _whole(low: int, high: int) -> Callable[[Sequence[int], torch.Generator], torch.Tensor]:
    """Whole numbers for an input of floats."""

    def fill(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        return torch.randint(
            low, high, shape, generator=generator, device=generator.device, dtype=torch.float32
        )

    return fill


def places(graph: Graph) -> dict[int, tuple[int, int]]:
    """By input of which an index is computed, values that stay inside the tensor it is an index of,
    where little is added to them or taken off: the second quarter, shared by all such inputs."""
    found: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        kind = row(node)
        if not isinstance(kind, (Lookup, IndexedWrite)):
            continue
        named = bound(node)
        (source,), index = refs(named[kind.source]), named[kind.index]
        several, place = isinstance(index, tuple), 0
        shape = (t := graph.nodes[source].type) and t.shape
        for one in index if isinstance(index, tuple) else (index,):
            dim = place if several else named.get("dim", 0)
            size = shape[dim] if shape and isinstance(dim, int) else 1
            kinds = [graph.nodes[r].type for r in refs(one)]
            # A mask stands for all its dimensions.
            place += next((len(t.shape) for t in kinds if t and t.dtype == "bool"), 1)
            inputs = _numbers(graph, set(refs(one)))
            for each in inputs:
                low = size // (4 * len(inputs))
                high = max(low + 1, size // (2 * len(inputs)))
                found[each] = min(found.get(each, (low, high)), (low, high))
    return found


def _numbers(graph: Graph, nodes: set[int]) -> list[int]:
    """The inputs, but booleans, that the nodes are computed from. What a comparison or a place of
    the largest was computed from does not count: it is inside whatever that was."""
    for node in reversed(graph.nodes):
        numeric = node.type is not None and node.type.dtype != "bool"
        if node.id in nodes and numeric and ".argm" not in node.op:
            nodes.update(node.inputs)
    inputs = (graph.nodes[n] for n in graph.inputs if n in nodes)
    return [n.id for n in inputs if n.type is not None and n.type.dtype != "bool"]


def empty(kind: TensorType, device: torch.device) -> torch.Tensor:
    """A tensor of that type in storage of exactly its size."""
    return torch.empty_strided(
        kind.shape, kind.stride, dtype=getattr(torch, kind.dtype), device=device
    )


def _tensor(
    kind: TensorType,
    fill: Callable[[Sequence[int], torch.Generator], torch.Tensor],
    generator: torch.Generator,
    low: int,
    high: int,
) -> torch.Tensor:
    tensor = empty(kind, generator.device)
    dtype = tensor.dtype
    # What lies between the strides is never read: poison, so that it shows when it is.
    poison(tensor)
    # An expanded dimension is one element in memory: write it once.
    distinct = tensor
    for dim, stride in enumerate(kind.stride):
        if stride == 0 and kind.shape[dim] > 1:
            distinct = distinct.narrow(dim, 0, 1)
    if dtype.is_floating_point:
        values = fill(distinct.shape, generator)
        limit = torch.finfo(dtype).max
        if limit < 1e5:  # float16 and smaller: a large value must not be infinite by itself
            values = torch.where(values.isinf(), values, values.clamp(-limit, limit))
    elif dtype is torch.bool:
        values = torch.randint(0, 2, distinct.shape, generator=generator, device=generator.device)
    else:
        limits = torch.iinfo(dtype)
        high = min(high, limits.max + 1)
        low = max(limits.min, min(low, high - 1))
        shape, device = distinct.shape, generator.device
        values = torch.randint(low, high, shape, generator=generator, device=device)
    distinct.copy_(values)
    return tensor


POISON, OTHER_POISON = 0xFF, 0x5A
"""Bytes that outputs hold before they are written. The first is NaN in every float and no bool,
but -1 in an integer, which a kernel may well have written: only the second tells."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def poison(tensor: torch.Tensor, byte: int = POISON) -> None:
    """Fill the whole storage with a byte."""
    storage = tensor.untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    raw.fill_(byte)


def is_poison(tensor: torch.Tensor, byte: int = POISON) -> torch.Tensor:
    """Which elements still have the bytes that `poison` wrote."""
    size = tensor.element_size()
    if size not in _WORDS:
        return is_poison(torch.view_as_real(tensor), byte).all(-1)
    word = int.from_bytes(bytes([byte]) * size, "little", signed=size > 1)
    found: torch.Tensor = tensor.contiguous().view(_WORDS[size]) == word
    return found


def unwritten(
    actual: Sequence[torch.Tensor], again: Callable[[int], Sequence[torch.Tensor]]
) -> str | None:
    """Which elements nobody wrote, or None. actual: outputs, written over `POISON`. again: gives
    them once more, written over another byte."""
    marks = [is_poison(one) for one in actual]
    if not any(bool(mark.any()) for mark in marks):
        return None
    both = zip(marks, again(OTHER_POISON), strict=True)
    for index, (mark, tensor) in enumerate(both):
        left = int((mark & is_poison(tensor, OTHER_POISON)).sum())
        if left:
            return f"output {index}: {left} of {tensor.numel()} elements were not written"
    return None


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at an address that is no multiple of 16, one element into its storage."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    room = 1 + (size if tensor.numel() else 0)
    storage = torch.empty(room, dtype=tensor.dtype, device=tensor.device)
    found = storage.as_strided(tensor.shape, tensor.stride(), 1)
    if tensor.numel():
        source = tensor.as_strided((size,), (1,), tensor.storage_offset())
        storage[1:].copy_(source)
    return found
