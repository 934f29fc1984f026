"""The budget of a search for covers. It counts work, never time, so that the same graph has the
same plan on every machine, however busy.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import Refused
from ..groups.group import GroupContent
from ..trace.trace import trace

LEAST, EACH = 3000, 100
"""Values that are looked at in any case, and for each operation. A group that is priced counts as
many as its kernel has; groups that are equal but for their names count once. Priced with its group,
a value takes some 0.3 ms."""


_NEIGHBOURS = 4
"""Values that count as one where neighbours along an axis are values of their own. With each
counted, three convolutions of FastViT took the budget of all that stands behind them."""


@lru_cache(maxsize=4096)
def size(part: GroupContent) -> int:
    """The values of a group's kernel; of one that is refused, its nodes."""
    try:
        found = trace(part.group)
    except Refused:
        return len(part.group.nodes)
    apart = any(output.part is not None for output in found.outputs)
    return len(found.values) // _NEIGHBOURS if apart else len(found.values)


class CoverBudget:
    """Of a look for the groups of so many operations."""

    def __init__(self, operations: int) -> None:
        self.left = LEAST + EACH * operations
        self._seen: set[str] = set()

    @property
    def is_spent(self) -> bool:
        return self.left <= 0

    def look(self, part: GroupContent) -> None:
        """Count a group that is looked at."""
        if part.key not in self._seen:
            self._seen.add(part.key)
            self.left -= size(part)
