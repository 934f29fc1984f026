"""All cases by name."""

from __future__ import annotations

from hostile import (
    arithmetic,
    attention,
    by_index,
    corners,
    elements,
    foreign,
    learning,
    library,
    lists,
    lookups,
    losses,
    memory,
    modules,
    programs,
    promotion,
    reductions,
    refused,
    special,
    states,
    surroundings,
    transforms,
    turned,
    views,
    weighted_losses,
    writes,
)
from hostile.cases import Case
from hostile.scenarios import SCENARIOS, Scenario

FAMILIES = (
    *arithmetic.FAMILIES,
    *special.FAMILIES,
    *transforms.FAMILIES,
    *views.FAMILIES,
    *writes.FAMILIES,
    *memory.FAMILIES,
    *lookups.FAMILIES,
    *losses.FAMILIES,
    *learning.FAMILIES,
    *programs.FAMILIES,
    *promotion.FAMILIES,
    *reductions.FAMILIES,
    *foreign.FAMILIES,
    *by_index.FAMILIES,
    *attention.FAMILIES,
    *library.FAMILIES,
    *turned.FAMILIES,
    *weighted_losses.FAMILIES,
    *corners.FAMILIES,
    *lists.FAMILIES,
    *refused.FAMILIES,
    elements.elements,
)
ALL: list[Case | Scenario] = [case for family in FAMILIES for case in family.cases]
assert modules, "its scenarios are in the list"
assert states, "and its"
assert surroundings, "and its"
ALL += SCENARIOS
CASES = {str(case): case for case in ALL}
assert len(CASES) == len(ALL), "two cases of one name"
