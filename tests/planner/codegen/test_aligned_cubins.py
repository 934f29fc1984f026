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
        # The lanes at the ends of what is stored have one element each.
        assert counts[name]["loads"] == int("softmax" in name), name


def test_stores_are_wide_but_for_the_ends(counts: dict[str, dict[str, int]]) -> None:
    """Of both ends of a row each of a few lanes stores one element."""
    for name, wide in {
        "softmax float32": 12,
        "softmax bfloat16": 6,
        "layer norm bfloat16": 4,
    }.items():
        assert counts[name]["wide stores"] == wide, name
        assert counts[name]["stores"] == 1, name


def test_where_the_length_varies_the_ends_of_a_held_row_are_stored_by_a_few_lanes(
    counts: dict[str, dict[str, int]],
) -> None:
    case = counts["softmax of any length"]
    assert (case["wide loads"], case["wide stores"]) == (4, 4)
    assert (case["loads"], case["stores"]) == (1, 1)


def test_only_what_ends_within_a_vector_is_loaded_by_elements(
    counts: dict[str, dict[str, int]],
) -> None:
    case = counts["softmax, an odd number of rows"]
    assert case["wide loads"] * 8 + 1 == case["loads"]


def test_weights_do_not_make_rows_narrow(counts: dict[str, dict[str, int]]) -> None:
    held, looped = counts["layer norm bfloat16"], counts["layer norm float32"]
    assert held["wide loads"]
    assert held["stores"] == 1
    assert looped["wide loads"]
    assert looped["stores"] == 1


def test_weights_of_many_rows_are_copied_and_read_as_vectors(
    counts: dict[str, dict[str, int]],
) -> None:
    """The kernel before reads 8 elements of each for a thread, one by one, and writes a vector; the
    lanes at the end read an element of each, and of the row."""
    assert counts["layer norm of many"]["loads"] == 2 * 8 + 3
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
