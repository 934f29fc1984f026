"""Limits of a kernel: configs beyond them never reach the compiler, whatever they would cost.

Their tiles are too large for threads or for shared memory, or they name a way to run that the
kernel has no use for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Config
from ..costs.device import DeviceProfile
from ..costs.tile_cache import once, placed
from ..costs.work import shared_bytes
from ..errors import Refusal
from ..nests.nest import Nest
from ..tiles.passes.choose_access import has_described_access
from ..tiles.passes.split_epilogue import refuse_without_mma
from ..tiles.program import TileProgram
from .layouts import LARGEST_TILE

_MOST_PER_THREAD = 128
_RESERVED = 5 * 1024  # Bytes of shared memory for barriers, and what the driver takes.


def beyond(nests: Sequence[Nest], config: Config, device: DeviceProfile) -> Refusal | None:
    """Why a config of the kernels of a layout is none, if it is none. Raises Refused as well, where
    it does not fit them."""
    for nest in nests:
        refusal = too_large(nest, config, device)
        if refusal is not None:
            return refusal
    if config.access == "descriptor" and not any(
        _has_described_access(placed(nest, config)) for nest in nests
    ):
        return Refusal("descriptor", "no access is a block that a descriptor can copy")
    refuse_without_mma(placed(nests[0], config), config.subtiles)
    return None


def too_large(nest: Nest, config: Config, device: DeviceProfile) -> Refusal | None:
    """Why one kernel is too large for its threads or for an SM, if it is. Raises Refused where the
    config does not fit it."""
    tile = _largest_tile(placed(nest, config))
    if tile > LARGEST_TILE:
        return Refusal("tile", f"a tile of {tile} elements is over {LARGEST_TILE}")
    each = tile / (32 * config.num_warps)
    if each > _MOST_PER_THREAD:
        return Refusal("tile", f"{each:.0f} elements a thread are over {_MOST_PER_THREAD}")
    shared = shared_bytes(nest, config)
    if shared > device.shared_per_sm - _RESERVED:
        return Refusal("shared", f"{shared} bytes of shared memory are more than an SM has")
    return None


@once
def _has_described_access(program: TileProgram) -> bool:
    return has_described_access(program)


@once
def _largest_tile(program: TileProgram) -> int:
    return program.largest_tile()
