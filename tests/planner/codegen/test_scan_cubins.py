"""Gated scans compile for an H200, held and in loops, and keep what they have in registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import by_compiler

pytestmark = pytest.mark.process


def test_scans_of_full_size_compile_without_spills() -> None:
    found = by_compiler(Path(__file__).with_name("scan_cubins.py"))
    assert {kernel["layout"] for kernel in found} == {"natural", "loop"}
    assert len(found) >= 14
    assert sum("whole blocks" in kernel["case"] for kernel in found) == 2
    for kernel in found:
        assert kernel["spill_bytes"] == 0, kernel
        assert kernel["registers"] <= 128, kernel
