"""Exceptions that end the compilation of a graph, and say how it runs instead."""

from __future__ import annotations

from torch._dynamo.exc import RestartAnalysis, ShortenTraceback, SkipFrame

from ...errors import PlanError
from .whole_way import WholeWay


class NoPlan(PlanError, ShortenTraceback):
    """No plan, where one was asked for. Dynamo lets it out as it is, not wrapped as its own."""

    def __init__(self, text: str) -> None:
        ShortenTraceback.__init__(self, text, first_useful_frame=None)


class RunsWhole(Exception):
    """Leaves AOTAutograd: the whole graph runs in one way. frame: so does all of the function that
    it was traced from."""

    def __init__(self, way: WholeWay, frame: bool = False) -> None:
        super().__init__(way)
        self.way, self.frame = way, frame


DYNAMOS = (NoPlan, RestartAnalysis, SkipFrame)
"""What Dynamo has to see: the error that the user asked for, and its own ways of control."""
