"""Products that still read registers: which text for ptxas is changed, and where."""

from __future__ import annotations

import re

import pytest
from fusionplan.planner.runtime.machine_code.wgmma_waits import awaited

PRODUCT = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r90, %r91}, "
COMMIT, NEXT = "wgmma.commit_group.sync.aligned;", "add.s64 %rd9, %rd9, 1;"


def left(*names: str) -> str:
    """A product whose left operand is in registers, and a group of its own."""
    return f"{PRODUCT}{{{', '.join(names)}}}, %rd1, %p1, 1, 1, 0;\n\t{COMMIT}"


def wait(number: int) -> str:
    return f"wgmma.wait_group.sync.aligned {number};"


def loop(*lines: str) -> str:
    body = "\n".join(f"\t{line}" for line in lines)
    return f"$L__BB0_1: // a loop\n{body}\n\t@%p2 bra \t$L__BB0_1;\n\t{wait(0)}\n\tret;\n"


def waits(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"wait_group\S* (\d+)", text)]


def test_the_last_wait_of_a_turn_waits_for_all_where_the_next_writes_again():
    computed = ("selp.b32 %r1, 0, %r8, %p3;", "selp.b32 %r2, 0, %r9, %p3;")
    text = loop(*computed, left("%r1"), wait(1), left("%r2"), wait(1), NEXT)
    assert waits(text) == [1, 1, 0]
    assert waits(awaited(text)) == [1, 0, 0]
    assert awaited(awaited(text)) == awaited(text)


def test_loads_of_several_registers_are_writes_too():
    loaded = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r50+16];"
    text = loop(loaded, left("%r1", "%r2"), wait(1), NEXT)
    assert waits(awaited(text)) == [0, 0]


def test_what_comes_from_another_thread_is_written():
    text = loop("shfl.sync.bfly.b32 %r1|%p5, %r8, 1, 31, -1;", left("%r1"), wait(1), NEXT)
    assert waits(awaited(text)) == [0, 0]


def test_a_copy_is_no_register_of_its_own():
    """ptxas may let a copy and what it copies be one register."""
    moved = ("add.s32 %r7, %r8, 1;", left("%r2"), wait(0), "mov.b32 %r1, %r7;", left("%r1"))
    text = loop(*moved, wait(1), NEXT)
    assert waits(awaited(text)) == [0, 0, 0]


def test_what_is_waited_for_before_it_is_written_stays_as_it_is():
    """Attention: the product with the weights goes on while the next scores are computed, which
    are waited for before there are new weights."""
    scores = f"{PRODUCT}%rd3, %rd4, %p1, 1, 1, 0, 0;\n\t{COMMIT}"
    text = loop(scores, wait(0), "ex2.approx.f32 %r1, %r8;", left("%r1"), wait(1), NEXT)
    assert awaited(text) == text


def test_an_operand_that_no_turn_writes_stays_as_it_is():
    text = "\tmov.b32 %r1, %r5;\n" + loop(left("%r1"), wait(1), NEXT)
    assert awaited(text) == text


def test_operands_in_shared_memory_are_no_matter_of_registers():
    text = loop(f"{PRODUCT}%rd3, %rd4, %p1, 1, 1, 0, 0;", COMMIT, wait(1), NEXT)
    assert awaited(text) == text


def test_a_wait_that_is_jumped_over_is_none():
    computed = "selp.b32 %r1, 0, %r8, %p3;"
    text = loop(computed, left("%r1"), "@%p7 bra $L__BB0_2;", wait(0)).replace(
        "\t@%p2", "$L__BB0_2:\n\t@%p2"
    )
    with pytest.raises(ValueError, match="nothing waits"):
        awaited(text)


def test_a_wait_before_the_products_group_is_none():
    product = left("%r1").replace(COMMIT, f"{wait(0)}\n\t{COMMIT}")
    with pytest.raises(ValueError, match="nothing waits"):
        awaited(loop("add.s32 %r1, %r8, 1;", product, NEXT))


def test_the_halves_of_a_register_are_followed():
    halves = ("selp.b16 %rs1, 0, %rs5, %p3;", left("%r2"), wait(0), "mov.b32 %r1, {%rs1, %rs1};")
    text = loop(*halves, left("%r1"), wait(1), NEXT)
    assert waits(awaited(text)) == [0, 0, 0]


def test_loops_in_loops():
    """What the inner loop leaves under way, the outer one waits for before it begins again."""
    inner = loop("add.s32 %r1, %r8, 1;", left("%r1"), wait(1)).replace("BB0_1", "BB0_3")
    inner = inner.replace("\tret;\n", "")
    text = loop(inner.replace(f"\t{wait(0)}\n", f"\t{wait(1)}\n"))
    assert waits(text) == [1, 1, 0]
    assert waits(awaited(text)) == [0, 1, 0]


def test_a_branch_by_a_table_is_said():
    with pytest.raises(ValueError, match="cannot be told"):
        awaited(loop("add.s32 %r1, %r8, 1;", left("%r1"), wait(0), "brx.idx %r4, ts;"))


def test_no_wait_at_all_is_said():
    with pytest.raises(ValueError, match="nothing waits"):
        awaited(loop("add.s32 %r1, %r8, 1;", left("%r1"), NEXT))
