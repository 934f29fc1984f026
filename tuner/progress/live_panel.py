"""The progress of a tune in a terminal: a live panel, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...terminal import data_console, duration
from ..trial.outcome import Candidate, Timed, name_of
from .notebook_bar import NotebookBar, is_notebook
from .progress import Logged, Progress, Silent, TrialDone

_BAR = 24
"""Columns of the bar."""


@contextmanager
def reporting(progress: Progress | bool | None, seconds: float) -> Iterator[Progress]:
    """Report what a tune of so many seconds does: to the log, and to `progress`. None: a bar in a
    notebook, a panel where stderr is a terminal, else nothing. True: a bar in a notebook, else a
    panel, or lines where stderr is no terminal. False: nothing."""
    if progress is None:
        progress = sys.stderr.isatty() or is_notebook()
    if progress is True:
        shown = NotebookBar(seconds) if is_notebook() else _on_stderr(seconds)
        with shown as live:
            yield Logged(live)
    else:
        yield Logged(progress or Silent())


def _on_stderr(seconds: float) -> LiveProgress:
    return LiveProgress(data_console(sys.stderr), seconds)


class LiveProgress:
    """Draws on stderr, at most eight times a second; a context manager. seconds: of the whole
    tune, by which it shows how far it is."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = seconds
        self._started = self._phase_began = time.monotonic()
        self._phase, self._text = "start", "loading torch and the compiler"
        self._last: TrialDone | None = None
        self._trials = 0
        self._reused = 0
        self._failures: Counter[str] = Counter()
        # Last: it asks for the view at once.
        self._live = Live(
            console=console, get_renderable=self._view, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def phase(self, name: str, text: str) -> None:
        self._phase, self._text = name, text
        self._phase_began = time.monotonic()
        if not self._console.is_terminal:
            self._say(f"{name}: {text}" if text else name)

    def trial(self, done: TrialDone) -> None:
        self._last = done
        self._trials += 1
        self._reused += done.reused
        if not isinstance(done.outcome, Timed):
            self._failures[name_of(done.outcome)] += 1

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        self._say(f"group {group}: {best}, {duration(seconds)}")

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _view(self) -> Group:
        now = time.monotonic()
        spent = now - self._started
        bar = ProgressBar(total=self._seconds, completed=min(spent, self._seconds), width=_BAR)
        head = Table.grid(padding=(0, 1))
        head.add_row(bar, Text(_left(spent, self._seconds), no_wrap=True))
        lines = [Text.assemble((self._phase, "bold"), f" {self._text}", (self._took(now), "dim"))]
        last = self._last
        if last is not None:
            done = f"trial {last.number} of {last.of}; {self._trials} in all"
            if self._reused:
                done += f", {self._reused} known from the store"
            lines.append(Text(f"{last.name}: {done}"))
            lines.append(Text(f"best so far {duration(last.best_s)}", style="green"))
        if self._failures:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self._failures.most_common())
            lines.append(Text(f"failures: {kinds}", style="yellow"))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(head, *lines)

    def _took(self, now: float) -> str:
        seconds = now - self._phase_began
        return f"  {seconds:.0f} s" if seconds >= 1 else ""


def _left(spent: float, seconds: float) -> str:
    left = seconds - spent
    if left <= 0:
        return f"{spent:.0f} s, {-left:.0f} over: the last step"
    return f"{spent:.0f} of {seconds:.0f} s, at most {left:.0f} s left"
