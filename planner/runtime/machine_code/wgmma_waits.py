"""A fault of Triton's pipeline around left operands in registers, mended in the text for ptxas.

A product of a group of warps goes on while the loop does, and meanwhile reads its left operand,
where that was computed, in registers. It must be waited for before they are written again. Triton
leaves products of a turn under way, while the next turn computes its operand into the same
registers (issue 9433 of triton-lang/triton; 3.6 and 3.7 have it): now and then a few results are
wrong. Here the last wait on the way waits for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from .ptx_text import BRANCH, NAME, labels, left_operands, writes

_TABLE = re.compile(r"^\s*(?:@!?%\w+\s+)?brx\.idx")
_END = re.compile(r"^\s*(?:ret|exit|trap)\b")
_COMMIT = "wgmma.commit_group"
_WAIT = re.compile(r"(wgmma\.wait_group\S*\s+)(\d+)")
_MOVED = re.compile(r"^\s*mov\.\w+\s+%\w+\s*,\s*(\{[^}]*\}|%\w+)\s*;")
_MOST = 8  # More groups under way no wait tells apart.


def awaited(ptx: str) -> str:
    """The text of a kernel in which no product's registers are written while it reads them; the
    same text where none are. Raises ValueError where there is no wait that could be longer, or
    where the way on cannot be told."""
    if "wgmma.mma_async" not in ptx:
        return ptx
    lines = ptx.splitlines(keepends=True)
    products = left_operands(lines)
    if not products:
        return ptx
    after, written = _follows(lines), writes(lines)
    for place, operand in products.items():
        overwrites = _first_writes(operand, written, lines)
        while short := _too_short(lines, after, place, overwrites):
            # One at a time: it may be enough for other ways too.
            lines[min(short)] = _WAIT.sub(r"\g<1>0", lines[min(short)])
    return "".join(lines)


def _follows(lines: Sequence[str]) -> list[list[int]]:
    """The lines that may run after each."""
    known, found = labels(lines), []
    for place, line in enumerate(lines):
        branch, on = BRANCH.match(line), []
        if _TABLE.match(line) or (branch and branch[2] not in known):
            raise ValueError("a branch of the kernel leads where cannot be told")
        if branch:
            on.append(known[branch[2]])
        if not (_END.match(line) or (branch and not branch[1])):
            on.append(place + 1)
        found.append([n for n in on if n < len(lines)])
    return found


def _first_writes(
    names: Sequence[str], written: dict[str, list[int]], lines: Sequence[str]
) -> set[int]:
    """Where registers are written; of copies also where what they copy is, for ptxas may let both
    be one register."""
    found: set[int] = set()
    left, seen = list(names), set(names)
    while left:
        for place in written.get(left.pop(), ()):
            found.add(place)
            if copied := _MOVED.match(lines[place]):
                new = set(NAME.findall(copied[1])) - seen
                seen |= new
                left += new
    return found


def _too_short(
    lines: Sequence[str], after: Sequence[list[int]], product: int, overwrites: Collection[int]
) -> set[int]:
    """The last wait on each way from a product to a write on which none waits for it."""
    found: set[int] = set()
    # Where, how many groups of products were committed since its own, and the last wait.
    left: list[tuple[int, int, int | None]] = [(n, -1, None) for n in after[product]]
    seen = set(left)
    while left:
        at, later, last = left.pop()
        if at in overwrites:
            if last is None:
                raise ValueError("nothing waits for a product whose left operand is written again")
            found.add(last)
            continue
        if _COMMIT in lines[at]:
            later = min(later + 1, _MOST)
        elif later >= 0 and (wait := _WAIT.search(lines[at])):
            if int(wait[2]) <= later:
                continue
            last = at
        new = {(n, later, last) for n in after[at]} - seen
        seen |= new
        left += new
    return found
