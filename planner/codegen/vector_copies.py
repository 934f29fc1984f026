"""A kernel that lays side by side the vectors that another kernel reads at a stride (see
`nests.laid_vectors`)."""

from __future__ import annotations

from dataclasses import replace

from ..graph.dtypes import TRITON_DTYPE
from ..tiles.program import TileProgram
from .row_copies import BLOCK
from .source import AWAIT_LAST, BEGIN_NEXT, Buffer, KernelSource

_WARPS = 4


def vector_copies(program: TileProgram, kernel: KernelSource) -> KernelSource:
    """The kernel that writes the copies for another kernel of the program."""
    name = f"{kernel.name}_vectors"
    calls = [call for call in (BEGIN_NEXT, AWAIT_LAST) if call in kernel.text]
    lines = [*(f"tl.extra.cuda.{call}()" for call in calls)]
    lines.append(f"lane = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})")
    buffers, most = [], 0
    for number, laid in program.nest.laid.items():
        size = laid.count * laid.stride
        most = max(most, size)
        vector, element = f"lane // {laid.stride}", f"lane % {laid.stride}"
        source = f"in{number} + {laid.first} + {vector} * {laid.step} + {element} * {laid.scale}"
        inside = f"(lane < {size}) & ({element} < {laid.extent})"
        lines += [
            f"vector{number} = tl.load({source}, mask={inside}, other=0)",
            f"vector{number} = vector{number}.to({TRITON_DTYPE[laid.dtype]})",
            f"tl.store(row{number} + lane, vector{number}, mask=lane < {size})",
        ]
        buffers += [Buffer("in", number, laid.given), Buffer("row", number, laid.dtype)]
    arguments = ", ".join(f"{b.kind}{b.index}" for b in buffers)
    text = "\n".join([f"@triton.jit\ndef {name}({arguments}):", *(f"    {x}" for x in lines), ""])
    return replace(
        kernel,
        name=name,
        text=f"import triton\nimport triton.language as tl\n\n\n{text}",
        buffers=tuple(buffers),
        grid=-(-most // BLOCK),
        num_warps=_WARPS,
        num_stages=1,
        plain=None,
        scalars=(),
        before=None,
        copies=True,
    )
