"""Index expressions, masks and shapes of a nest under given block sizes, as Triton text."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..errors import Refused
from ..graph import TensorType
from ..nest import Access, Affine, Nest, Role, TileAxis

INT32_LIMIT = 2**31 - 1


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def block_size(axis: TileAxis, config: Config) -> int:
    """Elements of an axis in one tile: all of a held axis, else the config's, never more than
    cover it. Raises Refused when the config names no block for the axis."""
    if axis.role is Role.HELD:
        return power_of_two(axis.extent)
    try:
        return min(config.block(axis.name), power_of_two(axis.extent))
    except KeyError:
        raise Refused("config", f"no block size for axis {axis.name}") from None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Blocks of a nest's axes and what follows from them.

    An axis with block 1 is a scalar and no dimension of the tiles; every other axis is one
    dimension, in order, and a value that does not depend on it has size 1 there.
    """

    nest: Nest
    blocks: tuple[int, ...]
    wide: bool

    @staticmethod
    def of(nest: Nest, config: Config) -> Tiles:
        blocks = tuple(block_size(axis, config) for axis in nest.axes)
        accesses = [*nest.loads.values(), *nest.stores.values()]
        wide = any(_span(access.type) > INT32_LIMIT for access in accesses)
        return Tiles(nest, blocks, wide)

    @property
    def dims(self) -> tuple[int, ...]:
        """The axes that are dimensions of the tiles."""
        return tuple(i for i, block in enumerate(self.blocks) if block > 1)

    def dim(self, axis: int) -> int:
        return self.dims.index(axis)

    def shape(self, live: frozenset[int]) -> str:
        return "[" + ", ".join(str(self.blocks[d] if d in live else 1) for d in self.dims) + "]"

    def count(self, axis: int) -> int:
        """Blocks along an axis."""
        return -(-self.nest.axes[axis].extent // self.blocks[axis])

    def is_ragged(self, axis: int) -> bool:
        return self.nest.axes[axis].extent % self.blocks[axis] != 0

    def spread(self, axis: int) -> str:
        """The subscript that puts a vector along `axis` into its dimension."""
        if len(self.dims) == 1:
            return ""
        return "[" + ", ".join(":" if d == axis else "None" for d in self.dims) + "]"

    def affine(self, form: Affine) -> str:
        parts = []
        for term in form.terms:
            text = self.nest.axes[term.axis].name
            if term.div > 1:
                text = f"{text} // {term.div}"
            if term.mod:
                text = f"({text}) % {term.mod}" if term.div > 1 else f"{text} % {term.mod}"
            if term.scale != 1:
                text = (
                    f"({text}) * {term.scale}"
                    if term.div > 1 or term.mod
                    else f"{text} * {term.scale}"
                )
            parts.append(text)
        if form.base or not parts:
            parts.append(str(form.base))
        return " + ".join(parts)

    def pointer(self, buffer: str, access: Access) -> str:
        text = self.affine(access.offset)
        return buffer if text == "0" else f"{buffer} + ({text})"

    def masks(self, access: Access) -> list[str]:
        """Conditions under which the access is in bounds; none when it always is."""
        conditions = [
            f"{self.nest.axes[a].name}_in" for a in sorted(access.axes) if self.is_ragged(a)
        ]
        for index, limit in access.guards:
            text = self.affine(index)
            least, most = self._range(index)
            conditions += [f"({text} >= 0)"] * (least < 0) + [f"({text} < {limit})"] * (
                most >= limit
            )
        return conditions

    def _range(self, form: Affine) -> tuple[int, int]:
        """The least and the greatest value of a form over the nest's extents."""
        ends = [form.base, form.base]
        for term in form.terms:
            whole = -(-self.nest.axes[term.axis].extent // term.div)
            span = term.scale * ((term.mod or whole) - 1)
            ends[span > 0] += span
        return ends[0], ends[1]


def _span(tensor: TensorType) -> int:
    return sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)
