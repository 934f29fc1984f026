"""A program that fails, made smaller as long as it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def shrunk(program: T, fails: Callable[[T], bool], reductions: Callable[[T], Iterable[T]]) -> T:
    """The first of a program's reductions that fails takes its place, until none fails."""
    while (smaller := next(filter(fails, reductions(program)), None)) is not None:
        program = smaller
    return program
