"""Choose what the cache should evict first, and what last."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from ...graph.dtypes import itemsize
from ...nests.linear_forms import Access, Role
from ...nests.nest import Nest
from ...values import values
from ..blocks import Blocks
from ..instructions import Hint, Instruction, Loops, SelectedLoad, TileLoad, TileStore, loads_of
from ..program import TileProgram, rewritten, walk


def hint_caches(program: TileProgram, *, eviction: str, again: frozenset[int]) -> TileProgram:
    """The hints that are asked for, of accesses by pointer. again: inputs that a later
    kernel reads."""
    reads = _Reads(program, again)

    def change(each: Instruction, _: Loops, __: Blocks) -> Instruction:
        if isinstance(each, SelectedLoad):
            pieces = tuple(replace(piece, hint=reads.hint(piece)) for piece in each.pieces)
            asked = all(piece.hint and eviction in (piece.hint, "both") for piece in pieces)
            return replace(each, pieces=pieces) if asked else each
        if isinstance(each, TileLoad):
            hint = reads.hint(each)
        elif isinstance(each, TileStore):
            hint = "first"
        else:
            return each
        is_asked = each.via is None and bool(hint) and eviction in (hint, "both")
        return replace(each, hint=hint) if is_asked else each

    return rewritten(program, change)


class _Reads:
    """How often the text has yet to read each input."""

    def __init__(self, program: TileProgram, again: frozenset[int]) -> None:
        nest = program.nest
        self.nest, self.again = nest, again
        every = [v.kind for v in nest.values if isinstance(v.kind, values.Load)]
        self.readers = Counter(load.input for load in every)
        steps = [load for each, _ in walk(program.body) for load in loads_of(each)]
        self.left = Counter(each.input for each in steps)
        self.passes = len(list(nest.loops()))

    def hint(self, load: TileLoad) -> Hint:
        """ "first" for what nothing reads again. "last" for what other blocks, a later sweep or a
        later kernel read, and for reads of the same input again at another offset. "" for the
        first of those reads."""
        number, access = load.input, load.access
        self.left[number] -= 1
        if _is_shared(self.nest, access) or number in self.again:
            return "last"
        if self.readers[number] == 1 or self.passes > 1:
            return "last" if self.left[number] > 0 else "first"
        return "last" if access.guards else ""


def _is_shared(nest: Nest, access: Access) -> bool:
    """Whether other blocks read the same. A held axis that the input lacks reads nothing again."""
    walked = math.prod(
        axis.extent
        for number, axis in enumerate(nest.axes)
        if number in access.axes or axis.role is not Role.HELD
    )
    return access.type.nbytes < walked * itemsize(access.type.dtype)
