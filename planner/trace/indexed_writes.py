"""Writing by index: a store whose address has a term that a value gives.

The target must be an input of the group. No program of a kernel knows what another has written: who
reads the target after the write takes what is written at its one place from the value itself, and
the rest from memory, where it is as it was. Where several places are written, others read after the
group alone. As in eager a negative index counts from the end, and one outside ends the process with
an error.
"""

from __future__ import annotations

from collections.abc import Generator

from ..errors import Refused
from ..graph.graph import Graph, Node, Ref, TensorType
from ..graph.op import Op
from ..graph.ops import IndexedWrite, Lookup, bound, is_input, row
from ..values.values import At, Dims, Index, Windows, compute, place
from .indexed_loads import index_values, picks, wrapped_index
from .views import Reader, Request, TracedValue, TraceSteps


def refuse_readers(group: Graph) -> None:
    """Raises Refused where an operation of the group reads what another writes by index at several
    places."""
    for node in group.nodes:
        for source in node.inputs:
            write = group.nodes[source]
            if isinstance(row(write), IndexedWrite) and single_place(group, write) is None:
                raise Refused("indexed", f"{node.name} reads what the kernel writes by index")


def single_place(group: Graph, node: Node) -> tuple[int, int] | None:
    """The dimension along which a write by index has one place, and the node that names it; None
    where there are several places, or indices along several dimensions."""
    write = row(node)
    assert isinstance(write, IndexedWrite)
    index = bound(node)[write.index]
    assert isinstance(index, tuple)
    found = [(d, i.node) for d, i in enumerate(index) if isinstance(i, Ref)]
    kinds = [group.nodes[named].type for _, named in found]
    return found[0] if [k and k.shape for k in kinds] == [(1,)] else None


def target_of(group: Graph, node: Node) -> int | None:
    """The tensor that an operation writes into by index; None of another operation."""
    write = row(node)
    if not isinstance(write, IndexedWrite):
        return None
    target = bound(node)[write.target]
    assert isinstance(target, Ref)
    return target.node


def nbytes_given(group: Graph, node: Node) -> int:
    """Bytes of a node's result, or at most those that it writes by index of its target."""
    write = row(node)
    if isinstance(write, IndexedWrite):
        values = bound(node)[write.values]
        assert isinstance(values, Ref)
        node = group.nodes[values.node]
    return 0 if node.type is None else node.type.nbytes


def indexed_write(
    reader: Reader, node: Node, write: IndexedWrite
) -> Generator[Request, TracedValue, tuple[int, Dims, TensorType]]:
    """The value that is stored, with its places; its dimensions, and the type of what is written.
    Raises Refused where the target is computed by the same kernel, or the index is no integer."""
    named = bound(node)
    source, target = named[write.values], named[write.target]
    assert isinstance(source, Ref)
    assert isinstance(target, Ref)
    if not is_input(reader.group.nodes[target.node]) or node.type is None:
        raise Refused("indexed", f"{node.name} writes by index into what the kernel computes")
    memory = reader.type(target.node)
    chosen = picks(reader, node, Lookup(write.target, write.index))
    assert chosen.first is not None
    first, taken = chosen.first, dict(chosen.indices)
    indices, along = yield from index_values(reader, node, chosen, (None,) * len(memory.shape))
    rest = [d for d in range(len(memory.shape)) if d not in taken]
    kept = reader.fresh(tuple(memory.shape[d] for d in rest), (None,) * len(rest))
    sizes = [memory.shape[d] for d in rest]
    strides = [memory.stride[d] for d in rest]
    extents = [reader.space.size(factors) for factors in along]
    sizes[first:first], strides[first:first] = extents, [0] * len(along)
    dims = (*kept[:first], *along, *kept[first:])
    value, own = yield from reader.operand(source.node, tuple(sizes), (None,) * len(sizes))
    for mine, other in zip(own, dims, strict=True):
        if mine and other:
            reader.space.unify(mine, other)
    at = []
    for number, (dim, index) in zip(indices, chosen.indices, strict=True):
        number = wrapped_index(reader, number, memory.shape[dim], index)
        at.append(At(number, memory.stride[dim], memory.shape[dim]))
    written = TensorType(tuple(sizes), tuple(strides), memory.dtype)
    kind = place(reader.values[value], at)
    return reader.add(kind, dims, memory.dtype, node)[0], dims, written


def after_write(reader: Reader, node: Node, write: IndexedWrite, windows: Windows) -> TraceSteps:
    """A tensor after a write at one place: what is written there, and elsewhere what lies in
    memory. Raises Refused where a part of it is read."""
    if any(windows):
        raise Refused("window", f"{node.name} is written by index and read through a slice")
    named = bound(node)
    source, target = named[write.values], named[write.target]
    single = single_place(reader.group, node)
    assert isinstance(source, Ref)
    assert isinstance(target, Ref)
    assert single is not None, "writes at several places have no readers"
    dim, index = single
    memory = reader.type(target.node)
    old, dims = yield target.node, (None,) * len(memory.shape)
    number, _ = yield index, (None,)
    number = wrapped_index(reader, number, memory.shape[dim], index)
    sizes = tuple(1 if d == dim else n for d, n in enumerate(memory.shape))
    new, own = yield from reader.operand(source.node, sizes, (None,) * len(sizes))
    for mine, other in zip(own, dims, strict=True):
        if mine and other:
            reader.space.unify(mine, other)
    along = reader.add(Index(dims[dim], 0, 1), (dims[dim],), "int64", node)[0]
    here = compute(Op.EQ, "int64", self=Ref(along), other=Ref(number))
    met = reader.add(here, (dims[dim],), "bool", node)[0]
    dtype = reader.values[old].dtype
    kind = compute(Op.WHERE, dtype, condition=Ref(met), self=Ref(new), other=Ref(old))
    return reader.add(kind, dims, memory.dtype, node)
