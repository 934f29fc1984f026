"""Settings: option over PLANNER_* variable over configuration file.

The file is planner.toml in the working folder, else [tool.planner] in its pyproject.toml. Typer
reads options and variables; what the file says goes to it as defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError

_STORED = ("tune", "show", "history", "explain", "accuracy", "calibrate", "doctor")


@dataclass(frozen=True, slots=True)
class Setting:
    """kinds: the types that TOML may give it. commands: those with the option of its name."""

    name: str
    kinds: tuple[type, ...]
    what: str
    commands: tuple[str, ...] = ("tune",)

    @property
    def variable(self) -> str:
        return f"PLANNER_{self.name.upper()}"


SETTINGS = (
    Setting("store", (str,), "a path or database URL", _STORED),
    Setting("trials", (int,), "a whole number"),
    Setting("seconds", (int, float), "a number"),
    Setting("device", (str,), 'a name such as "cuda:0"', ("tune", "calibrate")),
    Setting("target", (str,), 'a name such as "h200"'),
)


def defaults(folder: Path) -> dict[str, dict[str, Any]]:
    """The defaults of each command by option, from the folder's configuration file. Raises
    UsageError for a file that is no TOML, an unknown name, or a value of the wrong type."""
    known = {setting.name: setting for setting in SETTINGS}
    file, table = _table(folder)
    found: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"{file}: unknown setting {name!r}; settings are {', '.join(known)}")
        setting = known[name]
        if not isinstance(value, setting.kinds) or isinstance(value, bool):
            raise UsageError(f"{file}: {name} = {value!r} is not {setting.what}")
        for command in setting.commands:
            found.setdefault(command, {})[name] = value
    return found


def _table(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The file that counts, and our table in it (empty where there is none)."""
    own, shared = folder / "planner.toml", folder / "pyproject.toml"
    if own.is_file():
        return own, _toml(own)
    tools = _toml(shared).get("tool", {}) if shared.is_file() else {}
    table = tools.get("planner", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{shared}: tool.planner is no table")
    return shared, table


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no valid TOML: {error}") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
