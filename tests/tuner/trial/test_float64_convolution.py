"""Convolutions as a reference: on operands in planes, wherever the graph's own lie."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.tuner.trial.evaluate import evaluate
from fusionplan.tuner.trial.float64_convolution import wide_convolution
from tuner_fakes import captured

X = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
W = torch.randn(8, 1, 3, 3)


@pytest.mark.dynamo
def test_a_reference_is_computed_in_planes():
    graph = captured(lambda x, w: F.conv2d(x, w, padding=1, groups=8), X, W).graph
    (own,) = evaluate(graph, (X, W), X.device)
    (wide,) = evaluate(graph, (X, W), X.device, wide=torch.float64)
    assert own.is_contiguous(memory_format=torch.channels_last)
    assert wide.is_contiguous()
    torch.testing.assert_close(wide, F.conv2d(X.double(), W.double(), padding=1, groups=8))


def test_so_are_gradients_and_nothing_else_is():
    call = wide_convolution("aten.convolution_backward.default")
    assert call is not None
    given = [[1, 1], [1, 1], [1, 1], False, [0, 0], 8, [True, True, False]]
    double = [X.double(), X.double(), W.double()]
    own = torch.ops.aten.convolution_backward.default(*double, [8], *given)
    wide = call(*double, [8], *given)
    assert wide[0].is_contiguous()
    for one, other in zip(wide[:2], own[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert wide_convolution("aten.mm.default") is None
