"""Texts for ptxas of which it would make machine code that reads another place."""

import pytest
from fusionplan.planner.runtime.machine_code.left_operands import misread

RESULT = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r90, %r91}, "
WIDE, NARROW = "4611686293305294848", "-9223371899415822336"


def described(name: str, address: str, layout: str = WIDE, operation: str = "or.b64") -> str:
    return f"\t{operation} \t{name}, {address}, {layout};\n"


def computed(right: str) -> str:
    return f"\t{RESULT}{{%r1,%r2}}, {right}, %p1, 1, 1, 0;\n"


def loaded(left: str, right: str) -> str:
    return f"\t{RESULT}{left}, {right}, %p1, 1, 1, 0, 0;\n"


FIRST = described("%rd1", "%rd9") + computed("%rd1")


@pytest.mark.parametrize("operation", ["or.b64", "add.s64"])
def test_a_left_operand_where_a_right_one_lay_is_refused(operation):
    later = described("%rd2", "%rd9", NARROW, operation) + described("%rd3", "%rd8", NARROW)
    assert misread(FIRST + later + loaded("%rd2", "%rd3")) is not None


def test_places_of_their_own_are_not():
    later = described("%rd2", "%rd7") + described("%rd3", "%rd9")
    assert misread(FIRST + later + loaded("%rd2", "%rd3")) is None


def test_only_what_stands_behind_a_computed_operand():
    first = described("%rd2", "%rd9") + described("%rd3", "%rd8") + loaded("%rd2", "%rd3")
    assert misread(first + FIRST) is None
    assert misread("\tadd.s64 \t%rd2, %rd9, 2;\n") is None
