"""The graphs that tests read as text are what capture gives today."""

from __future__ import annotations

import pytest
from corpus import GRAPHS, captured_graph, corpus_file, corpus_graph, corpus_names
from fusionplan.planner.graph.graph import canonical, key


@pytest.mark.dynamo
@pytest.mark.parametrize("name", corpus_names())
def test_the_text_of_a_graph_is_what_capture_gives(
    name: str, request: pytest.FixtureRequest
) -> None:
    graph, file = captured_graph(name), corpus_file(name)
    if request.config.getoption("--accept-goldens"):
        GRAPHS.mkdir(exist_ok=True)
        file.write_text(f"{graph}\n")
    assert file.exists(), f"no {file.name}: run with --accept-goldens"
    assert file.read_text() == f"{graph}\n", "changed: run with --accept-goldens when it is meant"
    assert canonical(corpus_graph(name)) == canonical(graph)
    assert key(corpus_graph(name)) == key(graph)


def test_every_text_is_of_a_name() -> None:
    assert {file.name for file in GRAPHS.iterdir()} == {corpus_file(n).name for n in corpus_names()}
