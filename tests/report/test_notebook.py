"""What a notebook shows of a plan and of what `tune` gives; and that a repr is one short line."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from fusionplan.planner.capture.capture import Captured
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.explain_plan import explain_plan
from fusionplan.tuned import Tuned
from fusionplan.tuner.capture.capture_model import CapturedModel, ModelGraph
from fusionplan.tuner.session.place import Place
from report_store import block, measured, record

HOSTILE = "</style><script>alert(1)</script>"


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def tuned(name: str = "block", interrupted: bool = False) -> Tuned:
    plan = measured(block())
    empty = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    captured = Captured(empty, block(), torch.device("cpu"), ())
    part = ModelGraph(plan.graph_key, captured, (torch.zeros(1000),), "inference")
    model = CapturedModel((part,), 1, (HOSTILE,))
    place = Place(torch.device("cpu"), H200, False)
    return Tuned((plan,), (record(plan, name),), model, place, interrupted, lambda: None)


@pytest.mark.parametrize("shown", ["tuned", "plan", "plans", "records", "captured", "place"])
def test_reprs_are_short(shown):
    found = tuned()
    text = repr(found if shown == "tuned" else getattr(found, shown))
    assert len(text) < 500
    assert "\n" not in text


def test_the_repr_of_a_plan_says_what_it_comes_to():
    plan = measured(block())
    assert (
        repr(plan) == f"<Plan of graph {plan.graph_key[:12]}: 2 groups; measured; 44.3 us; 1.31x>"
    )
    plain = modelled_plan(block(), H200)
    assert "modelled" in repr(plain)
    assert "x>" not in repr(plain)


def test_what_tune_gives_shows_bars_and_groups():
    text = tuned()._repr_html_()
    for part in ("add relu mm", "max-autotune", "this plan", "speed-up 1.31x over max-autotune"):
        assert part in text, part
    tags = Cells(text).tags
    assert tags.count("tr") == 3
    assert tags.count("div") == 2  # one of all, one of the bars
    assert "Interrupted" not in text
    assert "Interrupted" in tuned(interrupted=True)._repr_html_()


def test_names_are_data_there_too():
    text = tuned(HOSTILE)._repr_html_()
    tags = Cells(text).tags
    assert "script" not in tags
    assert tags.count("style") == 1
    assert text.count("&lt;script&gt;alert(1)") == 2


def test_a_plan_that_was_not_measured_says_so():
    plan = modelled_plan(block(), H200)
    text = plan._repr_html_()
    assert "nothing was measured" in text
    assert 'class="bars"' not in text
    assert "No groups" in replace(plan, groups=())._repr_html_()


def test_an_explanation_shows_its_groups():
    explanation = explain_plan(block(), measured(block()), H200)
    assert len(repr(explanation)) < 200
    text = explanation._repr_html_()
    assert "add relu mm" in text
    assert "24.4 us" in text
    assert Cells(text).tags.count("tr") == 3
    hostile = explain_plan(block(mm=HOSTILE), measured(block(mm=HOSTILE)), H200)
    assert "script" not in Cells(hostile._repr_html_()).tags


def test_of_very_many_groups_the_first_are_shown():
    plan = modelled_plan(block(), H200)
    many = replace(plan, groups=plan.groups * 50)
    text = many._repr_html_()
    assert "and 60 more groups" in text
    assert Cells(text).tags.count("tr") == 41
