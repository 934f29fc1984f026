"""docs/commands.md, made from the commands themselves.

python -m fusionplan.cli.reference > docs/commands.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ..logs import AREAS
from .errors import EXIT_CODES, SCHEMA
from .main import COMMANDS, command
from .settings import SETTINGS

_HEAD = f"""\
# Commands

Made from the code by `python -m fusionplan.cli.reference > docs/commands.md`; do not edit.

`planner` and `python -m fusionplan` are the same. `planner COMMAND -h` prints the same text as this
page. After `planner --install-completion` the shell completes commands and options.

Results go to stdout. Everything else goes to stderr. `--json` prints one document on stdout. Its
field `schema` is {SCHEMA}. The number grows when a field changes its meaning or is removed. An
error is one line on stderr. With `--json` it is also a document on stdout: its field `error` has
`code`, `name` and `message`.

Tables fit the terminal. Sentences are wrapped; words and keys are not broken. If a table is too
wide for that, each row is printed as a block of lines. `NO_COLOR=1` prints plain
text."""

_SETTINGS = """\
## Settings

Each can be an option, an environment variable, or a line of the configuration file. If it is given
in several of these places, the first one counts. The file is `planner.toml` in the working folder;
without it, `[tool.planner]` in `pyproject.toml` there.

| option | variable | in the file | meaning |
|---|---|---|---|
{rows}

Four more variables change what a process does:

- `PLANNER_CAPTURE=again` traces every graph anew. Else a process that runs by a stored plan takes
  over what an earlier one traced.
- `PLANNER_DEBUG=1` adds the traceback to an error.
- `PLANNER_PROFILE=launches`: while torch's profiler runs, kernels are launched one by one and not
  as a CUDA graph, so that the profile names each kernel and the lines of the model behind it.
- `PLANNER_TURNS=FOLDER`: several tunes can share one GPU if all are given the same folder. They
  lock files in it, so that only one of them measures at a time."""

_LOGS = """\
## Logs

The library writes to Python's `logging`, under the name `fusionplan`. `PLANNER_LOGS` prints the log
on stderr. `PLANNER_LOGS=tune,plans` prints the messages of two areas; `+tune` adds details, and
`-tune` prints errors only. Areas: {areas}."""


def reference() -> str:
    """The whole document."""
    sections = [_HEAD, _settings(), _logs(), _exit_codes(), *map(_command, COMMANDS)]
    return "\n\n".join(sections) + "\n"


def _settings() -> str:
    rows = (
        f"| `--{s.name}` | `{s.variable}` | `{s.name} = {s.example}` | {_cell(s.help)} |"
        for s in SETTINGS.values()
    )
    return _SETTINGS.format(rows="\n".join(rows))


def _logs() -> str:
    return _LOGS.format(areas=", ".join(f"`{area}` (`{name}`)" for area, name in AREAS.items()))


def _exit_codes() -> str:
    rows = [f"| {code} | {name} | {meaning} |" for code, name, meaning in EXIT_CODES]
    return "\n".join(["## Exit codes", "", "| code | name | meaning |", "|---|---|---|", *rows])


def _command(name: str) -> str:
    made = command(name)
    rows = [f"| `{_cell(left)}` | {_cell(right)} |" for left, right in _parameters(made)]
    about = inspect.cleandoc(made.help or "")
    usage = " ".join(["planner", name, *_arguments(made)])
    lines = [f"## planner {name}", "", f"`{usage}`", "", about, "", "| | |", "|---|---|", *rows]
    return "\n".join(lines)


def _arguments(made: Any) -> Iterator[str]:
    for p in made.params:
        if p.param_type_name == "argument":
            yield p.metavar if p.required or "[" in p.metavar else f"[{p.metavar}]"


def _parameters(made: Any) -> Iterator[tuple[str, str]]:
    for p in made.params:
        if p.param_type_name == "argument":
            yield p.metavar, p.help or ""
            continue
        names = ", ".join(p.opts)
        value = "" if p.is_flag else f" {p.metavar or 'VALUE'}"
        default = (
            "" if p.is_flag or p.default in (None, "", "default") else f" Default: {p.default}."
        )
        yield names + value, (p.help or "") + default


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(reference(), end="")
