"""Turns on the device: candidates are measured while torch.compile compiles in this process, which
times kernels on the same device to choose among them. Whoever times holds the turn.
"""

from __future__ import annotations

import fcntl
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..measure.turns import current_gpu_turn

Turn = AbstractContextManager[Any]


class SharedTurn:
    """A turn that processes take by a lock on a file. One thread of one process holds it, as often
    as it likes."""

    def __init__(self, path: Path) -> None:
        self._thread, self._held = threading.RLock(), 0
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        self._thread.acquire()
        if not self._held:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._held += 1

    def __exit__(self, *error: object) -> None:
        self._held -= 1
        if not self._held:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._thread.release()


@contextmanager
def timed_in_turn(turn: Turn, runs: bool = False) -> Iterator[None]:
    """In the block, what Inductor times it times while it holds the turn: a kernel of its own by
    one config, and all choices for a product. runs: so are its calls of a compiled graph. Other
    tunes that share the GPU do not time meanwhile (see `measure.turns`)."""
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    places: list[tuple[type, str]] = [
        (CachingAutotuner, "bench"),
        (AlgorithmSelectorCache, "benchmark_choices"),
        *([(CompiledFxGraph, "__call__")] if runs else []),
    ]
    before = [(owner, name, inspect.getattr_static(owner, name)) for owner, name in places]
    for owner, name, given in before:
        setattr(owner, name, _in_turn(given, turn))
    try:
        yield
    finally:
        for owner, name, given in before:
            setattr(owner, name, given)


def _in_turn(given: Any, turn: Turn) -> Any:
    """A method, or a class method, that holds the turn while it runs."""
    function = given.__func__ if isinstance(given, classmethod) else given

    @functools.wraps(function)
    def held(*args: Any, **kwargs: Any) -> Any:
        with turn, current_gpu_turn():
            return function(*args, **kwargs)

    return classmethod(held) if isinstance(given, classmethod) else held


_LATER_S = 1e9


class Stop:
    """A clock by which all time is over once `set` was called."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._over = clock, threading.Event()

    def set(self) -> None:
        self._over.set()

    def is_set(self) -> bool:
        return self._over.is_set()

    def __call__(self) -> float:
        # A finite number: differences of two times stay numbers.
        return self._clock() + (_LATER_S if self._over.is_set() else 0.0)


LOOK_S = 0.2
"""Seconds between looks at a thread that is waited for, so that Ctrl-C is answered."""


def side_by_side(
    work: Callable[[], None],
    here: Callable[[], None],
    stop: Stop,
    end_here: Callable[[], None] = lambda: None,
) -> None:
    """Run `work` in a thread while `here` runs in this one; both are over afterwards. Whatever
    either raises, Ctrl-C too, sets `stop`, which ends the work by its clock, and is raised here:
    the work's own before the other's. end_here: called in the thread where the work has failed."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            raised.append(error)
            stop.set()
            end_here()

    thread = threading.Thread(target=run, name="search")
    thread.start()
    try:
        here()
        _wait(thread)
    except BaseException:
        stop.set()
        _wait(thread)
        raise
    finally:
        if raised:
            raise raised[0]


def _wait(thread: threading.Thread) -> None:
    while thread.is_alive():
        thread.join(LOOK_S)
