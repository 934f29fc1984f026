"""Errors as the command line tells them: one line on stderr and a documented exit code.

All codes are listed here. An exception has its own as `exit_code`: those of the command line here,
others in `planner/errors.py` and `db/errors.py`.
"""

from __future__ import annotations

import json as encoder
import os
import sys
import traceback

from ..planner.errors import MORE_MEMORY, FusionplanError
from ..terminal import escaped

OK = 0
INTERNAL = 1
USAGE = 2
MODEL = 3
DEVICE = 4
PLAN = 5
STORE = 6
SLOWER = 7
BUNDLE = 8
INTERRUPTED = 130
PIPE = 141

EXIT_CODES: tuple[tuple[int, str, str], ...] = (
    (OK, "ok", "done"),
    (
        INTERNAL,
        "internal",
        "an error of planner itself (PLANNER_DEBUG=1 shows where): please report it",
    ),
    (USAGE, "usage", "an unknown option, or a value that is not allowed"),
    (
        MODEL,
        "model",
        "the model cannot be read or imported, its inputs are wrong, or it fails when it runs",
    ),
    (DEVICE, "device", "there is no such device or target, or it cannot do what was asked"),
    (PLAN, "plan", "no plan was found, or the plan does not fit the graph"),
    (
        STORE,
        "store",
        "the store cannot be written or reached, is damaged, or was written by a newer fusionplan; "
        "it was not changed",
    ),
    (SLOWER, "slower", "the plan is slower than the fastest baseline by more than was allowed"),
    (BUNDLE, "bundle", "altered, damaged, or not signed by a trusted key; nothing of it was used"),
    (INTERRUPTED, "interrupted", "Ctrl-C was pressed; a tune keeps its best result so far"),
    (PIPE, "pipe", "the program that reads the output has ended"),
)
"""Every exit code of `planner` with its name and meaning."""

SCHEMA = 1
"""Of the JSON documents on stdout. It counts up when a field changes its meaning or goes away."""


class UsageError(FusionplanError):
    """An option, variable or setting has a value that is not possible."""

    exit_code = USAGE


class SlowerError(FusionplanError):
    """The plan is slower than the fastest baseline by more than the user allows."""

    exit_code = SLOWER


def exit_code(error: BaseException) -> int:
    """The exit code for an error that reached the top: its own where it has one."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if _is_out_of_memory(error):
        return DEVICE
    code = getattr(error, "exit_code", INTERNAL)
    return code if isinstance(code, int) else INTERNAL


def report(error: BaseException, json: bool = False) -> int:
    """Tell the error in one line on stderr; with PLANNER_DEBUG=1 its traceback too. json: also as
    a document on stdout, for the program that waits for one. Gives the exit code."""
    code = exit_code(error)
    if os.environ.get("PLANNER_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    text = message(error)
    if json:
        name = next((name for known, name, _ in EXIT_CODES if known == code), "internal")
        told = {"code": code, "name": name, "message": text}
        print(encoder.dumps({"schema": SCHEMA, "error": told}, indent=2))
    print(f"planner: {text}", file=sys.stderr)
    return code


def message(error: BaseException) -> str:
    """One line that says what is wrong and, where we know, what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if _is_parser_error(error):
        text = _one_line(error.format_message())  # type: ignore[attr-defined]
        return f"{text.rstrip('.')} (see planner --help)"
    if _is_out_of_memory(error):
        return f"the device's memory is full: {MORE_MEMORY} ({_one_line(str(error))})"
    if exit_code(error) != INTERNAL:
        return _one_line(str(error))
    text = _one_line(str(error)) or "no message"
    if isinstance(error, FusionplanError):
        return text
    return (
        f"internal error, {type(error).__name__}: {text}; "
        "please report it with what PLANNER_DEBUG=1 shows"
    )


def _is_out_of_memory(error: BaseException) -> bool:
    """By its name: torch is not imported to tell an error."""
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))


def _is_parser_error(error: BaseException) -> bool:
    # Typer brings its own copy of click in some versions, so the class has no one place.
    return callable(getattr(error, "format_message", None)) and hasattr(error, "exit_code")
