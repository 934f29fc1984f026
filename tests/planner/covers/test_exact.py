"""The cheapest covers: against every partition of small graphs, and what large ones take."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import scipy.optimize
from corpus import corpus_graph
from fusionplan.planner.bitsets import bits, bitset
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.candidates import CandidateGroup, Ground, enumerated
from fusionplan.planner.covers.cheapest import _QUICK, CheapestCover, CoverEffort, Price, Search
from fusionplan.planner.covers.cover import (
    best_cover,
    best_cuts,
    covers,
    cuts_of,
    modelled_plan,
    partition,
)
from fusionplan.planner.covers.exact import IntegerProgram
from fusionplan.planner.covers.pieces import pieces, waiting
from fusionplan.planner.covers.pricing import SPARED
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType
from fusionplan.planner.groups.group import copies_in
from hypothesis import given, settings
from hypothesis import strategies as st

LARGE = TensorType((1 << 12, 1 << 10), (1 << 10, 1), "float32")
ALL = CoverEffort(enumerated=100_000, priced=100_000, tree=100_000, stalled=100_000)


@st.composite
def graphs(draw: st.DrawFn, most: int) -> Graph:
    """Operations of one or two values each, some of them opaque, over two inputs."""
    nodes = [Node(i, f"in{i}", "input", type=LARGE) for i in range(2)]
    for number in range(2, 2 + draw(st.integers(2, most))):
        sources = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2))
        opaque = draw(st.integers(0, 9)) == 0
        if opaque:
            op, args = "aten.digamma.default", (Ref(sources[0]),)
        elif len(sources) == 1:
            op, args = "aten.relu.default", (Ref(sources[0]),)
        else:
            op, args = "aten.add.Tensor", tuple(map(Ref, sources))
        nodes.append(Node(number, f"n{number}", op, args, type=LARGE))
    read = {i for n in nodes for i in n.inputs}
    ends = [n.id for n in nodes[2:] if n.id not in read]
    also = draw(st.lists(st.sampled_from([n.id for n in nodes[2:]]), max_size=1))
    return Graph(tuple(nodes), tuple(dict.fromkeys(ends + also)))


def priced(seed: int) -> Price:
    """Seconds from a formula, never below the floor; some groups have no kernel."""

    def price(candidate: CandidateGroup) -> float | None:
        own = random.Random(f"{seed} {candidate.nodes} {candidate.copies}")
        if candidate.nodes.bit_count() > 1 and own.random() < 0.25:
            return None
        return candidate.floor_s * own.uniform(1.0, 1.8)

    return price


def searched(ground: Ground, price: Price, effort: CoverEffort) -> CheapestCover:
    """From single operations."""
    start = [ground.candidate(1 << node) for node in bits(ground.compute)]
    return searcher(ground, price, effort).run(start)


def searcher(ground: Ground, price: Price, effort: CoverEffort) -> Search:
    return Search(ground, ground.compute, price, lambda c: waiting(ground, (), c), effort)


def partitions(nodes: list[int]) -> Iterator[list[int]]:
    """Every set partition, groups as bitsets."""
    if not nodes:
        yield []
        return
    first, rest = nodes[0], nodes[1:]
    for size in range(len(rest) + 1):
        for chosen in itertools.combinations(rest, size):
            left = [n for n in rest if n not in chosen]
            for found in partitions(left):
                yield [bitset((first, *chosen)), *found]


def is_legal(ground: Ground, group: int) -> bool:
    """Whether it is connected, and no path leaves it and comes back."""
    joined = group & -group
    while near := ground.around(joined) & group:
        joined |= near
    return joined == group and ground.closed(group) == group and ground.is_possible(group)


@pytest.mark.slow
@given(graphs(6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_no_partition_into_legal_groups_is_cheaper(graph: Graph, seed: int) -> None:
    ground, price = Ground(graph, H200), priced(seed)
    if not ground.compute:
        return
    found = searched(ground, price, ALL)
    assert found.proven
    least = float("inf")
    for groups in partitions(list(bits(ground.compute))):
        if all(is_legal(ground, group) for group in groups):
            own = [ground.candidate(group) for group in groups]
            prices = [price(each) for each in own]
            if None not in prices and not waiting(ground, (), own):
                least = min(least, sum(prices))
    assert found.seconds <= least * 1.000001
    assert found.seconds == pytest.approx(sum(price(each) for each in found.groups))
    assert not waiting(ground, (), found.groups)


@pytest.mark.slow
@given(graphs(4), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_no_cover_that_computes_nodes_again_is_cheaper(graph: Graph, seed: int) -> None:
    ground, price = Ground(graph, H200), priced(seed)
    if not ground.compute:
        return
    found = searched(ground, price, ALL)
    groups, complete = enumerated(ground, ground.compute, float("inf"), 100_000)
    assert complete
    every = [(c, price(c)) for group in groups for c in ground.variants(group)]
    usable = [(c, s) for c, s in every if s is not None]
    least = min(
        sum(s for _, s in chosen)
        for size in range(1, ground.compute.bit_count() + 1)
        for chosen in itertools.combinations(usable, size)
        if is_cover(ground, [c for c, _ in chosen])
    )
    # The search looks at some groups besides, of nodes that have only an input in common.
    assert found.seconds <= least * 1.000001
    assert found.seconds == pytest.approx(sum(price(each) for each in found.groups))
    assert is_cover(ground, list(found.groups))


def is_cover(ground: Ground, chosen: list[CandidateGroup]) -> bool:
    stored = read = 0
    for each in chosen:
        stored |= each.writes
        read |= each.reads
    complete = not (ground.kept | read) & ground.compute & ~stored
    return complete and not waiting(ground, (), chosen)


@pytest.mark.slow
@given(graphs(7), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_few_prices_give_no_worse_cover_than_the_first(graph: Graph, seed: int) -> None:
    ground = Ground(graph, H200)
    if not ground.compute:
        return
    price = priced(seed)
    found = searched(ground, price, CoverEffort(enumerated=10, priced=3))
    assert H200.launch_s / SPARED <= found.least_s <= found.seconds <= found.start_s
    best = searched(ground, price, ALL)
    assert best.seconds <= found.seconds * 1.000001
    assert found.least_s <= best.seconds * 1.000001


@pytest.mark.slow
@given(graphs(7), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_next_best_covers_follow_in_order(graph: Graph, seed: int) -> None:
    ground = Ground(graph, H200)
    if not ground.compute:
        return
    search = searcher(ground, priced(seed), ALL)
    found = search.run([ground.candidate(1 << node) for node in bits(ground.compute)])
    more = search.others(found, 3)
    seconds = [found.seconds, *(each.seconds for each in more)]
    assert all(a <= b * 1.000001 for a, b in itertools.pairwise(seconds))
    assert len({frozenset(each.groups) for each in (found, *more)}) == len(more) + 1


# --- made by hand ---------------------------------------------------------------------------------


def chain(count: int, width: int = 1) -> Graph:
    """relu, relu, ... of `width` inputs, each row of them added up before the next."""
    nodes = [Node(i, f"in{i}", "input", type=LARGE) for i in range(width)]
    last = list(range(width))
    while len(nodes) < count + width:
        for place in range(width):
            number = len(nodes)
            other = last[(place + 1) % width]
            args = (Ref(last[place]), Ref(other))
            op = "aten.relu.default" if other == last[place] else "aten.add.Tensor"
            nodes.append(Node(number, f"n{number}", op, args[: 1 if width == 1 else 2], type=LARGE))
            last[place] = number
    return Graph(tuple(nodes), tuple(last))


def test_growing_edge_by_edge_stops_where_a_cover_is_cheaper_further_on() -> None:
    """Two of three in one kernel are slower than apart, all three faster."""
    graph = chain(3)
    ground = Ground(graph, H200)

    def price(candidate: CandidateGroup) -> float:
        return candidate.floor_s * {1: 1.0, 2: 3.0, 3: 1.0}[candidate.nodes.bit_count()]

    found = searched(ground, price, CoverEffort())
    assert [each.nodes for each in found.groups] == [ground.compute]
    assert found.proven
    assert found.seconds == ground.candidate(ground.compute).floor_s


def test_a_cheap_value_is_computed_twice_where_that_moves_less() -> None:
    graph = corpus_graph("two_axes")
    (best, *_) = covers(graph, H200, 1)
    exp, columns, rows = (n.id for n in graph.nodes if n.op != "input")
    assert best.groups == ((exp, columns), (exp, rows))
    assert copies_in(graph, best.groups) == [(exp,), (exp,)]
    assert best.chosen.proven
    assert best.chosen.seconds < 0.85 * best.chosen.greedy_s
    grown = partition(graph, best_cuts(graph, H200))
    assert sum(exp in nodes for nodes in grown) == 1
    assert cuts_of(graph, best.groups) == frozenset({(columns, rows)}) & cuts_of(graph, grown)


def test_groups_that_wait_for_each_other_are_never_chosen_together() -> None:
    """a -> b, c -> d crosswise: {a, d} and {b, c} would each need the other first."""
    t = LARGE
    nodes = (
        Node(0, "x", "input", type=t),
        Node(1, "a", "aten.relu.default", (Ref(0),), type=t),
        Node(2, "c", "aten.exp.default", (Ref(0),), type=t),
        Node(3, "b", "aten.neg.default", (Ref(1),), type=t),
        Node(4, "d", "aten.neg.default", (Ref(2),), type=t),
    )
    ground = Ground(Graph(nodes, (3, 4)), H200)
    crossed = [ground.candidate(bitset((1, 4))), ground.candidate(bitset((2, 3)))]
    assert waiting(ground, (), crossed) == crossed
    single = [ground.candidate(1 << n) for n in (1, 2, 3, 4)]
    program = IntegerProgram(
        ground.compute, ground.kept, ground.sources, lambda c: waiting(ground, (), c)
    )
    found = program.solve([*crossed, *single], [1e-6, 1e-6, *[1e-4] * 4])
    assert found is not None
    assert set(found.chosen) not in (set(crossed),)
    assert len(set(found.chosen) & set(crossed)) == 1
    assert not waiting(ground, (), found.chosen)


def dilated(layers: int) -> Graph:
    """Gated layers with an opaque operation in each, in which much is kept for a backward pass."""
    small = TensorType((16,), (1,), "float32")
    nodes = [Node(0, "x", "input", type=small)]

    def op(name: str, *sources: int) -> int:
        number, args = len(nodes), tuple(map(Ref, sources))
        nodes.append(Node(number, f"n{number}", f"aten.{name}", args, type=small))
        return number

    x, skipped, kept = 0, op("neg.default", 0), list[int]()
    for _ in range(layers):
        y = op("relu.default", op("digamma.default", op("neg.default", x)))
        kept += (op("tanh.default", y), op("sigmoid.default", y))
        z = op("mul.Tensor", *kept[-2:])
        x, skipped = op("add.Tensor", x, z), op("add.Tensor", skipped, z)
    return Graph(tuple(nodes), (x, skipped, *kept))


@pytest.mark.slow
def test_rows_of_edges_stand_for_most_rows_of_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cover is the same, by a few programs that are small."""
    ground = Ground(dilated(3), H200)
    groups, _ = enumerated(ground, ground.compute, math.inf, 4000)
    candidates = [each for group in groups for each in ground.variants(group)]
    drawn = [random.Random(f"{c.nodes} {c.copies}").choice((1, 4, 4)) for c in candidates]
    seconds = [c.floor_s * times for c, times in zip(candidates, drawn, strict=True)]
    original, rows = scipy.optimize.milp, list[int]()

    def solved(*costs: Any, **given: Any) -> Any:
        rows.append(given["constraints"].A.shape[0])
        return original(*costs, **given)

    monkeypatch.setattr(scipy.optimize, "milp", solved)
    found = []
    for sources, watched in ((ground.sources, 0), ([0] * len(ground.sources), ground.compute)):
        program = IntegerProgram(ground.compute, ground.kept, sources, lambda chosen: ())
        program.watched = watched
        found.append(program.solve(candidates, seconds))
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].seconds == pytest.approx(found[1].seconds, rel=1e-6)
    assert len(rows) == 4
    assert rows[0] < rows[1] < rows[2] < rows[3] / 2


# --- large ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 4])
def test_a_region_of_200_nodes_is_solved_in_seconds(width: int) -> None:
    ground = Ground(chain(200, width), H200)
    (region,), cuts = pieces(ground, [1 << node for node in bits(ground.compute)])
    assert (region.bit_count(), cuts) == (200, 0)
    groups, _ = enumerated(ground, region, float("inf"), 2000)
    candidates = [ground.candidate(group) for group in groups]
    price = priced(1)
    known = [(c, s) for c in candidates if (s := price(c)) is not None]
    stored = ground.kept & region
    for node in bits(region):
        if ground.users[node] & ~region:
            stored |= 1 << node
    program = IntegerProgram(region, stored, ground.sources, lambda c: waiting(ground, (), c))
    began = time.process_time()
    found = program.solve([c for c, _ in known], [s for _, s in known])
    assert time.process_time() - began < 15.0  # on an idle core at most one
    assert found is not None
    assert len(known) > 1000
    alone = sum(s for c, s in known if c.nodes.bit_count() == 1)
    assert found.seconds < 0.7 * alone
    assert not waiting(ground, (), found.chosen)


@pytest.mark.slow
def test_a_proof_that_comes_no_nearer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor of each group of a chain of small operations is a launch; all take longer."""
    small = TensorType((16,), (1,), "float32")
    chain = [Node(i, f"n{i}", "aten.relu.default", (Ref(i - 1),), type=small) for i in range(1, 31)]
    graph = Graph((Node(0, "x", "input", type=small), *chain), (30,))
    programs: list[int] = []
    original = IntegerProgram._solve

    def solve(self: IntegerProgram, *given: Any) -> Any:
        before = self.entries
        found = original(self, *given)
        programs.append(self.entries - before)
        return found

    monkeypatch.setattr(IntegerProgram, "_solve", solve)
    price = lambda c: c.floor_s * (1 + c.nodes.bit_count() ** 2)  # noqa: E731
    assert not searched(Ground(graph, H200), price, CoverEffort()).proven
    large = [entries - _QUICK for entries in programs if entries > _QUICK]
    # The first, one that is allowed, the one that exceeds it, and one of groups in parts.
    assert 1 <= len(large) <= 4


@pytest.mark.slow
def test_a_larger_graph_is_cut_between_groups_at_its_narrowest() -> None:
    small = TensorType((64, 16), (16, 1), "float32")
    wide = chain(300)
    nodes = [
        Node(n.id, n.name, n.op, n.args, type=small if n.id == 160 else n.type) for n in wide.nodes
    ]
    ground = Ground(Graph(tuple(nodes), wide.outputs), H200)
    found, cuts = pieces(ground, [1 << node for node in bits(ground.compute)])
    assert cuts == 1
    assert [max(bits(piece)) for piece in found] == [160, 300]
    assert sum(piece.bit_count() for piece in found) == 300
    (best,) = covers(ground.graph, H200, 1, CoverEffort(enumerated=10, priced=1))
    assert best.chosen.cuts == 1
    assert not best.chosen.proven
    assert H200.launch_s / SPARED < best.chosen.least_s < best.chosen.seconds


def test_a_single_operation_without_a_kernel_that_takes_copies_in_is_left_to_aten() -> None:
    """Of nothing there is no kernel, and to compute nothing again costs nothing."""
    empty = TensorType((0, 4), (4, 1), "float32")
    nodes = [Node(0, "x", "input", type=empty)]
    for number in range(1, 4):
        op = "aten.neg.default"
        nodes.append(Node(number, f"n{number}", op, (Ref(number - 1),), type=empty))
    graph = Graph(tuple(nodes), (3,))
    assert best_cover(graph, H200) == ((1, 2, 3),)
    assert modelled_plan(graph, H200).groups == ()


def test_a_graph_without_work_has_an_empty_cover() -> None:
    graph = Graph((Node(0, "x", "input", type=LARGE),), (0,))
    assert best_cover(graph, H200) == ()
