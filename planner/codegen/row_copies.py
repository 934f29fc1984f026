"""A kernel that copies rows, once for every place within a vector at which other rows may begin
(see `tiles.alignment.is_copied`)."""

from __future__ import annotations

from dataclasses import replace

from ..tiles.alignment import copied_stride, row_start
from ..tiles.instructions import TileLoad, loads_of
from ..tiles.program import TileProgram
from .scope import zero
from .source import AWAIT_LAST, BEGIN_NEXT, Buffer, KernelSource

BLOCK, _WARPS = 1024, 4
"""Elements and warps of a program."""


def copied_rows(program: TileProgram) -> dict[int, TileLoad]:
    """By input, the loads of a program that read a copy."""
    every = [*program.head, *(each for each, _ in program.walk())]
    return {i.input: i for each in every for i in loads_of(each) if i.rows == "copied"}


def row_copies(program: TileProgram, kernel: KernelSource) -> KernelSource:
    """The kernel that writes the copies for another kernel of the program."""
    rows, loads = program.blocks.aligned, copied_rows(program)
    assert rows is not None, "rows are copied beside aligned ones"
    extent = program.nest.axes[rows.axis].extent
    stride = copied_stride(extent, rows.vector)
    name = f"{kernel.name}_rows"
    pairs = [(f"in{i}", f"row{i}") for i in loads]
    calls = [call for call in (BEGIN_NEXT, AWAIT_LAST) if call in kernel.text]
    lines = [
        *(f"tl.extra.cuda.{call}()" for call in calls),
        "pid = tl.program_id(0)",
        f"skip = pid % {rows.vector}  # elements before the row",
        f"lane = pid // {rows.vector} * {BLOCK} + tl.arange(0, {BLOCK})",
        f"inside = (lane >= skip) & (lane - skip < {extent})",
    ]
    for (source, target), load in zip(pairs, loads.values(), strict=True):
        base, other = row_start(load.access, rows.axis).base, zero(load.access.type.dtype)
        lines += [
            f"{target}_row = tl.load({source} + {base} - skip + lane, mask=inside, other={other})",
            f"tl.store({target} + skip * {stride} + lane, {target}_row, mask=lane < {stride})",
        ]
    arguments = ", ".join(name for pair in pairs for name in pair)
    text = "\n".join([f"@triton.jit\ndef {name}({arguments}):", *(f"    {x}" for x in lines), ""])
    buffers = [
        Buffer(kind, i, load.access.type.dtype)
        for i, load in loads.items()
        for kind in ("in", "row")
    ]
    return replace(
        kernel,
        name=name,
        text=f"import triton\nimport triton.language as tl\n\n\n{text}",
        buffers=tuple(buffers),
        grid=rows.vector * -(-stride // BLOCK),
        num_warps=_WARPS,
        num_stages=1,
        plain=None,
        scalars=(),
        before=None,
        copies=True,
    )
