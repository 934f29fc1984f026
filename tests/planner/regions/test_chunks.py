"""Chunks of a group whose large value is read in parts, as where channels are split."""

import torch
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.lowerings.run_chunks import run_chunks
from fusionplan.planner.regions.chunks import Walk, walk
from fusionplan.tuner.trial.evaluate import Evaluator

PARTS = """\
%0 = input() : float32[6, 5]
%1 = input() : float32[5, 12]
%2 = aten.mm.default(%0, %1) : float32[6, 12]
%3 = aten.relu.default(%2) : float32[6, 12]
%4 = aten.slice.Tensor(%3, {dim}, 0, {half}) : float32[{part}] strides [12, 1]
%5 = aten.neg.default(%4) : float32[{part}]
%6 = aten.slice.Tensor(%3, {dim}, {half}, {whole}) : float32[{part}] strides [12, 1]
%7 = aten.exp.default(%6) : float32[{part}]
return %5, %7"""
BUDGET = 3 * 12 * 4
"""Half of the rows."""


def test_parts_of_a_value_are_read_whole_in_each_chunk() -> None:
    """The chunk was as wide as the first part, and what the others read lay outside of it: MixNet's
    first split of channels, 128 images, had no right element."""
    graph, cpu = parse(PARTS.format(dim=1, half=6, whole=12, part="6, 6")), torch.device("cpu")
    found = walk(graph, BUDGET)
    assert isinstance(found, Walk)
    assert found.steps == ((6, 3),)
    (body,) = found.bodies
    torch.manual_seed(0)
    inputs = [torch.randn(6, 5), torch.randn(5, 12)]
    run = run_chunks(found, [lambda args: Evaluator(body, cpu)(*args)], cpu)
    for ours, wanted in zip(run(list(inputs)), Evaluator(graph, cpu)(*inputs), strict=True):
        torch.testing.assert_close(ours, wanted)


def test_an_axis_that_is_read_in_parts_is_not_walked() -> None:
    """Here only the columns of the product are left, which need no part of the rows."""
    found = walk(parse(PARTS.format(dim=0, half=3, whole=6, part="3, 12")), BUDGET)
    assert isinstance(found, Walk)
    assert found.steps == ((12, 6),)
