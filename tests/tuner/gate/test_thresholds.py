"""Comparisons with a number: the mask of a relu, which a training step saves."""

import pytest
import torch
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.parse import parse
from fusionplan.tuner.gate import rounding_flips
from fusionplan.tuner.gate.check import compare
from fusionplan.tuner.gate.reference import expected
from fusionplan.tuner.trial.evaluate import evaluate
from fusionplan.tuner.trial.inputs import make

CPU = torch.device("cpu")
SUMS = "%2 = aten.mm.default(%0, %1) : bfloat16[96, 256]"
MASKS = {
    "of_relu": f"""
        {SUMS}
        %3 = aten.relu.default(%2) : bfloat16[96, 256]
        %4 = aten.le.Scalar(%3, 0) : bool[96, 256]
        return %4
        """,
    "of_sums": f"""
        {SUMS}
        %3 = aten.gt.Scalar(%2, 1.5) : bool[96, 256]
        return %3
        """,
    "of_two": f"""
        {SUMS}
        %3 = aten.ge.Tensor(%2, %0) : bool[96, 256]
        return %3
        """,
}
INPUTS = """
        %0 = input() : bfloat16[96, 256]
        %1 = input() : bfloat16[256, 256]
        """


def given(name: str) -> tuple[Graph, list[torch.Tensor], torch.Tensor]:
    """A graph, its inputs, and how far in float64 the compared sums are from where they flip."""
    graph = parse(INPUTS + MASKS[name])
    inputs = make(graph, "random", CPU, seed=2)
    x, w = (each.double() for each in inputs)
    other = {"of_relu": 0.0, "of_sums": 1.5, "of_two": x}[name]
    return graph, inputs, (x @ w - other).abs()


@pytest.mark.parametrize("name", MASKS)
def test_sums_that_lie_at_the_threshold_may_fall_on_either_side(name: str, monkeypatch):
    monkeypatch.setattr(rounding_flips, "_SAMPLES", 0)  # Evaluations with errors may miss it.
    monkeypatch.setattr(rounding_flips, "_RARE", 1 / (96 * 256))
    graph, inputs, apart = given(name)
    (wanted,) = expected(graph, inputs, CPU)
    (mask,) = evaluate(graph, inputs, CPU)
    nearest = apart.flatten().argmin()
    assert apart.flatten()[nearest] < 2e-3
    mask.view(-1)[nearest] ^= True
    assert compare(wanted, mask) is None


@pytest.mark.parametrize("name", MASKS)
def test_a_sum_that_lies_elsewhere_may_not(name: str, monkeypatch):
    monkeypatch.setattr(rounding_flips, "_PATIENCE", 2)
    monkeypatch.setattr(rounding_flips, "_RARE", 1.0)
    graph, inputs, apart = given(name)
    (wanted,) = expected(graph, inputs, CPU)
    (mask,) = evaluate(graph, inputs, CPU)
    place = int((apart > 8.0).flatten().int().argmax())
    mask.view(-1)[place] ^= True
    assert "1 of" in str(compare(wanted, mask))


def test_zeros_of_a_relu_are_not_all_at_the_threshold(monkeypatch):
    """Half of a relu is 0 exactly: what was cut off decides."""
    monkeypatch.setattr(rounding_flips, "_PATIENCE", 2)
    monkeypatch.setattr(rounding_flips, "_RARE", 1.0)
    graph, inputs, _ = given("of_relu")
    (wanted,) = expected(graph, inputs, CPU)
    assert compare(wanted, torch.zeros(96, 256, dtype=torch.bool)) is not None


@pytest.mark.parametrize("name", ["of_sums", "of_two"])
def test_at_the_threshold_as_many_may_differ_as_eagers_do_twice(name: str, monkeypatch):
    monkeypatch.setattr(rounding_flips, "_SAMPLES", 0)
    graph, inputs, apart = given(name)
    (wanted,) = expected(graph, inputs, CPU)
    flips = max(int((each != wanted.value).sum()) for each in (wanted.eager, *wanted.doubt.known))
    assert flips
    for times, passes in ((2, True), (3, False)):
        mask = wanted.value.clone()
        mask.view(-1)[apart.flatten().argsort()[: times * flips]] ^= True
        assert (compare(wanted, mask) is None) == passes
