"""Errors as the command line tells them: one line on stderr and a documented exit code."""

from __future__ import annotations

import os
import sys
import traceback

from ..db.errors import PlanNotFound, StoreError
from ..planner.errors import DeviceError, FusionplanError, ModelError, PlanError

OK = 0
INTERNAL = 1
USAGE = 2
MODEL = 3
DEVICE = 4
PLAN = 5
STORE = 6
INTERRUPTED = 130

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (OK, "done"),
    (INTERNAL, "an error inside planner (PLANNER_DEBUG=1 shows where): please report it"),
    (USAGE, "usage: an unknown option, or a value that is not possible"),
    (MODEL, "model: its file, its import, its inputs or its own run failed"),
    (DEVICE, "device: no such device or target, or it cannot do what was asked"),
    (PLAN, "plan: none is found, or it does not fit its graph"),
    (STORE, "store: not writable, damaged, newer or out of reach; it was left as it was"),
    (INTERRUPTED, "interrupted (Ctrl-C): the best so far is kept"),
)
"""Every exit code of `planner` with its meaning."""


class UsageError(FusionplanError):
    """An option, variable or setting has a value that is not possible."""

    exit_code = USAGE


_CODES: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, USAGE),
    (ModelError, MODEL),
    (DeviceError, DEVICE),
    (PlanError, PLAN),
    (PlanNotFound, PLAN),
    (StoreError, STORE),
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that reached the top; the first kind that matches counts."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if _is_parser_error(error):
        return USAGE
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)


def report(error: BaseException) -> int:
    """Tell the error in one line on stderr; with PLANNER_DEBUG=1 its traceback too. Gives the
    exit code."""
    code = exit_code(error)
    if os.environ.get("PLANNER_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print(f"planner: {message(error)}", file=sys.stderr)
    return code


def message(error: BaseException) -> str:
    """One line that says what is wrong and, where we know, what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if _is_parser_error(error):
        return f"{_one_line(error.format_message())} (see planner --help)"  # type: ignore[attr-defined]
    if exit_code(error) != INTERNAL:
        return _one_line(str(error))
    text = _one_line(str(error)) or "no message"
    if isinstance(error, FusionplanError):
        return text
    return (
        f"internal error, {type(error).__name__}: {text}; "
        "please report it with what PLANNER_DEBUG=1 shows"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_parser_error(error: BaseException) -> bool:
    # Typer brings its own copy of click in some versions, so the class has no one place.
    return callable(getattr(error, "format_message", None)) and hasattr(error, "exit_code")
