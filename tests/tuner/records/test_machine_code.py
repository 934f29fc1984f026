"""Kernels that were compiled correct what is expected of those like them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.space.space import MOST_SPILLED
from fusionplan.tuner.records.machine_code import GroupMachineCode

CONFIG = Config((("x0", 64), ("x1", 64)), num_warps=4)


def known(*kernels: tuple[Config, int, int, int]) -> GroupMachineCode:
    found = GroupMachineCode()
    for kernel in kernels:
        found.add(*kernel)
    return found


def test_without_a_kernel_the_model_stands() -> None:
    assert GroupMachineCode().registers(CONFIG, 77) == 77
    assert GroupMachineCode().spilled(CONFIG, 77) == 0


def test_the_nearest_corrects_in_its_own_measure() -> None:
    far = replace(CONFIG, num_warps=32)
    found = known((CONFIG, 60, 90, 0), (far, 60, 40, 0))
    assert found.registers(replace(CONFIG, eviction="first"), 60) == pytest.approx(90, abs=3)
    assert found.registers(replace(far, num_warps=16), 60) == pytest.approx(42, abs=3)
    assert found.registers(replace(CONFIG, num_warps=8), 40) == pytest.approx(53, abs=1)


def test_the_farther_the_less() -> None:
    found = known((CONFIG, 60, 120, 0))
    steps = [replace(CONFIG, num_stages=n) for n in (2, 4, 8)] + [replace(CONFIG, split=4)]
    expected = [found.registers(each, 60) for each in steps]
    assert expected == sorted(expected, reverse=True)
    assert len({*expected}) == len(expected)
    assert expected[-1] > 60


def test_no_more_than_a_thread_has() -> None:
    assert known((CONFIG, 60, 200, 0)).registers(CONFIG, 200) == 255
    wide = replace(CONFIG, num_warps=32)
    assert known((wide, 32, 64, 0)).registers(wide, 60) == 64


def test_another_tiling_says_nothing() -> None:
    flat = replace(CONFIG, tiling="flat")
    assert known((flat, 60, 120, 0)).registers(CONFIG, 60) == 60


def test_a_kernel_that_spills_warns_of_those_like_it() -> None:
    found = known((CONFIG, 180, 32, 4000))
    like, other = replace(CONFIG, num_stages=3), replace(CONFIG, num_warps=16)
    assert found.spilled(like, 180) == 4000
    assert found.spilled(like, 170) == 0  # it asks for less
    assert found.spilled(other, 180) == 0
    assert found.registers(like, 180) == 180  # 32 registers say nothing of the need
    assert known((CONFIG, 180, 255, MOST_SPILLED)).spilled(like, 180) == 0
