"""Compilation for an H200 with no GPU at hand. The real compiler needs a process of its own,
because the interpreter is on in this one."""

from dataclasses import replace
from pathlib import Path

import pytest
from compiling import by_compiler
from fusionplan.planner.runtime.compile import (
    CompileFailed,
    compile_kernel,
    interpreted,
    jit_function,
)


@pytest.fixture(scope="module")
def found():
    return by_compiler(Path(__file__).with_name("real_compiler.py"))


def test_registers_and_spills_are_read_with_no_gpu(found):
    assert not found["interpreted"]
    assert 100 < found["rows"]["registers"] <= 255
    assert found["rows"]["spill_bytes"] == 0
    assert found["rows"]["shared_bytes"] > 0
    assert found["rows"]["cubin_bytes"] > 1000
    assert found["one_warp"]["spill_bytes"] > 1000


def test_only_aligned_pointers_get_wide_loads(found):
    assert found["rows"]["vector"]
    assert not found["unaligned"]["vector"]


def test_failures_say_what_is_wrong(found):
    assert "power of 2" in found["not_a_power_of_2"]
    assert "rsqrt is not defined" in found["unknown_name"]
    assert "no module" in found["no_module"]
    assert "columns" in found["other_name"]
    assert "takes 2 arguments" in found["buffers"]
    assert "complex64" in found["dtype"]


def test_launches_on_a_gpu(found):
    if found["gpu"] is None:
        pytest.skip("no GPU")
    assert found["gpu"] == [True] * 4


def test_loads_are_begun_ahead_only_where_the_loop_says_so(found):
    assert found["begins_ahead"] == [False, True]


def test_a_later_kernel_is_launched_before_the_last_has_ended(found):
    hopper, ampere = found["meets"]
    words = ["launch_dependents", "wait"]
    assert hopper == [[words, False], [words, True]]
    assert ampere == [[[], False], [[], False]]


def test_nothing_compiles_in_the_interpreter(kernel):
    assert interpreted()
    with pytest.raises(CompileFailed, match="TRITON_INTERPRET"):
        compile_kernel(kernel("x", 128))


def test_kernels_that_differ_in_comments_are_one(kernel):
    source = kernel("x * 2", 1000)
    text = source.text.replace("\n    tl.store", "  # add_7\n    tl.store", 1)
    assert text != source.text
    assert jit_function(replace(source, text=text)) is jit_function(source)
