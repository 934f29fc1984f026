"""A model that Dynamo has traced once, and the ways in which it runs from then on.

To trace a large model takes ten seconds, and a tune compares it as run by its plans and by each
mode of torch.compile. Whatever back end a graph goes to, Dynamo makes the same graph, the same
guards and the same code around it. So all of them run behind one trace: the code that Dynamo made
calls, in place of what one back end has compiled, what the way in use has compiled of that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import CompileContext, TracingContext, compile_context, tracing

from ...planner.capture.capture import Captured
from ...planner.lowerings.base import Boxed
from ...planner.lowerings.inductor import compile_whole
from ...planner.runtime.dispatch.dispatch import Dispatcher
from ...planner.runtime.dispatch.loaded import loaded
from ...planner.runtime.dispatch.pass_through import PassThrough, passes_through

Compiled = Callable[..., Any]


@dataclass(slots=True)
class TracedGraph:
    """One graph from Dynamo. `gm` and `inputs`: what a back end is given; the graph is a copy, for
    a back end may change its own."""

    gm: fx.GraphModule
    inputs: tuple[Any, ...]
    fake_mode: Any
    contexts: Any
    """How Dynamo made the inputs fake."""
    number: Any
    """Of Dynamo's compilation."""
    itself: Compiled | None = None
    """The graph as it was captured, behind what AOTAutograd does before and after it."""
    captured: Captured | None = None
    """The graph of ours that AOTAutograd made of it, if it is one of inference that can be
    planned; `fakes`: its inputs there."""
    fakes: tuple[Any, ...] = ()
    inner: Boxed | None = None
    """What `itself` runs in place of the captured graph."""
    ways: dict[int, Compiled] = field(default_factory=dict)

    @staticmethod
    def now(gm: fx.GraphModule, inputs: Sequence[Any]) -> TracedGraph:
        """While Dynamo asks its back end to compile the graph."""
        context = TracingContext.get()
        number = CompileContext.current_compile_id()
        found = _copied(gm), tuple(inputs), context.fake_mode, context.tensor_to_context, number
        return TracedGraph(*found)

    def by_mode(self, mode: str) -> Compiled:
        """As torch.compile compiles it in a mode."""
        return self._compiled(lambda gm, inputs: compile_whole(gm, inputs, mode))

    def by_plan(self, dispatcher: Dispatcher) -> Compiled:
        """As a dispatcher of ours runs it, which has a plan for it."""
        captured = self.captured
        assert captured is not None
        return self._compiled(
            lambda gm, inputs: dispatcher.again(gm, inputs, captured, self.fakes, self._around)
        )

    def _compiled(self, backend: Callable[[fx.GraphModule, Sequence[Any]], Compiled]) -> Compiled:
        """By a back end, as Dynamo would have called it."""
        context = TracingContext(self.fake_mode)
        context.tensor_to_context = self.contexts
        with compile_context(CompileContext(self.number)), tracing(context):
            return backend(_copied(self.gm), list(self.inputs))

    def _around(self, inner: Boxed) -> Compiled:
        """Runs the graph by something that takes what the captured graph takes; without what
        AOTAutograd does before and after it, where that is nothing, as a dispatcher does."""
        itself, captured = self.itself, self.captured
        assert itself is not None
        assert captured is not None
        plain = passes_through(captured.gm) and not captured.updates
        through = PassThrough(inner) if plain else None
        inner = inner if through is None else through.graph

        def run(*args: Any) -> Any:
            self.inner = inner
            return itself(*args)

        return run if through is None else through.called(run)


@dataclass(slots=True)
class TracedModel:
    """graphs: in the order in which Dynamo traced them. compiled: the model as torch.compile makes
    it, each time anew, to be set before it is called; all of them share the trace."""

    graphs: list[TracedGraph] = field(default_factory=list)
    compiled: Callable[[], Compiled] | None = None
    _makers: list[Callable[[TracedGraph], Compiled]] = field(default_factory=list)
    _way: int = -1
    """The maker in use, by its place; before there is one each graph runs as it was captured."""

    def add(self, graph: TracedGraph) -> Compiled:
        """What the code that Dynamo makes is to call in place of the graph."""
        self.graphs.append(graph)
        ways = graph.ways

        def run(*args: Any) -> Any:
            found = ways.get(self._way)
            return found(*args) if found is not None else self._made(graph)(*args)

        return run

    def by(
        self, make: Callable[[TracedGraph], Compiled], model: Compiled | None = None
    ) -> Compiled:
        """The model with each of its graphs run by what `make` gives for it, which is asked at the
        first call, as torch.compile asks a back end. model: where it is called as `load` calls it
        (see `loaded`)."""
        assert self.compiled is not None
        way, run = len(self._makers), self.compiled()
        if model is not None:
            run = loaded(run, model)
        self._makers.append(make)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._way = way
            return run(*args, **kwargs)

        return call

    def _made(self, graph: TracedGraph) -> Compiled:
        if self._way < 0:
            assert graph.itself is not None
            return graph.itself
        made = graph.ways[self._way] = self._makers[self._way](graph)
        return made


def traced(model: Callable[..., Any]) -> TracedModel:
    """A model of which Dynamo makes its graphs at the first call by one of the ways."""
    found = TracedModel()

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        return found.add(TracedGraph.now(gm, inputs))

    found.compiled = lambda: torch.compile(model, backend=backend, dynamic=False)
    return found


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy whose nodes have what Dynamo noted on them: which inputs stay where they are."""
    graph = fx.Graph()
    last = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
    graph.output(graph.graph_copy(gm.graph, {})).meta = dict(last.meta)
    for old, new in zip(gm.graph.nodes, graph.nodes, strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    found = fx.GraphModule(gm, graph)
    found.meta = dict(gm.meta)
    return found
