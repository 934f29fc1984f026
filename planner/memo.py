"""Caches of results, by the object that each was computed from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from .errors import Refusal, Refused

Self = TypeVar("Self", bound="Keeping")
Of = TypeVar("Of")
Result = TypeVar("Result")


class Keeping:
    """Keeps what its methods that are marked `asked_once` give."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Any], Any] = {}


def asked_once(method: Callable[[Self, Of], Result]) -> Callable[[Self, Of], Result]:
    """Ask a method once for each argument, as long as its object lives."""
    name = method.__name__

    @wraps(method)
    def look_up(self: Self, of: Of) -> Result:
        known = self._kept
        if (name, of) not in known:
            known[name, of] = method(self, of)
        found: Result = known[name, of]
        return found

    return look_up


def by_identity(most: int) -> Callable[[Callable[[Of], Result]], Callable[[Of], Result]]:
    """Keep a function's results, and its refusals, for the last `most` objects it was asked about.
    To compare two graphs takes longer than to see that they are the same object."""

    def decorate(function: Callable[[Of], Result]) -> Callable[[Of], Result]:
        # The object is kept as long as its result, so that no other has its id.
        kept: OrderedDict[int, tuple[Of, Result | None, Refusal | None]] = OrderedDict()
        known = kept.get

        @wraps(function)
        def look_up(of: Of) -> Result:
            found = known(id(of))
            if found is None:
                try:
                    found = (of, function(of), None)
                except Refused as error:
                    found = (of, None, error.refusal)
                kept[id(of)] = found
                if len(kept) > most:
                    kept.popitem(last=False)
            if found[2] is not None:
                # Anew each time: an exception holds all frames that it passed, and what they hold,
                # such as the inputs of the user's call.
                raise found[2].error()
            return found[1]  # type: ignore[return-value]  # None only beside a refusal

        return look_up

    return decorate
