"""The files of graphs that were opened before: each is written whole, by the digest of all that it
follows from, in the folder of Triton's machine code.

The first line says what the second is about, and who made it. Graphs that a bundle carries have a
digest that is the same on other machines.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from ...versions import installed

log = logging.getLogger(__name__)

_FOLDER = "fusionplan"
_SUFFIX = ".graph.json"

_FORM = 2
"""Counts up when the files are written in another form."""

_FRESH_S = 24 * 3600.0
"""Seconds after which a file that is read is marked as used, for `collect`."""

_recorded: list[dict[str, str]] = []
"""What is collected; see `recorded`."""


def place(key: str) -> Path:
    return Path(knobs.cache.dir) / _FOLDER / f"{key}{_SUFFIX}"


def read(key: str) -> str:
    """The text that is kept by a key; "" where there is none. Raises ValueError where the first
    line does not belong to the key."""
    file = place(key)
    try:
        head, _, opened = file.read_text().partition("\n")
    except FileNotFoundError:
        return ""
    if json.loads(head) != _head(key, opened):
        raise ValueError("it is for something else, or was changed")
    with suppress(OSError):
        if time.time() - file.stat().st_mtime > _FRESH_S:
            file.touch()
    return opened


def write(key: str, opened: str) -> None:
    file = place(key)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(f"{json.dumps(_head(key, opened))}\n{opened}")
        part.replace(file)
    except OSError as error:
        log.info("a graph is not kept as it was opened: %s", error)
        with suppress(OSError):  # On a full disk what there is of it takes room, too.
            part.unlink()


def collect(is_old: Callable[[float], bool], other_versions: bool, dry_run: bool) -> int:
    """Remove files that were last used at a time which is old, and, if asked for, were made by
    other versions than those installed here; how many these are. Their processes would open their
    graphs again."""
    gone = 0
    for file in sorted((Path(knobs.cache.dir) / _FOLDER).glob(f"*{_SUFFIX}")):
        with suppress(OSError):
            if is_old(file.stat().st_mtime) and not (other_versions and _is_of_ours(file)):
                if not dry_run:
                    file.unlink()
                gone += 1
    return gone


def _is_of_ours(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as opened, suppress(ValueError):
        head = json.loads(opened.readline(1 << 12))
        return isinstance(head, dict) and (head.get("form"), head.get("maker")) == (_FORM, _maker())
    return False


def _head(key: str, opened: str) -> dict[str, Any]:
    found = hashlib.sha256(opened.encode()).hexdigest()
    return {"form": _FORM, "key": key, "sha256": found, "maker": _maker()}


@cache
def _maker() -> str:
    """A digest of the versions that make such graphs, and of the files of ours that do."""
    text = json.dumps([installed(), str(torch.version.git_version), stamp()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """Within it, nothing is read or written: what would be kept is collected, by the digest that
    other machines know it by."""
    found: dict[str, str] = {}
    _recorded.append(found)
    try:
        yield found
    finally:
        _recorded.remove(found)


def recording() -> dict[str, str] | None:
    """The texts that `recorded` collects; None outside of it."""
    return _recorded[-1] if _recorded else None


@cache
def stamp() -> str | None:
    """Size and time of each file of ours that makes graphs; None where they are no files."""
    found = hashlib.sha256()
    for path in _files():
        about = path.stat()
        found.update(f"{_name(path)} {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.hexdigest() if _files() else None


@cache
def contents() -> str:
    """The same on machines with the same files: what is in them."""
    found = hashlib.sha256()
    for path in _files():
        data = path.read_bytes()
        found.update(f"{_name(path)} {len(data)}\n".encode() + data)
    return found.hexdigest()


_ROOT = Path(__file__).parents[2]


def _name(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


@cache
def _files() -> tuple[Path, ...]:
    found = sorted(_ROOT.glob("*.py"))
    for folder in ("capture", "graph", "runtime/dispatch"):
        found += sorted((_ROOT / folder).rglob("*.py"))
    return tuple(found)
