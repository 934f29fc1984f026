"""`python -m fusionplan.bench.planning` (scripts/planning_time): how long graphs take to plan.

Each function of `planning_models` is captured without data and planned for the H200 by the cost
model, in a process of its own that has nothing in its caches. Seconds are of the processor, so that
other work on the machine counts little. No GPU is used.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from ..planner.costs.device import H200
from ..planner.covers import pricing
from ..planner.covers.cover import modelled_plan
from ..planner.graph.graph import Graph
from ..planner.graph.ops import is_compute
from ..tuner.capture.capture_model import capture_model
from .planning_models import CASES
from .run import commit

LIMIT_S = 0.1
"""Processor seconds that planning may take for each operation."""

STOP_S = 300
"""Processor seconds after which planning one graph is ended."""


@dataclass(frozen=True, slots=True)
class Planned:
    """operations: compute nodes; seconds: of planning; priced: groups that the model looked at;
    groups, predicted_s, cuts: of the plan."""

    name: str
    operations: int
    seconds: float
    priced: int
    groups: int
    predicted_s: float
    cuts: int

    @property
    def each_s(self) -> float:
        return self.seconds / self.operations


def planned(name: str, graph: Graph) -> Planned:
    """A graph, planned in this process."""
    before, start = pricing.quick_s.computed, time.process_time()
    plan = modelled_plan(graph, H200)
    seconds = time.process_time() - start
    assert plan.chosen is not None
    assert plan.predicted is not None
    return Planned(
        name,
        sum(map(is_compute, graph.nodes)),
        seconds,
        pricing.quick_s.computed - before,
        len(plan.groups),
        plan.predicted,
        plan.chosen.cuts,
    )


def captured(name: str) -> Iterator[tuple[str, Graph]]:
    """The graphs of a case with their names: one, or the forward and the backward graph."""
    make, training = CASES[name]
    function, inputs = make()
    torch._dynamo.reset()
    parts = capture_model(function, tuple(inputs), training=training).parts
    for part in parts:
        yield f"{name} {part.stage}" if training else name, part.captured.graph


def measured(name: str, graph: Graph) -> Planned | None:
    """A graph, planned in a process of its own; None where that was ended or failed."""
    # What a tune has imported anyway before it plans, and what the first integer program imports.
    import scipy.optimize  # noqa: F401
    import sympy  # noqa: F401

    return _forked(lambda: planned(name, graph))


def _forked(work: Callable[[], Planned]) -> Planned | None:
    """The result of a function in a fork of this process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (STOP_S, STOP_S))
        sender.send(work())

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        found: Planned = receiver.recv()
    except EOFError:
        return None
    finally:
        process.join()
    return found


_HEAD = """\
| graph | operations | seconds | ms an operation | groups priced | groups | cuts | modelled us |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def _line(one: Planned) -> str:
    return (
        f"| {one.name} | {one.operations} | {one.seconds:.1f} | {one.each_s * 1e3:.0f} "
        f"| {one.priced} | {one.groups} | {one.cuts} | {one.predicted_s * 1e6:.1f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every graph within its time; 1: one is not; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args(arguments)
    for name in options.cases:
        if name not in CASES:
            parser.error(f"{name!r} is no case: give {', '.join(CASES)}")
    print(f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, commit {commit()}\n\n{_HEAD}")
    slow = 0
    for name in options.cases or CASES:
        for part, graph in captured(name):
            one = measured(part, graph)
            if one is not None:
                print(_line(one), flush=True)
            else:
                print(f"| {part} | not planned within {STOP_S} seconds |", flush=True)
            slow += one is None or one.each_s > LIMIT_S
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
