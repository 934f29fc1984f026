"""Pages of the documentation that are made from the code when the site is built.

python -m fusionplan.cli.pages FOLDER
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fusionplan

from ..planner.cures import RULES, WARNINGS, Advice
from .errors import EXIT_CODES

_MESSAGES = """\
# Refusals, warnings and errors

Made from the tables in the code.

## Refusals

The planner joins operations into groups, and each group is to be one kernel. Where that is not
possible it says by which rule. **A refusal is no error**: the operations stay in smaller groups, or
run as PyTorch runs them (as ATen). `planner explain MODEL` prints the refusals between neighbours.

{rules}

## Warnings

Each is a `fusionplan.FusionplanWarning` and ends with its cure. The model runs in every case.

{warnings}

## Errors

An error is one sentence that names the thing and the way out. In Python it is an exception, of the
command it is an exit code.

{errors}
"""


def messages() -> str:
    """Every refusal and warning with its cause and cure, and the exceptions with exit codes."""
    return _MESSAGES.format(rules=_told(RULES), warnings=_told(WARNINGS), errors=_errors())


def _told(table: Mapping[str, Advice]) -> str:
    rows = [f"| `{name}` | {t.why} | {t.cure} |" for name, t in sorted(table.items())]
    return "\n".join(["| name | what it means | what to do |", "|---|---|---|", *rows])


def _errors() -> str:
    own = [getattr(fusionplan, name) for name in fusionplan.__all__]
    classes = [c for c in own if isinstance(c, type) and issubclass(c, Exception)]
    names = {code: name for code, name, _ in EXIT_CODES}
    rows = []
    for each in classes:
        code = getattr(each, "exit_code", None)
        if code is not None:
            about = " ".join((each.__doc__ or "").split())
            rows.append(f"| `fusionplan.{each.__name__}` | {code} ({names[code]}) | {about} |")
    return "\n".join(["| exception | exit code | meaning |", "|---|---|---|", *rows])


def api() -> str:
    """The public names of the package with their signatures and docstrings."""
    lines = ["# Python", "", "Made from the docstrings. `import fusionplan` gives these names."]
    for name in sorted(fusionplan.__all__, key=str.lower):
        if not name.startswith("__"):
            lines += ["", *_entry(name, getattr(fusionplan, name))]
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## fusionplan.{name}"
    yield ""
    is_error = isinstance(value, type) and issubclass(value, Warning | Exception)
    if callable(value) and not is_error and not getattr(value, "_is_protocol", False):
        yield from ("```python", _signature(name, value), "```", "")
    yield _prose(inspect.getdoc(value) or "")
    if not isinstance(value, type) or is_error:
        return
    for title, members in (("Fields", _fields(value)), ("Methods and properties", _members(value))):
        rows = [f"- `{member}`: {' '.join(about.split())}" for member, about in members]
        if rows:
            yield from ("", f"{title}:", "", *rows)


def _members(value: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties with docstrings of their own."""
    for name, member in vars(value).items():
        about = inspect.getdoc(member.__func__ if isinstance(member, staticmethod) else member)
        known = isinstance(member, property | staticmethod) or inspect.isfunction(member)
        if known and about and not name.startswith("_"):
            yield name, about


def _signature(name: str, value: Any) -> str:
    """The call with one argument on a line."""
    parameters = inspect.signature(value).parameters.values()
    lines, is_named = [], False
    for each in parameters:
        if each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_named:
            lines.append("*")
            is_named = True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"{each.name}: {each.annotation}{default}")
    returned = "" if isinstance(value, type) else inspect.signature(value).return_annotation
    arrow = f" -> {returned}" if returned else ""
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), f"){arrow}"])


def _fields(value: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that have a docstring below them, in the order of the source."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    for field, below in itertools.pairwise(getattr(made, "body", ())):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            yield ast.unparse(field.target), text


_ARGUMENT = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ", re.MULTILINE)


def _prose(text: str) -> str:
    """A docstring as Markdown: its arguments are a list, its angle brackets are no tags."""
    return _ARGUMENT.sub(r"- `\1`: ", re.sub(r"<(?=[a-zA-Z/])", r"\\<", text))


PAGES = {"messages.md": messages, "api.md": api}


def main(folder: Path) -> None:
    """Write all pages into the folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
