"""The folder in which Triton keeps machine code, and another one if that cannot be written.

A cache that cannot be written (a read-only home folder, a full disk, another owner) must not keep a
kernel from being compiled: it is then kept in a folder for temporary files, which all processes of
the user share. Nor must a cache whose files were cut short, as a loss of power leaves them: Triton
would load what is there, and fail at each launch of the kernel.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

from triton import knobs

from ...cures import warn
from ...private_folder import is_private


def keep_elsewhere(error: OSError) -> None:
    """From now on this process keeps machine code in the user's own folder for temporary files.
    Raises the error again where it is kept there already, or where there is no such folder."""
    before, spare = str(knobs.cache.dir), spare_folder()
    if spare is None or before == str(spare):
        raise error
    knobs.cache.dir = str(spare)
    warn(
        "kernel-cache",
        f"kernels cannot be kept in {before} ({error.strerror or error}): they are kept in {spare}",
        stacklevel=3,
    )


def unwritable(error: OSError) -> str:
    """The message when there is no place for machine code."""
    return (
        f"machine code cannot be written to {knobs.cache.dir} ({error.strerror or error}): free "
        "some space, or name another folder with TRITON_CACHE_DIR"
    )


_ELF = struct.Struct("<4sB11x2HI3QI6H")
"""The head of a 64-bit ELF file: magic, class, type, machine, version, entry, the places of the
tables of segments and of sections, flags, and the sizes and counts of both."""

_64_BIT = 2


def is_whole(cubin: bytes | None) -> bool:
    """Whether machine code is there to its end: both tables of the ELF file lie within it. None:
    there is none to be whole."""
    if cubin is None:
        return True
    if len(cubin) < _ELF.size:
        return False
    magic, bits, *_, segments, sections, _, _, size, count, own, many, _ = _ELF.unpack_from(cubin)
    if magic != b"\x7fELF" or bits != _64_BIT:
        return False
    end: int = max(segments + size * count, sections + own * many)
    return end <= len(cubin)


def spare_folder() -> Path | None:
    """A folder for temporary files that nobody else can write to; None where there is none."""
    try:
        folder = Path(tempfile.gettempdir()) / f"fusionplan-kernels-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder):
            return folder
        # Somebody else was there first.
        return Path(tempfile.mkdtemp(prefix="fusionplan-kernels-"))
    except OSError:
        return None
