"""The events of a tune while it runs. The command line draws them; tests record them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...terminal import duration
from ..trial.outcome import Candidate, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One candidate of one group. number counts from 1 within the group; of: most trials it will
    have. best_s: of the group so far. reused: known from the store, not run again."""

    group: str
    name: str
    number: int
    of: int
    candidate: Candidate
    outcome: Outcome
    predicted_s: float | None
    best_s: float | None
    reused: bool = False


class Progress(Protocol):
    """Receives the progress of a tune. Its methods are called from the thread that tunes. They must
    not raise, and should be quick."""

    def phase(self, name: str, text: str) -> None:
        """A new phase of the work has begun: "capture", "model", "search", "sizes", "verify",
        "contest" or "store". `text` says what is being done."""

    def trial(self, done: TrialDone) -> None:
        """A candidate was tried."""

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        """The search for a group has ended. `seconds` is the time of its best candidate."""

    def note(self, text: str) -> None:
        """Something that the user should know, such as a baseline that failed."""


class Silent:
    """Says nothing."""

    def phase(self, name: str, text: str) -> None:
        pass

    def trial(self, done: TrialDone) -> None:
        pass

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(slots=True)
class RecordedProgress:
    """Keeps all that it is told, in order, as (kind, what)."""

    events: list[tuple[str, Any]] = field(default_factory=list)

    def phase(self, name: str, text: str) -> None:
        self.events.append(("phase", name))

    def trial(self, done: TrialDone) -> None:
        self.events.append(("trial", done))

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        self.events.append(("group", (group, best, seconds)))

    def note(self, text: str) -> None:
        self.events.append(("note", text))

    def of(self, kind: str) -> list[Any]:
        return [what for k, what in self.events if k == kind]


@dataclass(frozen=True, slots=True)
class Logged:
    """Writes all that it is told to the log, and passes it on."""

    progress: Progress

    def phase(self, name: str, text: str) -> None:
        log.info("%s: %s", name, text)
        self.progress.phase(name, text)

    def trial(self, done: TrialDone) -> None:
        log.debug(
            "%s trial %d of %d: %s, %s, predicted %s, best so far %s%s",
            *(done.name, done.number, done.of, done.candidate, done.outcome),
            *(duration(done.predicted_s), duration(done.best_s)),
            ", known from the store" * done.reused,
        )
        self.progress.trial(done)

    def group_done(self, group: str, best: Candidate, seconds: float) -> None:
        log.info("group %s: %s, %s", group, best, duration(seconds))
        self.progress.group_done(group, best, seconds)

    def note(self, text: str) -> None:
        log.info("note: %s", text)
        self.progress.note(text)
