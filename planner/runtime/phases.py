"""The time until a model's first result: seconds by phase.

trace     AOTAutograd and capture, from the graph that Dynamo has traced to ours
lookup    the plan
plan      the cost model's plan, where none is stored
generate  the text of kernels
compile   from text to machine code, found or made
load      machine code into the driver
build     what calls the kernels
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("trace", "lookup", "plan", "generate", "compile", "load", "build")

SECONDS = dict.fromkeys(PHASES, 0.0)
"""Of this process, each phase without the phases within it."""

_WITHIN: list[float] = []
"""Of the phases that have begun, the outermost first: seconds of the phases within."""


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Counts the time of the block for the phase. Graphs are compiled by one thread at a time,
    under Dynamo's lock; what another thread does meanwhile only spoils the figures."""
    begin = time.perf_counter()
    _WITHIN.append(0.0)
    try:
        yield
    finally:
        whole = time.perf_counter() - begin
        SECONDS[name] += whole - (_WITHIN.pop() if _WITHIN else 0.0)
        if _WITHIN:
            _WITHIN[-1] += whole


def told() -> str:
    """All phases, for a log."""
    return ", ".join(f"{name} {seconds:.3f} s" for name, seconds in SECONDS.items())
