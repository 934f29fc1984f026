"""Kernels that this user compiled and checked before, found in Triton's cache without its compiler.

Triton names what it keeps by a digest of its own files, which are half a gigabyte: half a second in
each new process. Beside it we keep, by our own digest of a kernel and of what makes it, where the
files that Triton made of it are. Triton's own files are told apart by size and time. Whoever can
write to the cache can change what Triton finds in it as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.compiler import CompiledKernel

from .kernel_cache import is_whole
from .ready import maker

_FOLDER = "fusionplan"


def find(key: str, parsed: Callable[[], Any]) -> Any:
    """Triton's kernel; None where there is none. key: see `ready.code_key`. parsed: gives the
    ASTSource of its text."""
    if not _is_plain():
        return None
    place = _place(key)
    try:
        known = json.loads(place.read_text())
        root = Path(knobs.cache.dir)
        files = {name: str(root / own / name) for own, name in known["files"]}
        if not all(map(os.path.isfile, files.values())):
            return None
        kernel = CompiledKernel(parsed(), files, known["hash"])
        return kernel if is_whole(kernel.asm.get("cubin")) else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
        StopIteration,
    ):
        return None  # It was never there, or is damaged: the kernel is compiled.


def knows(key: str) -> bool:
    """Whether it was noted where the files of a kernel are, or why it does not compile."""
    return _is_plain() and any(_place(each).exists() for each in (key, f"{key} refused"))


def keep(key: str, kernel: Any) -> None:
    """Remember where Triton keeps a kernel that was compiled and checked."""
    if not _is_plain():
        return
    root = Path(knobs.cache.dir)
    files = [Path(path) for path in kernel.metadata_group.values()]
    if not files or any(path.parent.parent != root for path in files):
        return
    _write(key, {"hash": kernel.hash, "files": [[p.parent.name, p.name] for p in files]})


def told(key: str) -> Any:
    """The value that `tell` was given for a key, by the same compiler; None where there is none."""
    if not _is_plain():
        return None
    try:
        return json.loads(_place(key).read_text())
    except (OSError, ValueError):
        return None


def tell(key: str, what: Mapping[str, Any]) -> None:
    """Remember plain data for processes to come, until the compiler is another."""
    if _is_plain():
        _write(key, what)


def _write(key: str, what: Mapping[str, Any]) -> None:
    place = _place(key)
    part = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(what))
        part.replace(place)
    except OSError:
        # The next process asks Triton. On a full disk what there is of it takes room, too.
        with suppress(OSError):
            part.unlink()


def _is_plain() -> bool:
    """Whether Triton would take a kernel from the files of its cache as they are."""
    compilation = knobs.compilation
    unusual = (
        compilation.always_compile,
        compilation.override,
        compilation.dump_ir,
        knobs.runtime.add_stages_inspection_hook,
        knobs.cache.manager_class,
    )
    return not any(unusual)


def _place(key: str) -> Path:
    text = json.dumps([key, maker(), _stamp()], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path(knobs.cache.dir) / _FOLDER / f"{digest}.json"


@cache
def _stamp() -> str:
    """Size and time of each file that Triton digests."""
    root = Path(triton.__file__).parent
    folders = ("compiler", "backends", "language", "runtime")
    files = [path for name in folders for path in sorted((root / name).rglob("*.py"))]
    found = hashlib.sha256()
    for path in [*files, *sorted((root / "_C").glob("libtriton*"))]:
        stat = path.stat()
        found.update(f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return found.hexdigest()
