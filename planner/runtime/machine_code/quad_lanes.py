"""A check of what Triton made of a kernel: do lanes hold what a sum by quads takes them to hold?

The text of `codegen.quad_sums` is right where a warp lies along one row, each lane with vectors of
16 neighbours, and with an even number of rows one after the other. Triton chooses so for a tile of
bytes that is loaded whole, and nothing in the language asks for it: this is the check that it did.
"""

from __future__ import annotations

import re

_CALL = re.compile(
    r"elementwise_inline_asm \"[^\"]*\bmma\.sync[^\"]*\".*packed_element = (\d+) : i32.*"
    r"-> tensor<(\d+)x(\d+)x16xf32, #(\w+)>"
)
_LAYOUT = re.compile(
    r"^#(\w+) = #ttg\.blocked<\{sizePerThread = \[1, 1, 16\], threadsPerWarp = \[1, 32, 1\], "
    r"warpsPerCTA = \[(\d+), (\d+), 1\], order = \[2, 1, 0\]\}>",
    re.MULTILINE,
)


def misplaced(ttgir: str) -> str | None:
    """Which tile lies otherwise; None where none does. ttgir: of one kernel, as
    `CompiledKernel.asm` has it."""
    if "mma.sync" not in ttgir:
        return None
    calls = _CALL.findall(ttgir)
    if len(calls) != sum("mma.sync" in line for line in ttgir.splitlines()):
        return "sums by quads are written in an unknown way"
    layouts = {name: (int(beside), int(along)) for name, beside, along in _LAYOUT.findall(ttgir)}
    for count, rows, vectors, name in calls:
        if name not in layouts:
            return f"a tile of {rows} x {vectors} vectors lies otherwise than lanes sum it"
        beside, along = layouts[name]
        own = int(vectors) // (32 * along)
        pairs = int(rows) == 1 or int(rows) % (2 * beside) == 0
        each = 16 if int(rows) == 1 else 32
        if int(vectors) % (32 * along) or int(count) != each * own or not pairs:
            return f"a lane has {own} vectors of {rows} rows, not those that it sums"
    return None
