"""Lookups by indices that follow from positions alone are views."""

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.rewrites.known_lookups import known_lookups
from oracle import each_graph

pytestmark = pytest.mark.dynamo

INDEX = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)


def image(order=torch.contiguous_format):
    return torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6).contiguous(memory_format=order)


VIEWS = {
    "twice": lambda x: F.interpolate(x, scale_factor=2.0),
    "three times": lambda x: F.interpolate(x, scale_factor=3.0),
    "to a size": lambda x: F.interpolate(x, size=(8, 30)),
    "half": lambda x: F.interpolate(x, scale_factor=0.5),
    "one dimension": lambda x: F.interpolate(x[0], scale_factor=2.0),
    "a range": lambda x: x[torch.arange(2)],
    "steps": lambda x: x[:, :, :, torch.arange(1, 6, 2)],
    "from the end": lambda x: x[:, :, torch.arange(3) - 3],
    "one again and again": lambda x: x[:, torch.arange(5) // 8 + 2],
}

LOOKUPS = {
    "no whole number": lambda x: F.interpolate(x, scale_factor=1.5),
    "backwards": lambda x: x[:, :, 3 - torch.arange(4)],
    "a diagonal": lambda x: x[torch.arange(2), torch.arange(2)],
    "apart": lambda x: x[torch.arange(2)[:, None], :, torch.arange(4)],
    "in the other order": lambda x: x[torch.arange(2), torch.arange(3)[:, None]],
    "unlike steps": lambda x: x[:, :, :, torch.arange(3) ** 2],
    "an input": lambda x: x[x[0, 0, 0, :2].long()],
}


def changed(function, x, dynamic=False):
    """What the rewritten graph gives, and how many lookups it had and has."""

    def look(gm, _):
        found = known_lookups(gm)
        counts = [sum(n.target in INDEX for n in each.graph.nodes) for each in (gm, found)]
        return found, counts

    (((gm, counts), inputs),) = each_graph(function, [x], look, dynamic=dynamic)
    return gm(*inputs), counts


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_lookups_that_are_views(order):
    """Enlarged images have the order of the image."""
    x = image(order)
    names = VIEWS if order is torch.contiguous_format else ("twice", "half")

    def all_of_them(x):
        return [VIEWS[name](x) for name in names]

    found, counts = changed(all_of_them, x)
    assert counts == [len(names), 0]
    for mine, wanted in zip(found, all_of_them(x), strict=True):
        assert torch.equal(mine, wanted)
        assert mine.stride() == wanted.stride()


def test_other_lookups_stay():
    def all_of_them(x):
        return [function(x) for function in LOOKUPS.values()]

    found, counts = changed(all_of_them, image())
    assert counts == [len(LOOKUPS)] * 2
    assert all(map(torch.equal, found, all_of_them(image())))


def test_sizes_that_vary_stay():
    _, counts = changed(VIEWS["twice"], image(), dynamic=True)
    assert counts == [1, 1]
