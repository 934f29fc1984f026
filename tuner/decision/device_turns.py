"""Turns on the device: candidates are measured while torch.compile compiles in this process, which
times kernels on the same device to choose among them. Whoever times holds the turn.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from ..measure.fair_lock import FairLock
from ..measure.turns import current_gpu_turn

Turn = AbstractContextManager[Any]


@contextmanager
def timed_in_turn(turn: Turn, runs: bool = False) -> Iterator[None]:
    """In the block, what Inductor times it times while it holds the turn: a kernel of its own by
    one config, and one choice for a product. runs: so are its calls of a compiled graph, but while
    the first of them tunes a kernel others may have the turn in between. Other tunes that share the
    GPU do not time meanwhile (see `measure.turns`)."""
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    places: list[tuple[type, str, Callable[[Any, Turn], Any]]] = [
        (CachingAutotuner, "bench", _in_turn),
        (AlgorithmSelectorCache, "benchmark_choice", _in_turn),
    ]
    if runs:
        places += [
            (CompiledFxGraph, "__call__", _in_turn),
            (CachingAutotuner, "precompile", _out_of_turn),
            (CachingAutotuner, "autotune_to_one_config", _out_of_turn),
            (CachingAutotuner, "coordinate_descent_tuning", _out_of_turn),
        ]
    before = [(owner, name, inspect.getattr_static(owner, name)) for owner, name, _ in places]
    for (owner, name, given), (_, _, changed) in zip(before, places, strict=True):
        setattr(owner, name, changed(given, turn))
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


def _out_of_turn(given: Any, turn: Turn) -> Any:
    """A method during which the thread does not hold the turn, even if it had it before."""

    @functools.wraps(given)
    def free(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            # Both are let go before either is taken again, and that in the order in which all take
            # them: the last one here is the first one then.
            for each in (current_gpu_turn(), turn):
                if isinstance(each, FairLock):
                    stack.enter_context(each.let_go())
            return given(*args, **kwargs)

    return free


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
