"""Seconds of a matrix product by the vendor's library, which picks a tile for its sizes.

Every SM works on one tile after the other: it multiplies, then writes the results, which is not
hidden behind the next tile's products. So a product takes as many turns as the busiest SM has
tiles, by the tile that is best then. Where tiles are fewer than SMs, several share the summed axis
of one. Fitted to products in bfloat16 on an H200, which tests/planner/costs/test_vendor_tiles.py
holds.
"""

from __future__ import annotations

import math
from functools import lru_cache

from .device import DeviceProfile

_SHAPES = (
    *((64, n) for n in (8, 16, 32, 64, 96, 128)),
    *((128, n) for n in (96, 128, 160, 192, 256)),
    *((192, n) for n in (96, 192)),
    *((256, 96), (256, 160), (320, 128), (384, 96)),
)
TILES = tuple(sorted({*_SHAPES, *((n, m) for m, n in _SHAPES)}))
"""Rows and columns of the tiles that it was seen to pick on Hopper, and of some between them."""

_SPLITS = (1, 2, 4, 8)
_LEAST_SUMMED = 256
"""Terms of a sum that a part of it has at least."""

_RATE = 1.26
"""Times the rate of large products (`DeviceProfile.vendor`) at which an SM multiplies large tiles:
what is written and the SMs that have no tile in the last turn are counted apart."""

_REUSE = 150.0
"""Times that a number is used of those a tile reads, above which nothing waits for them."""


@lru_cache(maxsize=4096)
def tiles_s(
    batches: float, rows: int, columns: int, summed: int, size: int, rate: float, on: DeviceProfile
) -> float:
    """Seconds of `batches` products without their launch, where all that is read comes in time.
    size: bytes of a number; rate: operations per second of the vendor's large products."""
    an_sm = _RATE * rate / on.sm_count
    best = math.inf
    for high, wide in TILES:
        tiles = batches * math.ceil(rows / high) * math.ceil(columns / wide)
        reuse = 2.0 * high * wide / (high + wide)
        multiply_s = 2.0 * high * wide * summed / (an_sm * min(1.0, reuse / _REUSE))
        for parts in _SPLITS:
            if parts > 1 and summed < parts * _LEAST_SUMMED:
                continue
            turns = math.ceil(tiles * parts / on.sm_count)
            stored = high * wide * size * min(tiles * parts, on.sm_count)
            found = turns * (multiply_s / parts + stored / on.bandwidth)
            if parts > 1:
                found += on.waits.join_s + 4 * (parts + 1) * batches * rows * columns / on.bandwidth
            best = min(best, found)
    return best
