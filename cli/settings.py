"""Settings: option over PLANNER_* variable over configuration file.

One table says it all: each row makes the option of its name, its variable, its key in the file and
its line in the documentation. The file is planner.toml in the working folder, else [tool.planner]
in its pyproject.toml; what it says goes to the commands as the defaults of their options.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..tuner.session.effort import EFFORTS
from .errors import UsageError

_EFFORTS = "; ".join(f"{name}: {a.trials} trials, {a.seconds:g} s" for name, a in EFFORTS.items())


@dataclass(frozen=True, slots=True)
class Setting:
    """kinds: the types that TOML may give it. example: a value as TOML writes it. choices: all
    values that it may have, where they are few. least: the smallest number allowed."""

    name: str
    kinds: tuple[type, ...]
    metavar: str
    example: str
    help: str
    choices: tuple[str, ...] = ()
    least: int | None = None

    @property
    def variable(self) -> str:
        return f"PLANNER_{self.name.upper()}"

    def option(self) -> Any:
        """What typer makes the option of."""
        return typer.Option(
            f"--{self.name}",
            envvar=self.variable,
            metavar=self.metavar,
            help=self.help,
            min=self.least,
            show_default=False,
        )

    def check(self, value: Any) -> None:
        """Raises UsageError for a value from the configuration file that is not possible."""
        if not isinstance(value, self.kinds) or isinstance(value, bool):
            raise UsageError(f"{self.name} = {value!r}: give a value like {self.example}")
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.name} = {value!r}: give one of {', '.join(self.choices)}")


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "store",
            (str,),
            "PATH",
            '"plans.db"',
            "Path or database URL of the store. Default: a file in the user's data folder.",
        ),
        Setting(
            "trials",
            (int,),
            "N",
            "64",
            "The maximum number of kernels to try for each graph.",
            least=1,
        ),
        Setting(
            "seconds",
            (int, float),
            "S",
            "180",
            "The maximum time of the whole tune, in seconds.",
        ),
        Setting(
            "effort",
            (str,),
            "NAME",
            '"quick"',
            f"How long to search ({_EFFORTS}). --trials and --seconds replace these limits.",
            tuple(EFFORTS),
        ),
        Setting("device", (str,), "NAME", '"cuda:0"', "The device to use: cuda, cuda:N or cpu."),
        Setting(
            "target",
            (str,),
            "GPU",
            '"h200"',
            "Plan for this GPU by the cost model: h200, h100, a100, b200, l4 or rtx4090. It need "
            "not be in this machine. Nothing is measured.",
        ),
    )
}


OTHER_VARIABLES = (
    "PLANNER_CAPTURE",
    "PLANNER_DEBUG",
    "PLANNER_LOGS",
    "PLANNER_PROFILE",
    "PLANNER_PYTHON",
    "PLANNER_TRUSTED_KEYS",
    "PLANNER_TURNS",
)
"""Of planner, its scripts and the library, besides those of settings."""


def odd_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each variable that is named as one of planner's and is none: it may be a slip.
    It is no error, for another program may have it."""
    known = [*(setting.variable for setting in SETTINGS.values()), *OTHER_VARIABLES]
    odd = sorted(n for n in names if n.startswith("PLANNER_") and n not in known)
    return [
        f"{name} is not a variable that planner reads{meant(name, known)}"
        for name in odd
        if not name.startswith("PLANNER_TEST_")
    ]


def meant(word: str, known: Iterable[str]) -> str:
    """What was meant by a word that is not known, as the end of a clause; nothing where no known
    one is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def defaults(folder: Path, commands: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The defaults of each command by option, from the folder's configuration file; a command
    leaves out what it has no option for. Raises UsageError for a file that is no TOML, an unknown
    name, or a value that is not possible."""
    file, table = _table(folder)
    for name, value in table.items():
        if name not in SETTINGS:
            raise UsageError(
                f"{file}: unknown setting {name!r}{meant(name, SETTINGS)}; settings are "
                f"{', '.join(SETTINGS)}"
            )
        try:
            SETTINGS[name].check(value)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error
    return {command: dict(table) for command in commands} if table else {}


def _table(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The file that counts, and our table in it (empty where there is none)."""
    own, shared = folder / "planner.toml", folder / "pyproject.toml"
    if own.is_file():
        return own, _toml(own)
    tools = _toml(shared).get("tool", {}) if shared.is_file() else {}
    table = tools.get("planner", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{shared}: tool.planner must be a table of settings")
    return shared, table


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
