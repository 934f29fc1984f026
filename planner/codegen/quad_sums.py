"""Functions that sum bits of bytes times a row on tensor cores, four lanes by themselves: text
that kernels of quantised weights call (see `tiles.passes.sum_in_quads`).

A lane gives its 16 bytes of two rows, and its numbers of the row that they are multiplied by. Two
numbers at a time are taken from a word, and become the bfloat16 2**7 + bits. Of the lane's two
results, which lie in other places of the diagonal for other quads, the first element of each vector
is the sum; what the others are nobody asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from ..tiles.instructions import QuadSum
from .scope import Scope

VECTOR = 16
"""Bytes of a vector."""

_NAME = re.compile(r"(?<![\w.])quad_sums_(\d+)_(\d+)_(\d+)((?:_at_\d+)+)(?=\()")

_PLACE = 128
"""The power of two in whose bfloat16 the last bit counts 1."""

_LANE = """.reg .pred odd, mine; .reg .b32 lane, quad, word, a<4>, b<2>; .reg .f32 d<4>;
mov.u32 lane, %laneid; and.b32 quad, lane, 4; setp.ne.u32 odd, quad, 0;
shr.u32 quad, lane, 3; and.b32 lane, lane, 3; setp.eq.u32 mine, lane, quad;"""
"""Quad g finds its own sum with lane g / 2, in the first or the second of that lane's columns."""

_BEGIN = "mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;"

_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{{d0, d1, d2, d3}}, {{{0}}}, {{{1}}}, {{d0, d1, d2, d3}};"
)


def step(scope: Scope, each: QuadSum) -> None:
    """Vectors have a dimension of their own, whose sums are added up."""
    dims = scope.dims[each.source]
    first, *others = (scope.blocks.sizes[axis] for axis in dims)
    count = math.prod(others) // VECTOR
    shapes = [[first, count, VECTOR], *[[count, VECTOR]] * len(each.parts)]
    read = zip(each.reads, shapes, strict=True)
    given = ", ".join(f"tl.reshape({scope.names[value]}, {shape})" for value, shape in read)
    places = "".join(f"_at_{shift}" for shift, _ in each.parts)
    call = f"quad_sums_{each.width}_{each.offset}_{each.vectors}{places}({given})"
    apart = [first, *others[:-1], others[-1] // VECTOR]
    scope.bind(each.value, f"tl.sum(tl.reshape({call}, {apart}), {len(others)})", dims[:-1])


def functions(text: str) -> dict[str, str]:
    """The functions of this kind that a text calls, by their names."""
    found = {}
    for each in _NAME.finditer(text):
        width, offset, vectors = (int(each[i]) for i in (1, 2, 3))
        shifts = [int(shift) for shift in re.findall(r"\d+", each[4])]
        found[each[0]] = _function(each[0], width, offset, vectors, shifts)
    return found


def _function(name: str, width: int, offset: int, vectors: int, shifts: Sequence[int]) -> str:
    rows = [f"row{number}" for number in range(len(shifts))]
    wide = "\n".join(f"    {row} = {row}.to(tl.bfloat16)[None, :, :]" for row in rows)
    given, lanes = ", ".join(rows), 16 * vectors
    return f'''
@triton.jit
def first_of(a, b):
    return a


@triton.jit
def {name}(x, {given}):
    """The sum of each vector, or of its quad in one of its lanes and 0 in the others."""
{wide}
    found = tl.inline_asm_elementwise(
        "{_asm(_products(width, vectors, shifts))}",
        "{_constraints(2 * lanes, lanes // 2 + lanes * len(shifts))}",
        [x, {given}],
        dtype=tl.float32,
        is_pure=True,
        pack={2 * lanes},
    )
    beyond = tl.inline_asm_elementwise(
        "{_asm(_row_sums(vectors, len(shifts)))}",
        "{_constraints(lanes, lanes // 2 * len(shifts))}",
        [{given}],
        dtype=tl.float32,
        is_pure=True,
        pack={lanes},
    )
    return tl.reduce(found, 2, first_of) - {_PLACE + offset}.0 * tl.reduce(beyond, 2, first_of)
'''


def _asm(lines: Iterator[str]) -> str:
    return "{ " + " ".join([_LANE.replace("\n", " "), *lines]) + " }"


def _constraints(results: int, operands: int) -> str:
    return ",".join(["=&r"] * results + ["r"] * operands)


def _products(width: int, vectors: int, shifts: Sequence[int]) -> Iterator[str]:
    """Operands: a word for four bytes, of one row and then of the other; then two numbers of each
    row of factors in a word, as often."""
    words = 32 * vectors
    factors = words + 8 * vectors
    mask, place = (1 << width) - 1, 0x4300
    both = f"{mask << 16 | mask:#x}, {place << 16 | place:#x}, 0xEA;"
    for vector in range(vectors):
        yield _BEGIN
        for word in range(4):
            sides = [words + 4 * (vectors * side + vector) + word for side in (0, 1)]
            for number, shift in enumerate(shifts):
                for a, (down, side) in enumerate((d, s) for d in (0, 8) for s in sides):
                    yield _shifted(f"${side}", shift + down, f"a{a}", both)
                pair = factors + 16 * vectors * number + 8 * vector + 2 * word
                for b, pick in enumerate(("0x5410", "0x7632")):
                    yield f"prmt.b32 b{b}, ${pair}, ${pair + 1}, {pick};"
                yield _MMA.format("a0, a1, a2, a3", "b0, b1")
        yield f"selp.f32 d0, d1, d0, odd; selp.f32 ${16 * vector}, d0, 0f00000000, mine;"
        other = 16 * (vectors + vector)
        yield f"selp.f32 d2, d3, d2, odd; selp.f32 ${other}, d2, 0f00000000, mine;"


def _shifted(source: str, down: int, target: str, both: str) -> str:
    if not down:
        return f"lop3.b32 {target}, {source}, {both}"
    return f"shr.u32 word, {source}, {down}; lop3.b32 {target}, word, {both}"


def _row_sums(vectors: int, rows: int) -> Iterator[str]:
    """The same of ones: what the power of two in each number comes to."""
    first = 16 * vectors
    yield f"mov.b32 a0, {0x3F803F80:#x};"
    for vector in range(vectors):
        yield _BEGIN
        for row in range(rows):
            for word in range(4):
                pair = first + 8 * (vectors * row + vector) + 2 * word
                yield _MMA.format("a0, a0, a0, a0", f"${pair}, ${pair + 1}")
        yield f"selp.f32 d0, d1, d0, odd; selp.f32 ${16 * vector}, d0, 0f00000000, mine;"
