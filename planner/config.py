"""The config of a group: the layout of its nests and the numbers of its kernels, which the tuner
chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

Positive = Annotated[int, Field(ge=1)]
Tiling = Literal["natural", "flat"]
ReductionLayout = Literal["held", "loop", "nested"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Decides the nests of a group: how its grid is tiled and how its reductions are walked.

    tiling    "natural" keeps an axis apart where some access needs it apart; "flat" merges all
              grid axes into one and recovers the parts by division.
    reduction "held": the reduced axes lie whole in one tile; "loop": the longest of them is walked
              in blocks; "nested": each of them is, one loop inside the other.
    split     parts into which a reduction is cut over the grid (1: not cut).
    """

    tiling: Tiling = "natural"
    reduction: ReductionLayout = "held"
    split: Positive = 1

    @property
    def name(self) -> str:
        """As the search space and explanations have it: "flat", "loop", "loop/16"."""
        base = self.tiling if self.holds else self.reduction
        return base if self.split == 1 else f"{base}/{self.split}"

    @property
    def is_flat(self) -> bool:
        return self.tiling == "flat"

    @property
    def holds(self) -> bool:
        """Whether what is reduced lies whole in one tile."""
        return self.reduction == "held"

    @property
    def is_nested(self) -> bool:
        """Whether one loop stands within another."""
        return self.reduction == "nested"

    @property
    def loops_once(self) -> bool:
        """Whether one axis is walked in blocks."""
        return self.reduction == "loop"


NATURAL, FLAT = Layout(), Layout("flat")
LOOP, NESTED = Layout(reduction="loop"), Layout(reduction="nested")


@dataclass(frozen=True, slots=True)
class Config:
    """`blocks` gives the block size of every tiled axis by name (`("x0", 128)`); of a held axis
    that varies, how many elements its tile has at least.

    tiling, reduction, split: of the layout, as stored data has it.
    eviction  hints to the cache: "first": what is touched once is evicted first; "last": what is
              read again, in a later sweep or kernel, at another offset or by other blocks, is
              evicted last; "both".
    group     blocks of the last grid axis but one that go together before the last axis moves on,
              so that blocks which run at the same time share their operands (1: none).
    programs  of a persistent grid: each walks every programs-th block (0: one for each block).
    flatten   the outer of two loops is run as one with the inner, so that the loads of its next
              turn begin before this turn's end.
    widen     blocks that a sweep which folds nothing takes at once: it has no state to keep, and a
              load that comes after a store in the text waits for it.
    anywhere  rows of a length that varies are taken to begin anywhere also where 16 divides it, so
              that one kernel is for all lengths.
    subtiles  parts of a tile's columns in which what follows a matrix product is done (1: at once).
    access    how operands of matrix products are read: by "pointer" or by "descriptor".
    """

    blocks: tuple[tuple[str, Positive], ...]
    num_warps: Positive = 4
    num_stages: Positive = 2
    tiling: Tiling = "natural"
    reduction: ReductionLayout = "held"
    split: Positive = 1
    eviction: Literal["none", "first", "last", "both"] = "none"
    group: Positive = 1
    programs: Annotated[int, Field(ge=0)] = 0
    flatten: bool = False
    access: Literal["pointer", "descriptor"] = "pointer"
    subtiles: Positive = 1
    widen: Positive = 1
    anywhere: bool = False

    @property
    def layout(self) -> Layout:
        """The layout of the nests that these are the numbers of."""
        return Layout(self.tiling, self.reduction, self.split)

    def block(self, axis: str) -> int:
        """The block size of an axis. Raises KeyError for an axis the config does not name."""
        return dict(self.blocks)[axis]

    def __str__(self) -> str:
        parts = [f"{axis}={size}" for axis, size in self.blocks]
        parts += [f"warps={self.num_warps}", f"stages={self.num_stages}", self.reduction]
        parts += ["flat"] * (self.tiling == "flat") + [f"split={self.split}"] * (self.split > 1)
        parts += [f"evict={self.eviction}"] * (self.eviction != "none")
        parts += [f"group={self.group}"] * (self.group > 1)
        parts += [f"programs={self.programs}"] * (self.programs > 0)
        parts += ["flat loops"] * self.flatten + ["descriptors"] * (self.access == "descriptor")
        parts += [f"subtiles={self.subtiles}"] * (self.subtiles > 1)
        parts += [f"widen={self.widen}"] * (self.widen > 1) + ["any length"] * self.anywhere
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class SizeSplit:
    """Two ways to run a group whose sizes vary. axis: the place of the size that decides, among
    those of the group's inputs from which the others follow (`varying.sizes_of`); most: the
    largest size at which it runs by `below`."""

    axis: Annotated[int, Field(ge=0)]
    most: Positive
    below: SizeSplit | MultipleSplit | Config
    above: SizeSplit | MultipleSplit | Config


@dataclass(frozen=True, slots=True)
class MultipleSplit:
    """Two ways to run a group whose sizes vary, by whether one of them is a multiple of a number:
    rows of such a length all begin at the start of a vector, others begin anywhere. axis: as
    above; of: the number."""

    axis: Annotated[int, Field(ge=0)]
    of: Positive
    multiples: SizeSplit | MultipleSplit | Config
    others: SizeSplit | MultipleSplit | Config


SizeTree: TypeAlias = SizeSplit | MultipleSplit | Config
"""The config of a group by the sizes at hand."""


def leaf(tree: SizeTree, sizes: Sequence[int]) -> Config:
    """The config at these sizes. Raises IndexError where the tree asks for more of them."""
    while not isinstance(tree, Config):
        if isinstance(tree, SizeSplit):
            tree = tree.below if sizes[tree.axis] <= tree.most else tree.above
        else:
            tree = tree.others if sizes[tree.axis] % tree.of else tree.multiples
    return tree


def branches(tree: SizeTree, at: tuple[str, ...] = ()) -> Iterator[tuple[str, Config]]:
    """Each config of the tree, with the sizes at which it runs in words: `size 0 up to 512`."""
    if isinstance(tree, Config):
        yield ", ".join(at) or "all sizes", tree
        return
    if isinstance(tree, SizeSplit):
        yield from branches(tree.below, (*at, f"size {tree.axis} up to {tree.most}"))
        yield from branches(tree.above, (*at, f"size {tree.axis} above {tree.most}"))
    else:
        yield from branches(tree.multiples, (*at, f"size {tree.axis} a multiple of {tree.of}"))
        yield from branches(tree.others, (*at, f"size {tree.axis} no multiple of {tree.of}"))
