"""Sums of bits times a row by quads of lanes: the instructions that no interpreter runs, followed
lane by lane."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fusionplan.planner.codegen.quad_sums import functions
from fusionplan.planner.runtime.machine_code.quad_lanes import misplaced

LANES = np.arange(32, dtype=np.uint32)
Registers = dict[str, np.ndarray]


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The upper halves of float32, which hold all of these numbers."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def halves(words: np.ndarray) -> np.ndarray:
    """Two bfloat16 of each word as float32, in a last dimension."""
    both = np.stack((words << np.uint32(16), words & np.uint32(0xFFFF0000)), -1)
    return both.astype(np.uint32).view(np.float32)


def multiplied(named: list[np.ndarray]) -> list[np.ndarray]:
    """mma.m16n8k16: what each lane has afterwards, of the four numbers that it adds to."""
    group, place = LANES // 4, LANES % 4
    left, right = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
    for half in range(2):
        for part in range(2):
            for side in range(2):
                left[group + 8 * side, 2 * place + half + 8 * part] = halves(
                    named[4 + side + 2 * part]
                )[:, half]
            right[2 * place + half + 8 * part, group] = halves(named[8 + part])[:, half]
    sums = left @ right
    where = [(group + 8 * (n // 2), 2 * place + n % 2) for n in range(4)]
    return [named[n].view(np.float32) + sums[row, column] for n, (row, column) in enumerate(where)]


def followed(asm: str, given: Registers) -> Registers:
    """All registers after the instructions, of each lane."""
    held = {**given, "%laneid": LANES}

    def read(name: str) -> np.ndarray:
        if name in held:
            return held[name]
        number = int(re.sub(r"^0f", "0x", name), 0)
        return np.full(32, number, np.uint32)

    for step in filter(None, (each.strip() for each in asm.strip("{ }").split(";"))):
        op, _, rest = step.partition(" ")
        names = re.findall(r"[%$\w]+", rest)
        kind = op.split(".")[0]
        values = [read(name) for name in names[1:]] if kind not in ("", "mma") else []
        match kind:
            case "":
                continue  # It declares registers.
            case "mov":
                held[names[0]] = values[0]
            case "and":
                held[names[0]] = values[0] & values[1]
            case "shr":
                held[names[0]] = values[0] >> values[1]
            case "lop3":
                assert names[4] == "0xEA"
                held[names[0]] = values[0] & values[1] | values[2]
            case "prmt":
                number = [each.astype(np.uint64) for each in values]
                both = number[0] | number[1] << np.uint64(32)
                picks = [(number[2] >> np.uint64(4 * i)) & np.uint64(7) for i in range(4)]
                found = np.zeros(32, np.uint64)
                for i, pick in enumerate(picks):
                    found |= (both >> (np.uint64(8) * pick) & np.uint64(255)) << np.uint64(8 * i)
                held[names[0]] = found.astype(np.uint32)
            case "setp":
                held[names[0]] = values[0] == values[1] if ".eq." in op else values[0] != values[1]
            case "selp":
                held[names[0]] = np.where(values[2], values[0], values[1])
            case "mma":
                sums = multiplied([read(name) for name in names[:10]])
                held |= {n: f.view(np.uint32) for n, f in zip(names[:4], sums, strict=True)}
            case _:
                raise ValueError(step)
    return held


@pytest.mark.parametrize("vectors, shifts", [(1, (0, 4)), (2, (4, 0)), (1, (0, 2, 4, 6))])
def test_lanes_of_a_quad_together_have_its_sum(vectors: int, shifts: tuple[int, ...]) -> None:
    width, offset = (4, 8) if len(shifts) == 2 else (2, 1)
    places = "".join(f"_at_{shift}" for shift in shifts)
    (text,) = functions(f"x = quad_sums_{width}_{offset}_{vectors}{places}(x)").values()
    random, lanes = np.random.default_rng(0), 16 * vectors
    weights = random.integers(0, 256, (32, 2, lanes), np.uint8)
    rows = random.integers(-8, 9, (len(shifts), 32, lanes)).astype(np.float32)
    words = [*weights.reshape(32, -1).view(np.uint32).T]
    factors = [[*bfloat16(row).view(np.uint32).T] for row in rows]
    first = [w for row in factors for w in (*row, *row)]
    products, beyond = re.findall(r'"(\{.*?\})"', text)
    named = {f"${2 * lanes + i}": each for i, each in enumerate([*words, *first])}
    found = followed(products, named)
    named = {f"${lanes + i}": w for i, w in enumerate(w for row in factors for w in row)}
    less = followed(beyond, named)
    for vector in range(vectors):
        own = slice(16 * vector, 16 * vector + 16)
        of_ones = less[f"${16 * vector}"].view(np.float32)
        for side in range(2):
            sums = found[f"${16 * (vectors * side + vector)}"].view(np.float32)
            bits = np.stack([weights[:, side, own] >> s & (1 << width) - 1 for s in shifts])
            wanted = ((bits.astype(np.float32) - offset) * rows[:, :, own]).sum((0, 2))
            both = (sums - (128.0 + offset) * of_ones).reshape(8, 4)
            np.testing.assert_array_equal(both.sum(1), wanted.reshape(8, 4).sum(1))
            assert (np.count_nonzero(sums.reshape(8, 4), 1) <= 1).all()


CALL = (
    '%x = tt.elementwise_inline_asm "mma.sync" {{constraints = "r", packed_element = {0} : i32}} '
    "%w : tensor<8x64x16xi8, #a> -> tensor<8x64x16xf32, #a> loc(#loc)\n"
)
LAYOUT = (
    "#a = #ttg.blocked<{{sizePerThread = [1, 1, {0}], threadsPerWarp = [1, 32, 1], "
    "warpsPerCTA = [{1}, 2, 1], order = [2, 1, 0]}}>\n"
)


@pytest.mark.parametrize(
    "count, each, beside, why",
    [
        (32, 16, 2, None),
        (64, 16, 2, "1 vectors of 8 rows"),
        (32, 8, 2, "otherwise than lanes sum"),
        (32, 16, 8, "1 vectors of 8 rows"),
    ],
)
def test_a_tile_that_lies_otherwise_is_found(
    count: int, each: int, beside: int, why: str | None
) -> None:
    found = misplaced(LAYOUT.format(each, beside) + CALL.format(count))
    assert found is None if why is None else why in str(found)
    assert misplaced("mma.sync") == "sums by quads are written in an unknown way"
    assert misplaced("") is None
