"""Makes the modules beside the tests importable, adds the switch that accepts goldens, and captures
what a function does.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture, is_dynamic, specialise
from oracle import each_graph

Capture = Callable[..., Captured]

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir())]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept-goldens", action="store_true", help="rewrite the golden files")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def captures() -> Callable[..., list[Captured]]:
    """All graphs of a call (and of its backward pass), in order."""

    def look(gm, fakes):
        return capture(specialise(gm, fakes).gm if is_dynamic(gm) else gm)

    def run(function, *inputs, **options):
        return [found for found, _ in each_graph(function, inputs, look, **options)]

    return run


@pytest.fixture
def captured(captures) -> Capture:
    """The only graph of a call."""

    def run(function, *inputs, **options) -> Captured:
        (found,) = captures(function, *inputs, **options)
        return found

    return run
