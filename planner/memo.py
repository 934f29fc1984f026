"""Results kept for the objects that they were computed of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from .errors import Refused

Of = TypeVar("Of")
Result = TypeVar("Result")


def by_identity(most: int) -> Callable[[Callable[[Of], Result]], Callable[[Of], Result]]:
    """Keep a function's results, and its refusals, for the last `most` objects it was asked about.
    To compare two graphs takes longer than to see that they are the same object."""

    def decorate(function: Callable[[Of], Result]) -> Callable[[Of], Result]:
        # The object is kept as long as its result, so that no other has its id.
        kept: OrderedDict[int, tuple[Of, Result | None, Refused | None]] = OrderedDict()

        @wraps(function)
        def look_up(of: Of) -> Result:
            found = kept.get(id(of))
            if found is None:
                try:
                    found = (of, function(of), None)
                except Refused as refused:
                    # Without the frames of its making, which hold all that was made.
                    found = (of, None, refused.with_traceback(None))
                kept[id(of)] = found
                if len(kept) > most:
                    kept.popitem(last=False)
            _, result, refused_before = found
            if refused_before is not None:
                raise refused_before.with_traceback(None)
            return result  # type: ignore[return-value]  # None only beside a refusal

        return look_up

    return decorate
