"""What `planner tune` shows while it runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..tuner.outcome import Candidate, Timed, name_of
from ..tuner.progress import TrialDone
from . import render


class LiveProgress:
    """Draws on stderr, at most eight times a second; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._phase = self._text = ""
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
        if not self._console.is_terminal:
            self._say(f"{name}: {text}" if text else name)

    def trial(self, done: TrialDone) -> None:
        self._last = done
        self._trials += 1
        self._reused += done.reused
        if not isinstance(done.outcome, Timed):
            self._failures[name_of(done.outcome)] += 1

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        self._say(f"group {group}: {best}, {render.duration(seconds)}")

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _view(self) -> Table:
        view = Table.grid(padding=(0, 2))
        spent = f"{time.monotonic() - self._started:.0f} s"
        view.add_row(Text(self._phase, style="bold"), Text(self._text), Text(spent, style="dim"))
        last = self._last
        if last is not None:
            done = f"trial {last.number} of {last.of}; {self._trials} in all"
            if self._reused:
                done += f", {self._reused} known from the store"
            view.add_row("", Text(f"{last.name}: {done}"))
            view.add_row("", Text(f"best so far {render.duration(last.best_s)}", style="green"))
        if self._failures:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self._failures.most_common())
            view.add_row("", Text(f"failures: {kinds}", style="yellow"))
        return view
