"""How much planning takes: work is counted, so that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers import budget, by_rule, cover, pricing
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import Refused
from fusionplan.planner.graph.graph import Graph, Ref, TensorType
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups import legality
from fusionplan.planner.lowerings import triton
from fusionplan.planner.trace.trace import MOST_VALUES, Tracer, trace
from graphs import Builder

SIDE = 1024


@dataclass
class Counted:
    """values: made while groups were traced; largest: those of one; prices: spaces made."""

    values: int = 0
    largest: int = 0
    prices: int = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """What planning does, from empty caches."""
    found = Counted()
    add, space_of = Tracer.add, triton.space_of

    def added(tracer, *value):
        one = add(tracer, *value)
        found.values += 1
        found.largest = max(found.largest, len(tracer.values))
        return one

    def made(group, device):
        found.prices += 1
        return space_of(group, device)

    monkeypatch.setattr(Tracer, "add", added)
    monkeypatch.setattr(triton, "space_of", made)
    forget()
    yield found
    forget()


def forget() -> None:
    for kept in (pricing.quick_s, triton.space_for, triton.best, legality.has_nest, budget.size):
        kept.cache_clear()
    for kept in (cover._searched, cover._grown):
        kept.cache_clear()


def rolled(b: Builder, x: Ref, shift: int, dim: int) -> Ref:
    """As torch.roll is decomposed: the two parts of a tensor, the other way round."""
    at = shift % SIDE
    shapes = [[SIDE, SIDE], [SIDE, SIDE]]
    shapes[0][dim], shapes[1][dim] = at, SIDE - at
    last = b.op("slice.Tensor", x, dim, SIDE - at, SIDE, shape=tuple(shapes[0]))
    first = b.op("slice.Tensor", x, dim, 0, SIDE - at, shape=tuple(shapes[1]))
    return b.op("cat.default", (last, first), dim, shape=(SIDE, SIDE))


def diffusion(steps: int) -> Graph:
    b = Builder()
    x = b.input(SIDE, SIDE)
    for _ in range(steps):
        near = [rolled(b, x, shift, dim) for dim in (0, 1) for shift in (1, -1)]
        total = near[0]
        for each in near[1:]:
            total = b.op("add.Tensor", total, each)
        x = b.op("add.Tensor", x, b.op("mul.Tensor", total, 0.1))
    return b.graph(x)


def life(generations: int) -> Graph:
    b = Builder()
    x = b.input(SIDE, SIDE)
    for _ in range(generations):
        total = x
        for dy in (-1, 0, 1):
            row = rolled(b, x, dy, 0) if dy else x
            for dx in (-1, 1):
                total = b.op("add.Tensor", total, rolled(b, row, dx, 1))
        x = b.op("relu.default", b.op("sub.Tensor", total, 3.0))
    return b.graph(x)


def scan(steps: int) -> Graph:
    b = Builder()
    a, c = b.input(64, steps, SIDE), b.input(64, steps, SIDE)
    h = b.op("select.int", c, 1, 0, shape=(64, SIDE))
    found = [h]
    for t in range(1, steps):
        decay = b.op("select.int", a, 1, t, shape=(64, SIDE))
        h = b.op("mul.Tensor", decay, h)
        h = b.op("add.Tensor", h, b.op("select.int", c, 1, t, shape=(64, SIDE)))
        found.append(h)
    wide = tuple(b.op("unsqueeze.default", each, 1, shape=(64, 1, SIDE)) for each in found)
    return b.graph(b.op("cat.default", wide, 1, shape=(64, steps, SIDE)))


def lattice(side: int) -> Graph:
    b = Builder()
    x, left_edge = b.input(SIDE, SIDE), b.input(SIDE, SIDE)
    above = [b.op("add.Tensor", x, float(i)) for i in range(side)]
    for _ in range(side):
        left = left_edge
        for i in range(side):
            left = above[i] = b.op("sigmoid.default", b.op("mul.Tensor", above[i], left))
    return b.graph(above[-1])


def chain(count: int) -> Graph:
    b = Builder()
    x = b.input(SIDE, SIDE)
    for i in range(count):
        x = b.op("sin.default", x) if i % 2 else b.op("mul.Tensor", x, 1.01)
    return b.graph(x)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "diffusion": lambda: diffusion(3),
    "life": lambda: life(2),
    "scan": lambda: scan(16),
    "lattice": lambda: lattice(6),
    "chain": lambda: chain(120),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_work_of_planning_is_bounded_for_each_operation(name: str, counted: Counted) -> None:
    graph = GRAPHS[name]()
    count = sum(map(is_compute, graph.nodes))
    start = time.process_time()
    plan = modelled_plan(graph, H200)
    seconds = time.process_time() - start
    assert plan.groups
    assert all(group.lowering == "triton" for group in plan.groups)
    assert 0 < counted.prices <= 60 + 3 * count
    assert 0 < counted.largest <= MOST_VALUES
    # The start and the search have a budget each; groups that are refused come to it.
    assert counted.values <= 3 * (budget.LEAST + budget.EACH * count)
    assert seconds <= 30.0 + 0.1 * count  # imports among it; on an idle core it takes one to three


@pytest.mark.slow
def test_twice_the_length_takes_no_more_for_each_operation(counted: Counted, few_looks) -> None:
    modelled_plan(diffusion(4), H200)
    short = counted.values, counted.prices
    forget()
    modelled_plan(diffusion(8), H200)
    assert counted.values - short[0] <= 3 * short[0]
    assert counted.prices - short[1] <= 3 * short[1]


def test_what_is_read_through_too_many_windows_is_no_kernel() -> None:
    """Of four steps the first is read at 49 places and more, each of 5 operations."""
    assert len(trace(diffusion(2)).values) < MOST_VALUES
    with pytest.raises(Refused, match=f"more than {MOST_VALUES} values") as refused:
        trace(diffusion(4))
    assert refused.value.refusal.rule == "size"


def test_what_is_made_of_positions_is_read_once_for_each_reader() -> None:
    """Else every step would double it: `h ^ (h >> 3)`, each time of the last."""
    b = Builder()
    whole = TensorType((4096,), (1,), "int64")
    h = b.node("aten.arange.start_step", (0, 4096, 1), whole)
    for _ in range(40):
        shifted = b.node("aten.__rshift__.Scalar", (h, 3), whole)
        h = b.node("aten.bitwise_xor.Tensor", (h, shifted), whole)
    other = b.node("aten.unsqueeze.default", (h, 1), TensorType((4096, 1), (1, 1), "int64"))
    square = TensorType((4096, 4096), (4096, 1), "bool")
    graph = b.graph(b.node("aten.ge.Tensor", (other, h), square))
    values = trace(graph).values
    assert len(values) == 2 * 81 + 1  # along each of the two axes
    assert {value.dims for value in values[:-1]} == {((0,),), ((1,),)}


def test_a_spent_budget_cuts_the_graph_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(60)
    forget()
    whole = modelled_plan(graph, H200)
    monkeypatch.setattr(budget, "LEAST", 40)
    monkeypatch.setattr(budget, "EACH", 1)
    forget()
    by_rule_too = modelled_plan(graph, H200)
    monkeypatch.setattr(by_rule, "MOST", 0)
    forget()
    cut = modelled_plan(graph, H200)
    forget()
    assert whole.chosen is not None
    assert cut.chosen is not None
    assert whole.chosen.cuts == 0
    assert cut.chosen.cuts > 0
    assert not cut.chosen.proven
    assert len(whole.groups) < len(cut.groups) < 60
    # A rule asks for no budget, and leaves less to a search that has one.
    assert by_rule_too.chosen is not None
    assert by_rule_too.chosen.cuts > 0
    assert len(by_rule_too.groups) < len(cut.groups)
    assert sorted(n for group in cut.groups for n in group.nodes) == list(range(1, 61))
