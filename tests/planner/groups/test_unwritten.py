"""Which inputs of a graph no operation of it writes, so that a kernel may read them early."""

from __future__ import annotations

import pytest
from fusionplan.planner.graph.graph import Graph, Ref
from fusionplan.planner.groups.unwritten import places, unwritten
from graphs import Builder, dense


def step(write) -> Graph:
    """(x + p) * w, after which `write` adds an operation on a builder, x, p and w."""
    b = Builder()
    x, p, w = b.input(4, 8), b.input(4, 8), b.input(4, 8)
    y = b.op("mul.Tensor", b.op("add.Tensor", x, p), w)
    write(b, x, p, w)
    return b.graph(y)


def in_place(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    b.op("add_.Tensor", p, x)


def through_views(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    first = b.op("select.int", b.op("view.default", p, (8, 4), shape=(8, 4)), 0, 1, shape=(4,))
    b.op("mul_.Tensor", first, 2.0, shape=(4,))


def through_an_unknown_view(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    b.op("zero_.default", b.node("aten.as_strided_.default", (p,), dense(8, 4)))


def by_name(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    b.op("add.out", x, x, out=p)


def in_a_list(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    b.node("aten._foreach_add_.Scalar", ((p,), 1.0), None)


def by_who_does_not_say(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
    b.node("user.step", (p,), None)


WRITES = [in_place, through_views, through_an_unknown_view, by_name, in_a_list, by_who_does_not_say]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_what_is_written_is_no_such_input(write) -> None:
    assert unwritten(step(write)) == {0, 2}


def test_what_reads_alone_writes_nothing() -> None:
    def sort(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
        b.opaque(p)

    assert unwritten(step(sort)) == {0, 1, 2}


def test_what_is_computed_from_an_input_is_another_place() -> None:
    """p + x is written, p is not."""

    def accumulate(b: Builder, x: Ref, p: Ref, w: Ref) -> None:
        b.op("add_.Tensor", b.op("add.Tensor", p, x), x)

    assert unwritten(step(accumulate)) == {0, 1, 2}


def test_places_are_those_among_the_inputs_of_a_group() -> None:
    """Node 3 is computed, node 1 written: neither may be read early."""
    assert places(step(in_place), (3, 1, 2)) == {2}


def test_what_a_group_alone_writes_it_may_read_early() -> None:
    """Node 5 writes node 1: to other kernels of its group that is no kernel under way."""
    graph = step(in_place)
    assert places(graph, (3, 1, 2), (4, 5)) == {1, 2}
    assert places(graph, (3, 1, 2), (4,)) == {2}
