"""`python -m fusionplan.bench.table_age`: says beside each table of figures how old it is.

Above a table stands a comment that says where its figures come from, and below the comment a line
that this command writes:

    <!-- figures: codegen=13; date=2026-11-22; device=NVIDIA H200; command=scripts/bench -->
    *Measured with code generation 13; today's is 14.*
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..planner.versions import CODEGEN

FIELDS = ("codegen", "date", "device", "commit", "command")
_COMMENT = re.compile(r"<!-- figures: (.*=.*?) -->")
_NOT_MEASURED = "<!-- figures: not measured -->"
"""Above a table of figures that no run gave: bounds, targets."""
_LINE = re.compile(r"\*Measured with code generations? .*\*$")
_DELIMITER = re.compile(r"\|(\s*:?-+:?\s*\|)+$")
_NUMBER = re.compile(r"[\d.,]+( (us|ms|s|MiB|GB|x|%))?[%x]?$")


@dataclass(frozen=True, slots=True)
class Figures:
    """codegen: the code generations of which the figures are, oldest first. commit, command: of
    what was measured; "" where several were. line: where the comment stands, from 1."""

    codegen: tuple[int, ...]
    date: str
    device: str
    commit: str = ""
    command: str = ""
    line: int = 0

    def is_stale(self, today: int) -> bool:
        return min(self.codegen) < today

    def comment(self) -> str:
        values = (" ".join(map(str, self.codegen)), self.date, self.device)
        pairs = zip(FIELDS, (*values, self.commit, self.command), strict=True)
        return f"<!-- figures: {'; '.join(f'{n}={v}' for n, v in pairs if v)} -->"

    def told(self, today: int) -> str:
        """The line for the reader."""
        *others, last = map(str, self.codegen)
        own = f"s {', '.join(others)} and {last}" if others else f" {last}"
        return f"*Measured with code generation{own}; today's is {today}.*"


def parsed(comment: str, line: int = 0) -> Figures:
    """Raises ValueError for a comment that does not say what it has to."""
    found = _COMMENT.search(comment)
    if found is None:
        raise ValueError(f"line {line} is no comment about figures: {comment}")
    pairs = (each.strip().partition("=") for each in found[1].split(";"))
    given = {name: value for name, _, value in pairs}
    unknown = given.keys() - set(FIELDS)
    missing = {"codegen", "date", "device"} - given.keys()
    if unknown or missing or not re.fullmatch(r"\d+( \d+)*", given.get("codegen", "")):
        raise ValueError(f"line {line}: figures need codegen, date and device: {comment}")
    codegen = tuple(sorted(map(int, given["codegen"].split())))
    date, device, commit, command = (given.get(name, "") for name in FIELDS[1:])
    return Figures(codegen, date, device, commit, command, line)


def renewed(text: str, today: int = int(CODEGEN)) -> str:
    """The document with a true line below each comment."""
    found: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if _LINE.match(line) and found and _LINE.match(found[-1]):
            continue  # What stood there before.
        found.append(line)
        if _COMMENT.match(line):
            found.append(parsed(line, number).told(today))
    return "\n".join(found)


def figures(text: str) -> list[Figures]:
    """What the document says of its tables, in order."""
    lines = enumerate(text.split("\n"), 1)
    return [parsed(line, number) for number, line in lines if _COMMENT.match(line)]


def bare(text: str) -> list[int]:
    """The lines on which tables of figures begin that have no comment above them."""
    lines = text.split("\n")
    return [start + 1 for start in _tables(lines) if not _is_told(lines, start)]


def _tables(lines: Sequence[str]) -> Iterator[int]:
    """Where tables begin of whose cells at least half are numbers."""
    for place in range(1, len(lines)):
        if not _DELIMITER.match(lines[place]) or not lines[place - 1].startswith("|"):
            continue
        cells: list[str] = []
        for row in lines[place + 1 :]:
            if not row.startswith("|"):
                break
            cells += [cell.strip(" *") for cell in row.strip("|").split("|")]
        if 2 * sum(bool(_NUMBER.match(cell)) for cell in cells) >= len(cells) > 0:
            yield place - 1


def _is_told(lines: Sequence[str], start: int) -> bool:
    above = [line for line in lines[max(0, start - 4) : start] if line]
    return any(_COMMENT.match(line) or line == _NOT_MEASURED for line in above)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all lines are true (now); 1: with --check, one is not; 2: a comment says too little."""
    parser = argparse.ArgumentParser(prog="scripts/figures", description=__doc__)
    parser.add_argument("documents", nargs="*", type=Path, help="default: README.md and docs/")
    parser.add_argument("--check", action="store_true", help="change nothing")
    given = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[1]
    documents = given.documents or [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    untrue = []
    for document in documents:
        text = document.read_text()
        try:
            told, wanted = figures(text), renewed(text)
        except ValueError as error:
            print(f"{document}: {error}", file=sys.stderr)
            return 2
        for each in told:
            if each.is_stale(int(CODEGEN)):
                print(f"{document.name}:{each.line}: {each.told(int(CODEGEN)).strip('*')}")
        if wanted != text:
            untrue.append(document)
            if not given.check:
                document.write_text(wanted)
    if untrue and given.check:
        print(f"not true any more (scripts/figures): {', '.join(d.name for d in untrue)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
