"""A fault of ptxas about left operands that all turns of a loop share, and a text without it.

A product of a group of warps may have its left operand in registers. One that is computed before a
loop and multiplied in each of its turns has to stay in them. Where another product of the loop
computes its own left operand and registers are short, ptxas (12.8 and 12.9, those of Triton 3.6
and 3.7 among them; 13.5 does not) gives both the same registers: from the second turn on the first
product multiplies what the second had. Such machine code is known by its registers. It is made
anew from a text that writes the shared operand in each turn, from other registers and a number
that ptxas cannot know to be 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .ptx_text import FENCE, left_operands, loops, writes

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][^;]*);")
_BRANCH = re.compile(r"BRA\S* +(\S+, +)?0x([0-9a-f]+)")
_LEFT = re.compile(r"\wGMMA\S* R\d+, R(\d+),? *(?:\.reuse)?, *gdesc")
_WRITTEN = re.compile(r"(?P<name>\w+)(?P<kind>[\w.]*)\s+(?:U?P\w+, )?R(?P<first>\d+)\b")
_COPIES = ("MOV", "IMAD.MOV", "LDL")
_REGISTERS = 4
"""A thread's registers of a left operand of 16 columns."""
_PREFIX = "%kept"


def shared_by_turns(ptx: str) -> list[list[int]]:
    """The products of each loop, as lines of the text, whose left operand was computed before it,
    where another product of the loop has its own computed in it."""
    if "wgmma.mma_async" not in ptx:
        return []
    lines = ptx.splitlines()
    operands, written = left_operands(lines), writes(lines)
    found = []
    for begin, end in loops(lines) if operands else ():
        within = [place for place in operands if begin < place < end]
        kept = [
            place
            for place in within
            if not any(begin < w < end for name in operands[place] for w in written.get(name, ()))
        ]
        if kept and len(kept) < len(within):
            found.append(kept)
    return found


def overwritten_operand(sass: str) -> str | None:
    """The fault in machine code, as cuobjdump lists it; None if there is none. Only of kernels
    that `shared_by_turns` names: others may compute an operand one turn ahead."""
    code = [(int(at, 16), text) for at, _, text in _INSTRUCTION.findall(sass)]
    back = list(_loops(sass))
    for at, text in code:
        product = _LEFT.match(text)
        around = [(end - begin, begin, end) for begin, end in back if begin <= at <= end]
        if not product or not around:
            continue
        _, begin, end = min(around)
        body = [(where, each) for where, each in code if begin <= where <= end]
        own = range(int(product[1]), int(product[1]) + _REGISTERS)
        if any(_is_lost(register, at, body) for register in own):
            return "a left operand that all turns of a loop share is written over"
    return None


def _loops(sass: str) -> Iterator[tuple[int, int]]:
    """The first and the last address of each loop. A branch back without a condition is the way
    from where a barrier is waited for."""
    for at, predicate, text in _INSTRUCTION.findall(sass):
        branch = _BRANCH.match(text)
        if branch and (predicate or branch[1]) and int(branch[2], 16) <= int(at, 16):
            yield int(branch[2], 16), int(at, 16)


def _is_lost(register: int, product: int, body: Sequence[tuple[int, str]]) -> bool:
    """Whether what a turn leaves in a register is what the next one multiplies."""
    wrote = [(at, text) for at, text in body if register in _written(text)]
    return bool(wrote) and wrote[0][0] > product and not wrote[-1][1].startswith(_COPIES)


def _written(text: str) -> range:
    """The registers that an instruction writes, for all that computes left operands or loads."""
    found = _WRITTEN.match(text)
    if not found or found["name"].endswith("GMMA"):
        return range(0)
    kind = found["kind"]
    count = 4 if ".128" in kind or ".M88.4" in kind else 2 if ".64" in kind else 1
    return range(int(found["first"]), int(found["first"]) + count)


def renewed(ptx: str) -> str:
    """The text in which each turn of a loop writes the left operands that all turns share."""
    places = sorted({place for kept in shared_by_turns(ptx) for place in kept})
    if not places:
        return ptx
    lines = ptx.splitlines(keepends=True)
    operands = left_operands(lines)
    copies: dict[int, dict[str, str]] = {}
    count = 0
    for place in places:
        fence = max(n for n in range(place) if FENCE in lines[n])
        own = copies.setdefault(fence, {})
        for name in operands[place]:
            if name not in own:
                own[name] = f"{_PREFIX}{(count := count + 1)}"
            lines[place] = _renamed(lines[place], name, own[name])
    for fence, own in copies.items():
        lines[fence] = _computed(own, fence) + lines[fence]
    declared = next(n for n, line in enumerate(lines) if ".reg .b32" in line)
    lines[declared] = f"\t.reg .b32 \t{_PREFIX}<{count + 1}>;\n" + lines[declared]
    return "".join(lines)


def _renamed(line: str, name: str, other: str) -> str:
    """The product with another register of its left operand, which is the second list."""
    results, left, rest = re.split(r"(?<=\})\s*,\s*(?=\{)|(?<=\})\s*,\s*(?=%)", line, maxsplit=2)
    return f"{results}, {re.sub(rf'{re.escape(name)}(?![0-9])', other, left)}, {rest}"


def _computed(own: dict[str, str], fence: int) -> str:
    """All threads of a warp are active there: what is missing of them is 0."""
    mask = f"{_PREFIX}_none_{fence}"
    begin = f"\t.reg .b32 \t{mask};\n\tactivemask.b32 \t{mask};\n\tnot.b32 \t{mask}, {mask};\n"
    return begin + "".join(f"\tor.b32 \t{new}, {old}, {mask};\n" for old, new in own.items())
