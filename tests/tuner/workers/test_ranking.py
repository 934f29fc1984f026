"""The order of configs, made once and perhaps by another."""

import pytest
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import partition
from fusionplan.planner.space.space import space_of
from fusionplan.tuner.search.tuned_groups import FEW, Tasks
from fusionplan.tuner.workers.ranking import BEST, RankedSpace, Ranking
from tuner_graphs import attention, softmax

H200 = builtin("h200")


class Elsewhere:
    """Gives what it is made with, and counts who asks."""

    def __init__(self, found: Ranking | None) -> None:
        self.found, self.asked, self.groups = found, 0, []

    def result(self) -> Ranking | None:
        self.asked += 1
        return self.found

    def rank(self, group, profile) -> "Elsewhere":
        assert profile == H200
        self.groups.append(group.key)
        return self


def test_a_ranking_survives_json():
    found = Ranking.of(space_of(softmax(), H200))
    assert found.best
    assert found.seeds
    assert Ranking.from_json(found.to_json()) == found


@pytest.mark.parametrize("data", [{}, {"best": [], "seeds": [[{"blocks": 3}, {}]]}])
def test_what_is_no_ranking_is_said(data):
    with pytest.raises(ValueError, match="no ranking"):
        Ranking.from_json(data)


def test_a_space_gives_what_was_ranked_elsewhere():
    space = space_of(softmax(), H200)
    whole = Ranking.of(space)
    other = Ranking(whole.best[3:5], whole.seeds[2:3])
    ranked = RankedSpace(space)
    elsewhere = Elsewhere(other)
    ranked.begin(lambda: elsewhere)
    ranked.begin(lambda: pytest.fail("it was begun before"))
    assert ranked.ranked(1) == [whole.best[3]]
    assert ranked.seeds(8) == [whole.seeds[2]]
    assert ranked.top() == whole.best[3]
    assert elsewhere.asked == 1


def test_what_did_not_come_is_ranked_here():
    space = space_of(softmax(), H200)
    ranked = RankedSpace(space)
    assert ranked.top() == space.top()
    ranked.begin(lambda: Elsewhere(None))
    assert ranked.ranked(7) == space.ranked(7)
    assert ranked.seeds(7) == space.seeds(7)
    assert ranked.top() == space.ranked(1)[0]


def test_who_was_interrupted_waits_no_more():
    class Interrupted(Elsewhere):
        def result(self) -> Ranking | None:
            super().result()
            raise KeyboardInterrupt

    space, elsewhere = space_of(softmax(), H200), Interrupted(None)
    ranked = RankedSpace(space)
    ranked.begin(lambda: elsewhere)
    with pytest.raises(KeyboardInterrupt):
        ranked.top()
    assert ranked.top() == space.top()
    assert elsewhere.asked == 1


def test_more_than_is_kept_is_ranked_again():
    space = space_of(attention(16, 1024), H200)
    ranked = RankedSpace(space)
    assert len(ranked.ranked(BEST)) == BEST
    assert len(ranked.ranked(BEST + 40)) == BEST + 40
    assert ranked.ranked(BEST + 40) == space.ranked(BEST + 40)


def test_many_groups_are_ranked_elsewhere_and_each_once():
    graph = softmax()
    alone = partition(graph, frozenset(Tasks(graph, H200).cover.edges(graph)))
    tasks, elsewhere = Tasks(graph, H200), Elsewhere(None)
    tasks.begin(alone[:FEW], elsewhere)
    assert not elsewhere.groups  # ranked here sooner
    tasks.begin(alone, elsewhere)
    tasks.begin(alone, elsewhere)
    different = {task.group.key for task in tasks.all(alone)}
    assert len(different) > FEW
    assert sorted(elsewhere.groups) == sorted(different)
