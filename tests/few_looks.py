"""Plans and configs after few looks at the cost model: for tests of what they compute, not of how
they are found, which would take most of their time.
"""

from __future__ import annotations

from collections.abc import Callable

_RANKED = 400
_LAYOUTS = 2


def look_little(change: Callable[[object, str, object], None]) -> None:
    """Bounds what is looked at for a cover, a group's price and its config. change: `setattr`, or
    one that is undone."""
    from fusionplan.planner.covers import cover
    from fusionplan.planner.covers.cheapest import CoverEffort

    change(cover, "CoverEffort", lambda: CoverEffort(enumerated=30, priced=3))
    price_quickly(change)


def price_quickly(change: Callable[[object, str, object], None]) -> None:
    """Bounds what is looked at for a group's price and its config, but not for a cover: groups are
    compared by one config of each of their first layouts."""
    from fusionplan.planner.space import space

    def usual(of: space.Space) -> object:
        if of.usual is not None:
            return of.usual
        few = list(of.schedules)[:_LAYOUTS]
        return min(of._quick(few, {}).values(), key=space._by_seconds, default=None)

    change(space.Space, "_best_usual", usual)
    change(space.Space, "_in_step", lambda self, found, least_s: found)
    change(space, "_LOOKED_AT", 24)
    change(space, "_PRODUCTS_LOOKED_AT", 24)
    change(space, "_QUICK", 1)


def rank_few(change: Callable[[object, str, object], None]) -> None:
    """Ranks some hundred configs of a space in place of thousands, as many of each layout: for
    tests of what kernels compute, one config of each kind."""
    from fusionplan.planner.memo import by_identity
    from fusionplan.planner.space import space

    def ranked(of: space.Space) -> object:
        return space._sorted(of, of.enumerate(_RANKED))

    change(space, "_ranked", by_identity(16)(ranked))
