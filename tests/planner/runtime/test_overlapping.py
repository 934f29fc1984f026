"""Which plans that nobody measured are recorded with launches that overlap."""

from dataclasses import replace

import pytest
from fusionplan.planner.config import Config
from fusionplan.planner.plan import Evidence, GroupPlan, Plan
from fusionplan.planner.runtime.overlapping import SHORT_S, overlapping

HOPPER, AMPERE = (9, 0), (8, 0)


def plan(seconds: float, evidence: Evidence = "modelled") -> Plan:
    config = Config((("x0", 1),))
    groups = (GroupPlan((0,), "triton", "k", config, seconds), GroupPlan((1,), "aten", "k"))
    return Plan("graph", "device", (), evidence, groups)


def test_short_kernels_of_the_model_overlap() -> None:
    assert overlapping(plan(SHORT_S / 2), HOPPER) == replace(plan(SHORT_S / 2), overlaps=True)


def test_kernels_of_one_group_count_each() -> None:
    several = plan(1.5 * SHORT_S)
    several = replace(several, groups=(replace(several.groups[0], kernels=2),))
    assert overlapping(several, HOPPER).overlaps


@pytest.mark.parametrize(
    "one, capability",
    [
        (plan(2 * SHORT_S), HOPPER),
        (plan(SHORT_S / 2), AMPERE),
        (plan(SHORT_S / 2, "measured"), HOPPER),
        (plan(SHORT_S / 2, "searched"), HOPPER),
        (replace(plan(SHORT_S / 2), groups=()), HOPPER),
    ],
    ids=["long", "older", "measured", "searched", "nothing of ours"],
)
def test_others_stay(one: Plan, capability: tuple[int, int]) -> None:
    assert overlapping(one, capability) is one
