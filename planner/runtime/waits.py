"""A fault of Triton's pipeline around left operands in registers, mended in the text for ptxas.

A product of a group of warps goes on while the loop does, and meanwhile reads its left operand,
where that was computed, in registers. It must be waited for before they are written again. Triton
waits for the first of a turn's products and leaves the others under way, while the next turn
computes its operand into the same registers (issue 9433 of triton-lang/triton; 3.6 and 3.7 have
it): now and then a few results are wrong. Here the last wait of such a turn waits for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LABEL = re.compile(r"^(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\}\s*,\s*\{([^}]*)\}")
_COMMIT = "wgmma.commit_group"
_WAIT = re.compile(r"(wgmma\.wait_group\S*\s+)(\d+)")
_WRITTEN = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)(?:\|%\w+)?\s*,")
_MOVED = re.compile(r"^\s*mov\.\w+\s+%\w+\s*,\s*(%\w+)\s*;")
_NAME = re.compile(r"%\w+")


def awaited(ptx: str) -> str:
    """The text of a kernel in which no product's registers are written while it reads them; the
    same text where none are. Raises ValueError where there is no wait that could be longer."""
    if "wgmma.mma_async" not in ptx:
        return ptx
    lines = ptx.splitlines(keepends=True)
    for begin, end in _loops(lines):
        written = _writes(lines, begin, end)
        for place in range(begin, end):
            if found := _PRODUCT.search(lines[place]):
                names = set(_NAME.findall(found[1]))
                for first in _first_writes(names, written, lines):
                    _wait_before(lines, place, first, begin, end)
    return "".join(lines)


def _loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First line of each loop, and the one after its last."""
    labels: dict[str, int] = {}
    for place, line in enumerate(lines):
        if found := _LABEL.match(line):
            labels[found[1]] = place
        elif (found := _BRANCH.search(line)) and found[1] in labels:
            yield labels[found[1]], place + 1


def _writes(lines: Sequence[str], begin: int, end: int) -> dict[str, list[int]]:
    """Where each register is written within a loop."""
    written: dict[str, list[int]] = {}
    for place in range(begin, end):
        if found := _WRITTEN.match(lines[place]):
            for name in _NAME.findall(found[1]):
                written.setdefault(name, []).append(place)
    return written


def _first_writes(names: set[str], written: dict[str, list[int]], lines: Sequence[str]) -> set[int]:
    """Where registers are written; of copies also where what they copy is, for ptxas may let both
    be one register."""
    found: set[int] = set()
    left, seen = list(names), set(names)
    while left:
        for place in written.get(left.pop(), ()):
            found.add(place)
            copied = _MOVED.match(lines[place])
            if copied and copied[1] not in seen:
                seen.add(copied[1])
                left.append(copied[1])
    return found


def _wait_before(lines: list[str], product: int, write: int, begin: int, end: int) -> None:
    """Have a product waited for on the way from it to a write, around the loop."""
    until = write if write > product else end + write - begin
    later, last = -1, None  # Groups of products since its own.
    for step in range(product, until):
        place = step if step < end else begin + step - end
        if _COMMIT in lines[place]:
            later += 1
        elif found := _WAIT.search(lines[place]):
            if int(found[2]) <= later:
                return
            last = place
    if last is None:
        raise ValueError("nothing waits for a product whose left operand is written again")
    lines[last] = _WAIT.sub(r"\g<1>0", lines[last])
