"""The outcome of one candidate. A candidate's failure is a value; our own failure is an
exception.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...planner.config import Config
from ...planner.errors import MORE_MEMORY, DeviceError, FusionplanError
from ...planner.lowerings import registry
from ...planner.lowerings.registry import LOWERINGS, REGIONAL, TRITON
from ...planner.plan import LoweringName
from .wire import config_from_json, config_to_json

OutcomeName = Literal["timed", "miscompiled", "wrong", "timed_out", "crashed", "rejected"]


class DeviceLost(DeviceError):
    """The GPU does nothing any more, whatever it is given: what fails on it says nothing of any
    candidate."""

    SAID = "the GPU is lost"
    _TEXT = (
        "{device} does nothing any more ({why}): see `nvidia-smi` and `dmesg`, reset it, and tune "
        "again; what was measured is in the store"
    )

    def __init__(self, device: object, why: str) -> None:
        super().__init__(self._TEXT.format(device=device, why=why))


class DeviceFull(DeviceLost):
    """Something else has taken the GPU's memory: nothing more can be measured on it."""

    SAID = "the GPU's memory is full"
    _TEXT = (
        f"the memory of {{device}} is full ({{why}}): {MORE_MEMORY}, and tune again; what was "
        "measured is in the store"
    )


class TunerError(FusionplanError):
    """The tuner itself failed: a worker does not start, or answers what it should not. An
    internal error (exit code 1): nothing that the user gave is at fault."""


@dataclass(frozen=True, slots=True)
class ProgramResources:
    """Of the hungriest kernel of the program: registers and spill bytes per thread, shared bytes
    per block. compile_s: seconds the compiler took for all kernels."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    compile_s: float


@dataclass(frozen=True, slots=True)
class Timed:
    """seconds: median of `laps` runs; spread_s: their interquartile range. stopped: far slower
    than the incumbent, so only the first runs were made."""

    seconds: float
    spread_s: float
    laps: int
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class _Failed:
    """transient: the cause may lie outside of the candidate (a busy machine, want of memory, a full
    disk), so that it is tried once more, and again in a later run."""

    reason: str
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Miscompiled(_Failed):
    """The compiler gave up, or the device cannot hold the kernel."""


@dataclass(frozen=True, slots=True)
class Wrong(_Failed):
    """It ran and its numbers are not acceptable; `reason` names output and element."""


@dataclass(frozen=True, slots=True)
class TimedOut(_Failed):
    """Killed at the time limit of compilation or of the run."""


@dataclass(frozen=True, slots=True)
class Crashed(_Failed):
    """The process died, or the device reported an error."""


@dataclass(frozen=True, slots=True)
class Rejected(_Failed):
    """Refused before it ran: by lowering, by the model, or for want of memory."""


Failure: TypeAlias = Miscompiled | Wrong | TimedOut | Crashed | Rejected
Outcome: TypeAlias = Timed | Failure

_NAMES: dict[type, OutcomeName] = {
    Timed: "timed",
    Miscompiled: "miscompiled",
    Wrong: "wrong",
    TimedOut: "timed_out",
    Crashed: "crashed",
    Rejected: "rejected",
}
_FAILURES: dict[str, type[Failure]] = {
    "miscompiled": Miscompiled,
    "wrong": Wrong,
    "timed_out": TimedOut,
    "crashed": Crashed,
    "rejected": Rejected,
}


def name_of(outcome: Outcome) -> OutcomeName:
    """The word the store and the wire use."""
    return _NAMES[type(outcome)]


def failure(name: str, reason: str, transient: bool = False) -> Failure:
    """The failure of that word. Raises TunerError for no such word."""
    try:
        return _FAILURES[name](str(reason), bool(transient))
    except (KeyError, TypeError):
        raise TunerError(f"a worker answered with the unknown outcome {name!r}") from None


def is_transient(outcome: Outcome | None) -> bool:
    """Whether the candidate deserves another try."""
    return isinstance(outcome, _Failed) and outcome.transient


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Plain JSON data; `from_json` turns it back."""
    if isinstance(outcome, Timed):
        return {
            "outcome": "timed",
            "seconds": outcome.seconds,
            "spread_s": outcome.spread_s,
            "laps": outcome.laps,
            "stopped": outcome.stopped,
        }
    data: dict[str, Any] = {"outcome": name_of(outcome), "reason": outcome.reason}
    return data | ({"transient": True} if outcome.transient else {})


def from_json(data: Mapping[str, Any]) -> Outcome:
    """Inverse of `to_json`. Raises TunerError on anything else."""
    try:
        if data["outcome"] == "timed":
            seconds, spread_s = float(data["seconds"]), float(data["spread_s"])
            if not (0 <= seconds < math.inf and 0 <= spread_s < math.inf):
                raise ValueError(f"no time: {seconds} s")
            return Timed(seconds, spread_s, int(data["laps"]), bool(data["stopped"]))
        return failure(data["outcome"], data["reason"], data.get("transient", False))
    except (KeyError, TypeError, ValueError) as error:
        text = f"a worker's answer is no outcome ({error!r}): {str(dict(data))[:300]}"
        raise TunerError(text) from error


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a group: a lowering with its config, if it is generated, or its options."""

    lowering: LoweringName
    config: Config | None = None
    options: str = ""

    @staticmethod
    def generated(config: Config) -> Candidate:
        """A kernel of ours."""
        return Candidate(TRITON.name, config)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; what identifies the candidate in the store."""
        data: dict[str, Any] = {"lowering": self.lowering}
        if self.config is not None:
            data |= config_to_json(self.config)
        if self.options:
            data["options"] = self.options
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Candidate:
        """Inverse of `to_json`. Raises ValueError on data that is no candidate."""
        rest = dict(data)
        lowering, options = rest.pop("lowering", None), rest.pop("options", "")
        if lowering not in _ALONE:
            raise ValueError(f"no lowering: {lowering!r}")
        return Candidate(lowering, config_from_json(rest) if rest else None, options)

    def __str__(self) -> str:
        return " ".join(filter(None, [self.lowering, str(self.config or ""), self.options]))


ATEN = Candidate(registry.ATEN.name)
_ALONE = [name for name, lowering in LOWERINGS.items() if lowering not in REGIONAL]
"""Those that are measured by themselves: a region is as fast as its bodies."""
