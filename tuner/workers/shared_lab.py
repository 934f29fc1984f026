"""One lab for all graphs of a model: to start its processes takes seconds, for each graph anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from .lab import Lab, WorkerLab


class ReleasingLab(Lab, Protocol):
    """A lab that can let go of what it keeps on the device."""

    def release(self) -> None: ...


class SharedLab:
    """Opens a lab for the first who asks, with that one's options, and gives it to all who ask
    later, one after the other. It is closed with the stack."""

    def __init__(
        self,
        stack: ExitStack,
        make: Callable[..., AbstractContextManager[ReleasingLab]] = WorkerLab,
    ) -> None:
        self._stack, self._make = stack, make
        self._lab: ReleasingLab | None = None

    @contextmanager
    def __call__(self, *args: Any, **options: Any) -> Iterator[Lab]:
        if self._lab is None:
            self._lab = self._stack.enter_context(self._make(*args, **options))
        try:
            yield self._lab
        finally:
            # What comes next is timed in this process, and may need the device's memory.
            self._lab.release()
