"""An epilogue in parts: what follows the products of a tile, over some of its columns at a time.

An accumulator of 128 x 256 with an activation behind it does not fit the registers twice. In parts,
only one part's intermediate results are alive beside it, and a descriptor's store stages one part
in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Refused
from ..nests.nest import Nest
from ..nests.placement import Body, Item, Loop, Step, Store
from ..values.values import Fold
from .access import LEAST_DOT, Tiles


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The items of a nest's body behind its last fold; the tile axis that is cut, and the values
    from before that have it; items that lack it are done once."""

    items: Body
    axis: int
    values: tuple[int, ...]
    once: frozenset[Item]


def epilogue(nest: Nest, tiles: Tiles, parts: int) -> Epilogue:
    """What can be done in parts of equal width. Raises Refused where no matrix product comes
    before, or the parts would be too narrow."""
    folds = [i for i, item in enumerate(nest.body) if _is_fold(nest, item)]
    dots = [dot for c in nest.contractions if (dot := tiles.dot(c)) is not None]
    if not dots:
        raise Refused("subtiles", "no product of matrices comes before the epilogue")
    items = nest.body[folds[-1] + 1 :]
    axis = max(dots[-1].m, dots[-1].n)
    if tiles.blocks[axis] < parts * LEAST_DOT:
        name, block = nest.axes[axis].name, tiles.blocks[axis]
        raise Refused("subtiles", f"{name} has blocks of {block}, too few for {parts} parts")
    own = {item.value for item in items if isinstance(item, Step)}
    read = {r for item in items for r in _reads(nest, item)} - own
    values = tuple(sorted(v for v in read if axis in nest.live[v]))
    if not values:
        raise Refused("subtiles", f"the epilogue has no {nest.axes[axis].name}")
    once = frozenset(item for item in items if axis not in _axes(nest, item))
    return Epilogue(items, axis, values, once)


def _is_fold(nest: Nest, item: Item) -> bool:
    if isinstance(item, Step):
        return isinstance(nest.values[item.value].kind, Fold)
    return isinstance(item, Loop)


def _reads(nest: Nest, item: Item) -> tuple[int, ...]:
    if isinstance(item, Store):
        return (nest.outputs[item.output].value,)
    return nest.values[item.value].reads if isinstance(item, Step) else ()


def _axes(nest: Nest, item: Item) -> frozenset[int]:
    if isinstance(item, Store):
        return nest.stores[item.output].axes | nest.live[nest.outputs[item.output].value]
    return nest.live[item.value] if isinstance(item, Step) else frozenset()
