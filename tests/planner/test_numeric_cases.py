"""Integers, casts, constants and special values are eager's, a family in a kernel."""

from __future__ import annotations

import pytest
from numeric_cases import Family, families
from numeric_check import differences

FAMILIES = {family.name: family for family in families()}


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_eagers(name: str) -> None:
    family: Family = FAMILIES[name]
    wrong, others = differences(family)
    assert not wrong, "\n".join(wrong)
    assert tuple(others) == family.untouched
