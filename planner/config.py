"""The numbers of a nest: what the tuner chooses for one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Config:
    """`blocks` gives the block size of every tiled axis by name (`("x0", 128)`).

    tiling    "natural" keeps an axis apart where some access needs it apart; "flat" merges all
              grid axes into one and recovers the parts by division.
    reduction "held": the reduced axes lie whole in one tile; "loop": they are walked in blocks.
    split     parts into which a reduction is cut over the grid (1: not cut).
    eviction  hints to the cache: "first": what is touched once is evicted first; "last": what is
              read again, at another offset or by other blocks, is evicted last.
    """

    blocks: tuple[tuple[str, Positive], ...]
    num_warps: Positive = 4
    num_stages: Positive = 2
    tiling: Literal["natural", "flat"] = "natural"
    reduction: Literal["held", "loop"] = "held"
    split: Positive = 1
    eviction: Literal["none", "first", "last"] = "none"

    def block(self, axis: str) -> int:
        """The block size of an axis. Raises KeyError for an axis the config does not name."""
        return dict(self.blocks)[axis]

    def __str__(self) -> str:
        parts = [f"{axis}={size}" for axis, size in self.blocks]
        parts += [f"warps={self.num_warps}", f"stages={self.num_stages}", self.reduction]
        parts += ["flat"] * (self.tiling == "flat") + [f"split={self.split}"] * (self.split > 1)
        parts += [f"evict={self.eviction}"] * (self.eviction != "none")
        return " ".join(parts)
