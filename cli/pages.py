"""The page of the Python interface, made from the code when the documentation is built.

python -m fusionplan.cli.pages FOLDER
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fusionplan


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


def main(folder: Path) -> None:
    """Write the page into the folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "api.md").write_text(api())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
