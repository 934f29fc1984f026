"""The kernel of a group that does the same to every element, for any number of elements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .codegen.emit import emit
from .codegen.source import Program, Scalar
from .config import NATURAL, Config
from .errors import Refusal
from .graph.graph import Graph
from .graph.sizes import ALIGNED, PROBES, Size, varies
from .lower import kernel_name, rewired, updated
from .nests.group_nests import Schedule, schedule_group
from .nests.linear_forms import Access, Role, Term
from .nests.nest import Nest
from .nests.placement import Evaluate, Item
from .tiles.index_width import needs_int64
from .trace.indexed_writes import target_of
from .values.values import Compute, Literal, Load

ELEMENTS, WARPS = 2048, 4
"""Of a program: 16 elements of each tensor for a thread, 64 bytes of float32 under way at once."""


def flat(group: Graph, *, interpreted: bool = False) -> Program | None:
    """A program of one kernel over all elements as one axis, whose number is the kernel's only
    scalar: groups that differ in their sizes alone have the same text but for comments. None where
    a group has no such kernel: where tensors lie differently, or elements wait for each other."""
    found = schedule_group(group, NATURAL)
    if isinstance(found, Refusal) or not _is_flat(group, found):
        return None
    (kernel,) = found.kernels
    (axis,) = kernel.nest.axes
    number, aligned = axis.extent, axis.extent % ALIGNED == 0
    # The text is that of several programs, however few there are.
    size = Size(2 * ELEMENTS, (0,) * PROBES, ALIGNED if aligned else 1)
    extents = (size, *(1 for _ in axis.extents[1:]))
    nest = replace(
        kernel.nest,
        axes=(replace(axis, extents=extents),),
        body=tuple(sorted(kernel.nest.body, key=partial(_is_behind, kernel.nest))),
    )
    config = Config(((axis.name, ELEMENTS),), num_warps=WARPS, num_stages=1)
    source = emit(nest, config, kernel_name(group), interpreted=interpreted)
    if len(source.scalars) != 1:
        return None
    source = replace(
        source,
        grid=-(-number // ELEMENTS),
        scalars=(Scalar(number, aligned),),
        contracts=group.numerics == "fast",
    )
    first = replace(found, kernels=(replace(kernel, nest=nest),))
    return Program((rewired(source, kernel),), renews=frozenset(updated(first)))


def _is_behind(nest: Nest, item: Item) -> bool:
    """All loads come first: what is loaded behind a store waits for it."""
    return not (isinstance(item, Evaluate) and isinstance(nest.values[item.value].kind, Load))


def _is_flat(group: Graph, found: Schedule) -> bool:
    if len(found.kernels) != 1 or found.temporaries:
        return False
    if any(o is None or target_of(group, group.nodes[o]) is not None for o in group.outputs):
        return False
    nest = found.kernels[0].nest
    if len(nest.axes) != 1 or nest.axes[0].role is not Role.GRID or varies(nest.axes[0].extent):
        return False
    kinds = (value.kind for value in nest.values)
    if needs_int64(nest) or not all(isinstance(k, (Load, Compute, Literal)) for k in kinds):
        return False
    is_alone = all(output.part is None for output in nest.outputs)
    return is_alone and all(map(_is_dense, nest.loads.values())) and _is_stored(nest)


def _is_stored(nest: Nest) -> bool:
    return all(_is_dense(access) and access.axes for access in nest.stores.values())


def _is_dense(access: Access) -> bool:
    """Whether an access is of one element, or of all elements in the order of memory."""
    if access.guards or access.at:
        return False
    terms = access.offset.terms
    return not terms or (terms == (Term(0, 1, 0, 1),) and access.offset.base == 0)
