"""The lines of the user's code behind the nodes of a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]+)')


@dataclass(frozen=True, slots=True)
class SourceLine:
    """file: its name without the folder. code: the line as it stands there."""

    file: str
    line: int
    code: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.code}"


def source_texts(nodes: Sequence[fx.Node]) -> dict[int, str]:
    """The line of the user's code behind each node, with its place, for people."""
    return {node: str(line) for node, line in source_lines(nodes).items()}


def source_lines(nodes: Sequence[fx.Node]) -> dict[int, SourceLine]:
    """The innermost line of the user's code behind each node, where Dynamo kept it; of torch's code
    where there is no other."""
    within = f"{Path(torch.__file__).parent}/"
    found = {}
    for number, node in enumerate(nodes):
        frames = list(_FRAME.finditer(str(node.meta.get("stack_trace") or "")))
        frames = [f for f in frames if not f["file"].startswith(within)] or frames
        if frames:
            file = frames[-1]["file"].rsplit("/", 1)[-1]
            found[number] = SourceLine(file, int(frames[-1]["line"]), frames[-1]["code"].strip())
    return found
