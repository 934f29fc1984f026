"""Results and refusals that are kept for the objects they were computed of."""

from __future__ import annotations

import gc
import weakref

import pytest
from fusionplan.planner.errors import Refused
from fusionplan.planner.memo import by_identity


class Thing:
    """An object that can be watched."""


def test_a_refusal_is_kept_and_the_frames_that_it_passed_are_not() -> None:
    asked: list[Thing] = []

    @by_identity(4)
    def refuses(of: Thing) -> None:
        asked.append(of)
        raise Refused("rule", "reason")

    def call(of: Thing) -> weakref.ref[Thing]:
        large = Thing()
        with pytest.raises(Refused, match="rule: reason"):
            refuses(of)
        return weakref.ref(large)

    of = Thing()
    found = [call(of), call(of)]
    gc.collect()
    assert asked == [of]
    assert [each() for each in found] == [None, None]


def test_a_result_is_kept_for_its_object() -> None:
    @by_identity(1)
    def pair(of: Thing) -> tuple[Thing, object]:
        return of, object()

    one, other = Thing(), Thing()
    assert pair(one) is pair(one)
    assert pair(other)[0] is other
    first = pair(one)
    pair(other)
    assert pair(one) is not first  # only the last is kept
