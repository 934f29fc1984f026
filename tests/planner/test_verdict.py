"""What a plan comes to, in one sentence."""

from dataclasses import replace

import pytest
from fusionplan.planner.plan import Contest, Contestant, GroupPlan, Plan, verdict

KEY = "k" * 32
BEHIND = [Contestant("eager", 1e-5, 3e-5, 1.0, 1.0, 1.0, 40)]
BODY = Plan(KEY, "h200", (), "modelled", ())


def plan(*groups: GroupPlan, **given: object) -> Plan:
    found = Plan(KEY, "h200", (), "measured", groups, measured=1e-5)
    return replace(found, **({"baselines": (("eager", 1e-5), ("default", 1.2e-5))} | given))


@pytest.mark.parametrize(
    "group",
    [
        GroupPlan((3, 4), "vendor", KEY, options="sdpa"),
        GroupPlan((3, 4), "chunked", KEY, options="4096", bodies=(BODY,)),
        GroupPlan((3, 4), "inductor", "another", options="default"),
    ],
)
def test_a_plan_with_a_group_of_its_own_is_no_baseline(group):
    assert verdict(plan(group)).startswith("no speed-up: 1.00x over eager, the fastest baseline")


@pytest.mark.parametrize(
    "groups, name",
    [((), "eager"), ((GroupPlan((3, 4), "inductor", KEY, options="default"),), "default")],
)
def test_that_a_baseline_is_slower_than_its_own_plan_is_noise(groups, name):
    told = Contest(tuple(BEHIND), "as kept", 4)
    for seconds in (0.9e-5, 1e-5, 1.1e-5):
        text = verdict(plan(*groups, measured=seconds, contest=told))
        kept = f"no gain: {name} is kept, as no plan is clearly faster in both timings"
        assert text.startswith(kept)
        assert "speed-up" not in text


def test_a_baseline_as_a_cuda_graph_of_ours_may_gain():
    group = GroupPlan((3, 4), "inductor", KEY, options="default")
    text = verdict(plan(group, cudagraph=True, measured=5e-6))
    assert text.startswith("speed-up 2.00x over eager")
