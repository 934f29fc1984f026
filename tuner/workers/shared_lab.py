"""One lab for all graphs of a model, because starting its processes takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from .lab import Lab, WorkerLab


class SharedLab:
    """Opens a lab for the first who asks, with that one's options, and gives it to all who ask
    later, one after the other. It is closed with the stack."""

    def __init__(
        self,
        stack: ExitStack,
        make: Callable[..., AbstractContextManager[Lab]] = WorkerLab,
    ) -> None:
        self._stack, self._make = stack, make
        self._lab: Lab | None = None

    def begin(self, *args: Any, **options: Any) -> Lab:
        """Open it, unless it is: its processes start while this one has other work."""
        if self._lab is None:
            self._lab = self._stack.enter_context(self._make(*args, **options))
        return self._lab

    def close(self) -> None:
        """End it before the stack does."""
        self._stack.close()

    @contextmanager
    def __call__(self, *args: Any, **options: Any) -> Iterator[Lab]:
        lab = self.begin(*args, **options)
        try:
            yield lab
        finally:
            # What comes next is timed in this process, and may need the device's memory.
            lab.release()
