"""The progress of a tune in a notebook: a bar of the time, and lines below it."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from types import TracebackType
from typing import Any, Self

from ...terminal import duration, escaped
from ..trial.outcome import Candidate
from .progress import TrialDone

_FORMAT = "{desc} |{bar}| {n:.0f} of {total:.0f} s{postfix}"
_TICK_S = 0.5


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel" in sys.modules


class NotebookBar:
    """A bar by tqdm: a widget where ipywidgets is installed, else text. A context manager.
    seconds: of the whole tune. A thread moves the bar on while nothing is reported."""

    def __init__(self, seconds: float) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that ipywidgets is missing: the bar is text then
            from tqdm.auto import tqdm

        self._bar: Any = tqdm(total=seconds, bar_format=_FORMAT, desc="tune", leave=True)
        self._seconds = seconds
        self._started = time.monotonic()
        self._trials = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="notebook-bar", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._show()
        self._bar.close()

    def phase(self, name: str, text: str) -> None:
        self._bar.set_description_str(escaped(f"{name}: {text}" if text else name), refresh=False)

    def trial(self, done: TrialDone) -> None:
        self._trials += 1
        told = f"trial {self._trials}, best so far of {done.name} {duration(done.best_s)}"
        self._bar.set_postfix_str(escaped(told), refresh=False)

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        self._bar.write(escaped(f"group {group}: {best}, {duration(seconds)}"))

    def note(self, text: str) -> None:
        self._bar.write(escaped(f"note: {text}"))

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._show()

    def _show(self) -> None:
        self._bar.n = min(time.monotonic() - self._started, self._seconds)
        self._bar.refresh()
