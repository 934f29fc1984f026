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

_LABEL = re.compile(r"^\s*(\$\w+):")
_BRANCH = re.compile(r"^\s*(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)")
_TABLE = re.compile(r"^\s*(?:@!?%\w+\s+)?brx\.idx")
_END = re.compile(r"^\s*(?:ret|exit|trap)\b")
_PRODUCT = re.compile(r"wgmma\.mma_async\S*\s+\{[^}]*\}\s*,\s*\{([^}]*)\}")
_COMMIT = "wgmma.commit_group"
_WAIT = re.compile(r"(wgmma\.wait_group\S*\s+)(\d+)")
_WRITTEN = re.compile(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)(?:\|%\w+)?\s*,")
_MOVED = re.compile(r"^\s*mov\.\w+\s+%\w+\s*,\s*(\{[^}]*\}|%\w+)\s*;")
_NAME = re.compile(r"%\w+")
_MOST = 8  # More groups under way no wait tells apart.


def awaited(ptx: str) -> str:
    """The text of a kernel in which no product's registers are written while it reads them; the
    same text where none are. Raises ValueError where there is no wait that could be longer, or
    where the way on cannot be told."""
    if "wgmma.mma_async" not in ptx:
        return ptx
    lines = ptx.splitlines(keepends=True)
    products = {place: m[1] for place, line in enumerate(lines) if (m := _PRODUCT.search(line))}
    if not products:
        return ptx
    after, written = _follows(lines), _writes(lines)
    for place, operand in products.items():
        writes = _first_writes(_NAME.findall(operand), written, lines)
        while short := _too_short(lines, after, place, writes):
            # One at a time: it may be enough for other ways too.
            lines[min(short)] = _WAIT.sub(r"\g<1>0", lines[min(short)])
    return "".join(lines)


def _follows(lines: Sequence[str]) -> list[list[int]]:
    """The lines that may run after each."""
    labels = {m[1]: place for place, line in enumerate(lines) if (m := _LABEL.match(line))}
    found = []
    for place, line in enumerate(lines):
        branch, on = _BRANCH.match(line), []
        if _TABLE.match(line) or (branch and branch[2] not in labels):
            raise ValueError("a branch of the kernel leads where cannot be told")
        if branch:
            on.append(labels[branch[2]])
        if not (_END.match(line) or (branch and not branch[1])):
            on.append(place + 1)
        found.append([n for n in on if n < len(lines)])
    return found


def _writes(lines: Sequence[str]) -> dict[str, list[int]]:
    """Where each register is written."""
    written: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        if found := _WRITTEN.match(line):
            for name in _NAME.findall(found[1]):
                written.setdefault(name, []).append(place)
    return written


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
                new = set(_NAME.findall(copied[1])) - seen
                seen |= new
                left += new
    return found


def _too_short(
    lines: Sequence[str], after: Sequence[list[int]], product: int, writes: Collection[int]
) -> set[int]:
    """The last wait on each way from a product to a write on which none waits for it."""
    found: set[int] = set()
    # Where, how many groups of products were committed since its own, and the last wait.
    left: list[tuple[int, int, int | None]] = [(n, -1, None) for n in after[product]]
    seen = set(left)
    while left:
        at, later, last = left.pop()
        if at in writes:
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
