"""Loads of two axes that are one row in memory, as text (`tiles.passes.join_short_rows`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..nests.linear_forms import Access
from ..tiles.blocks import TileDims
from .text import Text


@dataclass(frozen=True, slots=True)
class JoinedRow:
    """Two axes of a tile as one. Without any, all is written as it is."""

    text: Text
    axes: tuple[int, int] | None

    @property
    def name(self) -> str:
        """The name of the index along it."""
        return "_".join(self.text.blocks.nest.axes[axis].name for axis in self.axes or ())

    @property
    def index(self) -> str:
        outer, inner = (self.text.blocks.sizes[axis] for axis in self.axes or ())
        return f"tl.arange(0, {outer * inner})"

    def dims(self, dims: TileDims) -> TileDims:
        """The dimensions of what is loaded: the inner axis stands for both."""
        return dims if self.axes is None else tuple(d for d in dims if d != self.axes[0])

    def pointer(
        self, buffer: str, access: Access, dims: TileDims, places: Sequence[str] = ()
    ) -> str:
        """An address; see `Text.pointer`."""
        if self.axes is None:
            return self.text.pointer(buffer, access, dims, places)
        outer, inner = self.axes
        terms = tuple(term for term in access.offset.terms if term.axis != outer)
        row = replace(access, offset=replace(access.offset, terms=terms))
        pointer = self.text.pointer(buffer, row, self.dims(dims))
        name = self.text.blocks.nest.axes[inner].name
        return re.sub(rf"\b{name}\b", self.name, pointer)

    def apart(self, text: str, dims: TileDims) -> str:
        """A loaded tile, along both axes again."""
        return text if self.axes is None else f"tl.reshape({text}, {self.text.shape(dims)})"
