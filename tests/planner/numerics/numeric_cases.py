"""Small functions whose results eager decides to the last bit, by family: integers at the ends of
their types, casts that a user wrote, constants, special values. One table for the interpreter and
for a GPU.

A family is a dictionary of functions of the same inputs, so that one kernel holds them all. What is
undefined in C (an integer divided by 0, a float beyond the integer's range), or differs between
eager on a CPU and on a GPU, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from numeric_constants import constants, conversions
from numeric_family import Family
from numeric_integers import integers
from numeric_special import reductions, special


def families() -> Iterator[Family]:
    yield from integers()
    yield from conversions()
    yield from special()
    yield from constants()
    yield from reductions()
