"""Whole plans have few evaluations with errors: chance must not refuse a right one for that, nor a
wrong one be let through. A sample of made_up_plans.py, whose counts docs/numerics.md has."""

import pytest
from fusionplan.tuner.gate import more_samples
from made_up_plans import FAULTS, MadeUpGraph, block, few_left, seeds, sharp

OF_FOUR = [(few_left, 1, [200014]), (block, 0, [100001, 100003]), (sharp, 0, [100000, 100014])]
"""Graphs, their numbers, and right plans of them that four evaluations refuse."""


@pytest.fixture(scope="module", params=OF_FOUR, ids=lambda each: each[0].__name__)
def made_up(request) -> tuple[MadeUpGraph, list[int]]:
    make, number, plans = request.param
    return MadeUpGraph.of(make, number), plans


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the graph were so large that it has the fewest evaluations."""
    monkeypatch.setattr(more_samples, "_ELEMENTS", 0)


@pytest.mark.usefixtures("large")
def test_a_right_plan_passes_by_the_fewest_evaluations(made_up, monkeypatch: pytest.MonkeyPatch):
    one, plans = made_up
    assert [seed for seed in plans if one.refusal(seed)] == []
    # The slices of evaluations are kept: to judge a plan once more takes none.
    monkeypatch.setattr("fusionplan.tuner.gate.rounding_flips.Doubt.evaluated", None)
    assert [seed for seed in plans if one.refusal(seed)] == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("made_up", OF_FOUR[:2], indirect=True, ids=["few_left", "block"])
def test_a_wrong_plan_does_not(made_up):
    one, _ = made_up
    for fault in FAULTS:
        seed = next(seed for seed in seeds(7, 60) if one.is_spoiled(seed, fault))
        assert one.refusal(seed, fault) is not None, (fault.__name__, seed)
