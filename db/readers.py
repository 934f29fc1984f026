"""Stores that are kept open for reading: a model of a hundred graphs opens its store once.

A process keeps a few. A store whose file is another by now is opened again; one that cannot be
opened is not asked for again for a while, so that it costs a model one wait and not one a graph.
"""

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from . import sqlite_file
from .errors import StoreError
from .location import StorePlace, resolve
from .store import Store

MOST = 8
AGAIN_S = 10.0
"""Seconds until a store that could not be opened or read is asked again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What an error said. The error itself is not kept: its traceback holds the frames of all who
    called, and so the tensors of the user's own."""

    kind: type[StoreError]
    text: str


@dataclass(frozen=True, slots=True)
class _Kept:
    """A store, or why there is none, since when, and for which file."""

    found: Store | _Failure
    since: float
    file: tuple[int, int] | None


_KEPT: OrderedDict[tuple[int, str], _Kept] = OrderedDict()
_LOCK = threading.Lock()


def reader(location: str | Path | None = None) -> Store:
    """The store at the location, open for reading; not to be closed by whoever asks. Raises
    StoreError."""
    place = resolve(location)
    # A connection is not to cross a fork: the child opens its own.
    key = (os.getpid(), place.url.render_as_string(hide_password=False))
    with _LOCK:
        kept, file = _KEPT.pop(key, None), _file(place)
        if kept is None or not _holds(kept, file):
            if kept is not None and isinstance(kept.found, Store):
                kept.found.close()
            kept = _Kept(_opened(location), time.monotonic(), file)
        _KEPT[key] = kept
        while len(_KEPT) > MOST:
            (process, _), oldest = _KEPT.popitem(last=False)
            if process == os.getpid() and isinstance(oldest.found, Store):
                oldest.found.close()
    if isinstance(kept.found, _Failure):
        raise kept.found.kind(kept.found.text)
    return kept.found


def failed(location: str | Path | None, error: StoreError) -> None:
    """What was asked of the reader ended so: for a while nobody asks it again."""
    try:
        place = resolve(location)
    except StoreError:
        return
    key = (os.getpid(), place.url.render_as_string(hide_password=False))
    with _LOCK:
        kept = _KEPT.pop(key, None)
        if kept is not None and isinstance(kept.found, Store):
            kept.found.close()
        _KEPT[key] = _Kept(_failure(error), time.monotonic(), _file(place))


def _opened(location: str | Path | None) -> Store | _Failure:
    try:
        return Store.open(location, create=False, read_only=True)
    except StoreError as error:
        return _failure(error)


def _failure(error: StoreError) -> _Failure:
    return _Failure(type(error), str(error))


def _holds(kept: _Kept, file: tuple[int, int] | None) -> bool:
    if kept.file != file:
        return False
    return isinstance(kept.found, Store) or time.monotonic() - kept.since < AGAIN_S


def _file(place: StorePlace) -> tuple[int, int] | None:
    return None if place.path is None else sqlite_file.identity(place.path)
