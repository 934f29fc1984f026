"""Refusals, which are values, and the planner's exceptions, each with its exit code.

The list of all codes, with what each means, is in `cli/errors.py`. A store's exceptions have theirs
in `db/errors.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

MORE_MEMORY = "give a smaller batch, or end what else runs on the device"
"""The way out where the device's memory is full."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a group, a nest or a config is not possible. A value: refusing is normal
    work."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"

    def error(self) -> Refused:
        """A new exception that carries it."""
        return Refused(self.rule, self.reason)


class Refused(Exception):
    """Carries a `Refusal` out of a deep construction to the function that returns it."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.refusal = Refusal(rule, reason)


class FusionplanError(Exception):
    """The base of all errors that a user can act on. The text names the thing and the way out."""

    exit_code = 1


class ModelError(FusionplanError):
    """The model cannot be read, imported or run, or its inputs are wrong."""

    exit_code = 3


class DeviceError(FusionplanError):
    """There is no such device or target, or the device cannot do what was asked."""

    exit_code = 4


class PlanError(FusionplanError):
    """A plan is missing, or does not fit the graph it is meant for."""

    exit_code = 5


class BundleError(FusionplanError):
    """The file is no bundle, or no key that the user trusts signed it, or a key cannot be used."""

    exit_code = 8


_SHOWN = 1000
"""Characters of a line: some libraries print their data in one."""


def line_of(error: BaseException, which: int = 0) -> str:
    """The first line of an error's message that is not empty, or the last (-1); the name of its
    type where it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[which][:_SHOWN] if lines else type(error).__name__


def summary_of(error: BaseException, which: int = 0) -> str:
    """The type of an error with that line of its message."""
    name, line = type(error).__name__, line_of(error, which)
    return name if line == name else f"{name}: {line}"
