"""What a graph's key tells apart, and what it does not."""

from __future__ import annotations

from dataclasses import replace

from fusionplan.planner.graph.graph import Graph, TensorType, key
from graphs import Builder


def added(dtype: str = "float32", stride: tuple[int, ...] = (), number: float = 1.0) -> Graph:
    b = Builder()
    x = b.input(4, 6, dtype=dtype, stride=stride)
    return b.graph(b.op("add.Tensor", x, number))


def test_strides_types_and_numbers_are_in_the_key() -> None:
    graphs = [added(), added("float16"), added(stride=(1, 4)), added(number=2.0)]
    assert len({key(graph) for graph in graphs}) == len(graphs)
    assert key(added()) == key(added())


def test_the_strides_of_a_result_are_in_the_key() -> None:
    graph = added()
    other = replace(graph.nodes[1], type=TensorType((4, 6), (1, 4), "float32"))
    assert key(replace(graph, nodes=(graph.nodes[0], other))) != key(graph)


def test_names_are_not() -> None:
    graph = added()
    named = tuple(replace(node, name=f"other{node.id}") for node in graph.nodes)
    assert key(replace(graph, nodes=named)) == key(graph)
