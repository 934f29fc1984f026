"""Evaluations with errors, which all outputs of a graph share."""

import pytest
import torch
from fusionplan.planner.graph.parse import parse
from fusionplan.tuner.gate import noisy_outputs, reference
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.noisy_outputs import NoisyOutputs
from fusionplan.tuner.gate.perturbed import Noise
from fusionplan.tuner.gate.reference import references

NOISES = [Noise(narrow=True, seed=seed) for seed in (1, 2, 3)]


@pytest.fixture
def counted(monkeypatch):
    """The outputs that each evaluation was asked for."""
    asked = []
    real = noisy_outputs.disturbed

    def disturbed(graph, *given):
        asked.append(graph.outputs)
        return real(graph, *given)

    monkeypatch.setattr(noisy_outputs, "disturbed", disturbed)
    return asked


def of_three(keeps: bool = True) -> tuple[NoisyOutputs, tuple[int, ...]]:
    """Of a graph with three outputs of 32 KiB each in float64."""
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    graph = parse(
        """
        %0 = input() : bfloat16[64, 64]
        %1 = aten.mul.Tensor(%0, 3.3) : bfloat16[64, 64]
        %2 = aten.exp.default(%0) : bfloat16[64, 64]
        %3 = aten.add.Tensor(%1, %2) : bfloat16[64, 64]
        return %1, %2, %3
        """
    )
    return NoisyOutputs(graph, [x], torch.device("cpu"), keeps), graph.outputs


def test_one_evaluation_serves_all_outputs(counted):
    noisy, outputs = of_three()
    found = [[noisy.output(output, noise) for noise in NOISES] for output in outputs]
    assert counted == [outputs] * len(NOISES)
    assert all(each.dtype is torch.float64 for own in found for each in own)
    assert not torch.equal(found[0][0], found[0][1])
    assert torch.equal(noisy.output(outputs[1], NOISES[2]), found[1][2])


def test_those_of_a_kernel_are_evaluated_one_by_one(counted):
    noisy, outputs = of_three(keeps=False)
    for output in outputs:
        noisy.output(output, NOISES[0])
    assert counted == [(output,) for output in outputs]


def test_what_does_not_fit_is_evaluated_for_each(counted, monkeypatch):
    """The first evaluations stay, for each output asks for them first."""
    noisy, outputs = of_three()
    monkeypatch.setattr(noisy_outputs, "_ON_CPU", 2 * 3 * 64 * 64 * 8)
    for output in outputs:
        for noise in NOISES:
            noisy.output(output, noise)
    alone = [(output,) for output in outputs]
    assert counted == [outputs, outputs, *alone]


def test_only_outputs_in_doubt_are_evaluated_with_errors(monkeypatch):
    """A step saves hundreds of outputs, of which eager's own error decides all but a few."""
    asked: list[tuple[int, ...]] = []
    for module in (noisy_outputs, reference):

        def disturbed(graph, *given, real=module.disturbed):
            asked.append(graph.outputs)
            return real(graph, *given)

        monkeypatch.setattr(module, "disturbed", disturbed)
    noisy, outputs = of_three()
    wanted = references(noisy.graph, noisy.inputs, noisy.device)
    good = [one.eager for one in wanted]
    assert check(wanted, good, "these") is None
    assert not asked
    # A few elements of two are off by more than eager is.
    other = [good[0], good[1].clone(), good[2].clone()]
    for each in other[1:]:
        each.view(-1)[:3] *= 1 + 2.0**-4
    assert check(wanted, other, "these") is not None
    assert asked[0] == outputs[1:]
    assert {output for few in asked for output in few} == {*outputs[1:]}
