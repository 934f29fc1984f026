"""A fault of Triton's pipeline that gives wrong numbers, found in what it made of a kernel.

A product of a group of warps goes on while the loop does, and meanwhile reads its operands in
shared memory. A tile that is loaded some turns ahead then needs as many buffers and one more.
Triton makes that many where only products read the tile; where something else does too it makes
one less (issue 6691 of triton-lang/triton; 3.6 and 3.7 have it), and the tile of a later turn is
written over one that is still read. Kernels of ours load such a tile twice; this is the check that
none is left.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

_NAME = r"(%[\w.$-]+)"
_BUFFERS = re.compile(rf"{_NAME} = ttg\.local_alloc\s*:\s*\(\) -> !ttg\.memdesc<(\d+)x")
_VIEW = re.compile(rf"{_NAME} = ttg\.memdesc_\w+ {_NAME}")
_COPY = re.compile(r"async(?:_tma)?_copy_global_to_local\b(.*)")
_PRODUCT = re.compile(rf"warp_group_dot {_NAME}, {_NAME}, .*isAsync = true")
_WAIT = re.compile(r"warp_group_dot_wait .*pendings = (\d+)")


def overwritten(ttgir: str) -> str | None:
    """Which tile is written over while a product reads it, and why; None where none is. ttgir: of
    one kernel, as `CompiledKernel.asm` has it."""
    if "isAsync = true" not in ttgir:
        return None
    lines = ttgir.splitlines()
    loops = list(_loops(lines))
    buffers: dict[str, tuple[str, int]] = {}  # by name of a view of them, with their count
    copies: dict[str, list[int]] = defaultdict(list)
    products: dict[tuple[int, int], list[tuple[int, list[tuple[str, int]]]]] = defaultdict(list)
    pending: dict[tuple[int, int], int] = defaultdict(int)
    for place, line in enumerate(lines):
        around = [(begin, end) for begin, end in loops if begin < place < end]
        if found := _BUFFERS.search(line):
            buffers[found[1]] = found[1], int(found[2])
        elif (found := _VIEW.search(line)) and found[2] in buffers:
            buffers[found[1]] = buffers[found[2]]
        elif found := _COPY.search(line):
            for name in {buffers[n][0] for n in re.findall(_NAME, found[1]) if n in buffers}:
                copies[name].append(place)
        elif around and (found := _PRODUCT.search(line)):
            read = [buffers[name] for name in found.groups() if name in buffers]
            products[max(around)].append((place, read))
        elif around and (found := _WAIT.search(line)):
            pending[max(around)] = max(pending[max(around)], int(found[1]))
    for (begin, end), own in products.items():
        turns = -(-pending[begin, end] // len(own))
        for place, (name, count) in ((place, each) for place, read in own for each in read):
            within = [c for c in copies[name] if begin < c < end]
            ahead = sum(c < begin for c in copies[name])
            needed = ahead + turns + (min(within, default=end) < place)
            if within and count < needed:
                return f"{count} buffers of {name.lstrip('%')} where {needed} are needed"
    return None


def _loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each loop; of nested ones the inner begins later."""
    begun: list[tuple[int, int]] = []
    for place, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if "scf.for" in line:
            begun.append((place, indent))
        elif begun and line.lstrip().startswith("}") and indent == begun[-1][1]:
            yield begun.pop()[0], place
