"""The gate of whole plans: when a difference from eager is a fault."""

import pytest
import torch
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType
from fusionplan.tuner import gate
from fusionplan.tuner.gate import Case, differs
from tuner_fakes import captured


def test_outputs_of_a_whole_graph_are_compared():
    a, i = torch.randn(64), torch.arange(64)
    assert differs([a, i, None], [a.clone(), i.clone(), None]) is None
    assert "1 outputs" in (differs([a], [a, a]) or "")
    assert "output 1: differs" in (differs([a, a], [a, -a]) or "")
    assert "NaN" in (differs([a / 0 * 0], [a]) or "")
    assert "100.00%" in (differs([i], [i + 1]) or "")
    assert "instead of" in (differs([a.half()], [a]) or "")


@pytest.mark.parametrize(
    "found, eager, fault",
    [
        (1.0, 1.08, False),  # eager strays, the plan does not
        (1.2, 1.08, True),  # both, the plan more
        (1.15, 1.2, False),  # both, the plan less
        (1.6, 1.2, True),
        (1.5, 1.0, True),  # the plan alone
        (1.0, 1.5, True),  # eager so far that nobody knows what is right
    ],
)
def test_eager_that_strays_is_judged_by_float64(found, eager, fault):
    x = torch.rand(64) + 1
    given = captured(lambda x: torch.exp(x).bfloat16(), x)
    exact = torch.exp(x)
    known = Case(given, (x,), [(exact * eager).bfloat16()])
    reason = gate.fault(lambda *_: [(exact * found).bfloat16()], known)
    assert (reason is not None) == fault


@pytest.mark.parametrize("times, fault", [(1.3, False), (0.1, False), (2.5, True)])
def test_rounding_alone_may_be_as_large_as_eagers(times, fault):
    """A gradient that vanishes in truth: both results are noise."""
    x = torch.rand(64) + 1
    given = captured(lambda x: (torch.exp(x) - torch.exp(x)).bfloat16(), x)
    noise = torch.randn(64) * 1e-4
    reason = gate.fault(
        lambda *_: [(noise * times).bfloat16()], Case(given, (x,), [noise.bfloat16()])
    )
    assert (reason is not None) == fault


@pytest.mark.parametrize("times", [0.0, 3.0])
def test_where_eager_overflows_a_plan_must_still_be_right(times):
    x = torch.cat([torch.tensor([1100.0]), torch.rand(63) + 1]).half()
    given = captured(lambda x: x * x, x)
    eager = x * x
    known = Case(given, (x,), [eager])
    assert not eager.isfinite().all()
    assert gate.fault(lambda *_: [eager * times], known) is not None
    assert gate.fault(lambda *_: [eager], known) is None


def test_the_state_of_random_numbers_is_not_compared():
    """Without dropout nobody writes it."""
    t = TensorType((4,), (1,), "float32")
    seed = TensorType((), (), "int64")
    call = "aten._scaled_dot_product_efficient_attention.default"
    nodes = (
        Node(0, "q", "input", type=t),
        Node(1, "call", call, (Ref(0),)),
        Node(2, "out", "operator.getitem", (Ref(1), 0), type=t),
        Node(3, "seed", "operator.getitem", (Ref(1), 2), type=seed),
        Node(4, "words", "aten.argmax.default", (Ref(2),), type=seed),
    )
    assert gate._states(Graph(nodes, (2, 3, None, 4))) == {1}
