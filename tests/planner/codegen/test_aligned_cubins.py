"""Rows that begin anywhere are moved 16 bytes at a time: Triton sees it of the kernels' text."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import by_compiler

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    """Compiled in a process of its own, because the interpreter is on in this one."""
    return by_compiler(Path(__file__).with_name("aligned_cubins.py"))


def test_loads_of_rows_are_wide(counts: dict[str, dict[str, int]]) -> None:
    for name in ("softmax float32", "softmax bfloat16", "logsumexp bfloat16"):
        assert counts[name]["wide loads"] >= 2, name
        assert counts[name]["loads"] == 0, name


def test_stores_are_wide_but_for_the_ends(counts: dict[str, dict[str, int]]) -> None:
    """A narrow store of every element is in the text of both ends, and none in the middle."""
    for name, elements in {"softmax float32": 4, "softmax bfloat16": 8}.items():
        assert counts[name]["wide stores"] * elements * 2 == counts[name]["stores"] * 3, name


def test_only_what_ends_within_a_vector_is_loaded_by_elements(
    counts: dict[str, dict[str, int]],
) -> None:
    case = counts["softmax, an odd number of rows"]
    assert case["wide loads"] * 8 == case["loads"]


def test_weights_do_not_make_rows_narrow(counts: dict[str, dict[str, int]]) -> None:
    held, looped = counts["layer norm bfloat16"], counts["layer norm float32"]
    assert held["wide loads"]
    assert held["wide stores"] * 8 == held["stores"]
    assert looped["wide loads"]
    assert looped["wide stores"] * 4 * 2 == looped["stores"] * 3


def test_weights_of_many_rows_are_copied_and_read_as_vectors(
    counts: dict[str, dict[str, int]],
) -> None:
    """The kernel before reads 8 elements of each for a thread, one by one, and writes a vector."""
    assert counts["layer norm of many"]["loads"] == 2 * 8
    assert counts["layer norm of many"]["wide loads"] >= 9


def test_rows_of_one_of_two_weights_are_loaded_once(counts: dict[str, dict[str, int]]) -> None:
    """Of both weights together 8 x 2048 elements for 256 threads, 8 in a vector, and the row."""
    assert counts["two weights"]["wide loads"] == 8 + 1
    assert counts["two weights"]["loads"] == 0


def test_blocks_of_a_grid_are_windows_of_whole_vectors(counts: dict[str, dict[str, int]]) -> None:
    """A thread moves one vector; what begins elsewhere is read by elements, side by side."""
    for name, wide in {"copy of longer rows": 0, "bias": 1}.items():
        case = counts[name]
        assert (case["wide stores"], case["stores"]) == (1, 8), name
        assert case["wide loads"] == wide, name
        assert case["loads"] == 8, name
