"""Left operands that all turns of a loop share: machine code that loses one, and the text that
renews it."""

import re

import pytest
from fusionplan.planner.runtime.machine_code.kept_operands import (
    overwritten_operand,
    renewed,
    shared_by_turns,
)

PRODUCT = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r90, %r91}, "
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
BEFORE = "\t.reg .b32 \t%r<99>;\n\tcvt.rn.bf16x2.f32 \t%r1, %f1, %f2;\n"
OWN = "cvt.rn.bf16x2.f32 \t%r2, %f3, %f4;"


def product(*left: str) -> str:
    return f"{PRODUCT}{{{','.join(left)}}}, %rd1, %p1, 1, 1, 0;"


def loop(*lines: str) -> str:
    body = "".join(f"\t{line}\n" for line in lines)
    wait = "\twgmma.wait_group.sync.aligned 0;\n"
    return f"{BEFORE}$L__BB0_1: // a loop\n{body}{wait}\t@%p2 bra \t$L__BB0_1;\n\tret;\n"


BOTH = loop(FENCE, product("%r1", "%r11"), COMMIT, OWN, FENCE, product("%r2"), COMMIT)


def test_a_loop_with_both_kinds_of_left_operand_is_named():
    (kept,) = shared_by_turns(BOTH)
    assert [BOTH.splitlines()[place].strip() for place in kept] == [product("%r1", "%r11")]


@pytest.mark.parametrize(
    "text",
    [
        loop(FENCE, product("%r1"), COMMIT),
        loop(OWN, FENCE, product("%r2"), COMMIT),
        loop(FENCE, f"{PRODUCT}%rd2, %rd1, %p1, 1, 1, 0, 0;", COMMIT),
        "\tadd.s32 \t%r1, %r2, %r3;\n",
    ],
)
def test_other_loops_are_not(text):
    assert shared_by_turns(text) == []
    assert renewed(text) == text


def test_each_turn_writes_what_was_shared():
    lines = [line.strip() for line in renewed(BOTH).splitlines()]
    first = lines.index(next(line for line in lines if line.startswith("$L")))
    assert lines[first + 2].startswith("activemask.b32")
    assert [re.sub(r"\s+", " ", line) for line in lines[first + 4 : first + 8]] == [
        f"or.b32 %kept1, %r1, {lines[first + 2].split()[1][:-1]};",
        f"or.b32 %kept2, %r11, {lines[first + 2].split()[1][:-1]};",
        FENCE,
        product("%kept1", "%kept2"),
    ]
    assert product("%r2") in lines
    assert ".reg .b32 \t%kept<3>;" in lines
    assert shared_by_turns(renewed(BOTH)) == []


def sass(*lines: str) -> str:
    """The lines at addresses of their own; `back` goes to the third."""
    text = [line.replace("back", "BRA 0x0020") for line in lines]
    return "".join(
        f"        /*{16 * n:04x}*/  {line} ;  /* 0x0 */\n" for n, line in enumerate(text)
    )


KEPT, OTHERS = "HGMMA.64x128x16.F32.BF16 R24, R216, gdesc[UR4], RZ", "HGMMA.64x128x16.F32.BF16 R88"
COMPUTED = [f"F2FP.BF16.F32.PACK_AB R{n}, R1, R2" for n in (216, 217, 218, 219)]
ELSEWHERE = [text.replace("R2", "R1", 1) for text in COMPUTED]


def test_registers_that_another_product_takes_are_found():
    taken = sass("NOP", *COMPUTED[:1], KEPT, *COMPUTED, f"{OTHERS}, R216, gdesc[UR4]", "@P0 back")
    assert overwritten_operand(taken) is not None


@pytest.mark.parametrize(
    "lines",
    [
        [KEPT, *ELSEWHERE, f"{OTHERS}, R116, gdesc[UR4]", "@P0 back"],
        [KEPT, *COMPUTED, "MOV R216, R10", "LDL.64 R218, [R1]", "MOV R217, R11", "@P0 back"],
        [*COMPUTED, KEPT, *COMPUTED, f"{OTHERS}, R216, gdesc[UR4]", "@P0 back"],
        # The way back from where a barrier is waited for is no loop.
        [KEPT, *COMPUTED, f"{OTHERS}, R216, gdesc[UR4]", "back"],
    ],
)
def test_registers_of_its_own_are_right(lines):
    assert overwritten_operand(sass("NOP", "NOP", *lines)) is None
