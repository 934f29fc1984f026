"""Products of groups of warps, registers and loops in the texts for ptxas, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\}\s*,\s*\{([^}]*)\}")
"""A product whose left operand is in registers: their names."""
FENCE = "wgmma.fence"
"""What a group of products begins with: all its registers were written before."""
LABEL = re.compile(r"^\s*(\$\w+):")
BRANCH = re.compile(r"^\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)")
NAME = re.compile(r"%\w+")

_WRITTEN = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)(?:\|%\w+)?\s*,")


def left_operands(lines: Sequence[str]) -> dict[int, list[str]]:
    """The line of each product whose left operand is in registers, and their names."""
    found = ((place, PRODUCT.search(line)) for place, line in enumerate(lines))
    return {place: NAME.findall(m[1]) for place, m in found if m}


def writes(lines: Sequence[str]) -> dict[str, list[int]]:
    """Where each register is written."""
    written: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if found := _WRITTEN.match(line):
            for name in NAME.findall(found[1]):
                written.setdefault(name, []).append(place)
    return written


def labels(lines: Sequence[str]) -> dict[str, int]:
    return {m[1]: place for place, line in enumerate(lines) if (m := LABEL.match(line))}


def loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The first and the last line of each loop."""
    known = labels(lines)
    for place, line in enumerate(lines):
        branch = BRANCH.match(line)
        if branch and known.get(branch[2], place) < place:
            yield known[branch[2]], place
