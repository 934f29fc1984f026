"""Cutting a large group down for the interpreter."""

import pytest
import torch
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, Node, Ref
from fusionplan.planner.lower import lower
from fusionplan.planner.space.space import space_of
from fusionplan.tuner.gate.partial_check import LARGEST, fill_unwritten, shrunk
from fusionplan.tuner.trial.inputs import poison
from tuner_graphs import dense, pointwise, softmax


def largest(group: Graph) -> int:
    return max(n.type.numel for n in group.nodes)


def test_a_small_group_stays_as_it_is():
    assert shrunk(softmax()) == (softmax(), "")


@pytest.mark.parametrize("make", [softmax, pointwise])
def test_rows_are_cut_before_columns(make):
    small, said = shrunk(make(1 << 15, 4096, dtype="bfloat16"))
    assert small.nodes[0].type == dense(128, 4096, dtype="bfloat16")
    assert said == "extent 32768 as 128"


def test_a_square_is_cut_whole_and_an_odd_extent_stays_odd():
    small, said = shrunk(pointwise(8191, 8191))
    assert small.nodes[0].type == dense(511, 511)
    assert said == "extent 8191 as 511"


def test_the_config_of_the_large_group_still_makes_a_kernel():
    group = softmax(1 << 15, 4096)
    ((config, _),) = space_of(group, builtin("h200")).ranked(1)
    small, _ = shrunk(group)
    assert not isinstance(lower(small, config), Refusal)


def test_strides_keep_their_order():
    t = dense(1 << 13, 1 << 12)
    turned = type(t)(t.shape, (1, t.shape[0]), t.dtype)
    group = Graph(
        (
            Node(0, "x", "input", type=turned),
            Node(1, "r", "aten.relu.default", (Ref(0),), type=turned),
        ),
        (1,),
    )
    small, _ = shrunk(group)
    assert small.nodes[0].type.stride == (1, 128)
    assert small.nodes[1].type.stride == (1, 128)


def test_a_group_whose_sizes_hang_together_is_not_cut_wrongly():
    flat, square = dense(1 << 25), dense(1 << 12, 1 << 13)
    group = Graph(
        (
            Node(0, "x", "input", type=flat),
            Node(1, "v", "aten.view.default", (Ref(0), (1 << 12, 1 << 13)), type=square),
            Node(2, "r", "aten.relu.default", (Ref(1),), type=square),
        ),
        (2,),
    )
    small, said = shrunk(group)
    assert small is None or largest(small) <= LARGEST
    assert said


def test_what_nobody_wrote_is_told_from_nan_that_eager_has_too():
    nan = float("nan")
    eager = torch.tensor([nan, 1.0, 2.0], dtype=torch.bfloat16)
    actual = torch.empty_like(eager)
    poison(actual)
    assert fill_unwritten([actual], [eager]) == 1  # the NaN may well be the kernel's
    assert actual[1:].tolist() == [1.0, 2.0]
    poison(actual)
    assert fill_unwritten([actual], [torch.ones_like(eager)]) == 0
