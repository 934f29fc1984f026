"""The peers of a plan: eager and torch.compile, and the plan that runs a graph as one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..planner.capture.capture import Captured
from ..planner.graph.graph import INPUT, Graph
from ..planner.plan import GroupPlan, Plan
from ..planner.runtime.inductor import compile_group
from .assembler import as_in_workers
from .groups import Identity
from .inputs import DATA_SETS, make
from .measure import Call
from .progress import Progress

EAGER = "eager"


@dataclass(slots=True)
class Peers:
    """Calls by name, run under `no_grad`, each ready once `warm` has run. A peer that fails is
    left out, with a note: that torch.compile cannot do the model is no fault of the plan.
    compiling: around their first calls; for calls that run by a plan nothing is to be changed."""

    given: Mapping[str, Call]
    progress: Progress
    compiling: Callable[[], AbstractContextManager[None]] = as_in_workers
    ready: dict[str, Call] = field(default_factory=dict)
    _warmed: bool = False

    def warm(self) -> None:
        """Run each twice, which compiles it. Only the first call does anything."""
        if self._warmed:
            return
        self._warmed = True
        with self.compiling():
            for number, (name, call) in enumerate(self.given.items(), 1):
                self.progress.phase("peers", f"compiling {name}, {number} of {len(self.given)}")
                self._warm(name, call)
        if torch.cuda.is_available():
            # What compiling and tuning them took, the process that measures candidates needs.
            gc.collect()
            torch.cuda.empty_cache()

    def _warm(self, name: str, call: Call) -> None:
        try:
            with torch.no_grad():
                call()
                call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - the user's model under another compiler
            first = (str(error).strip().splitlines() or [""])[0]
            self.progress.note(f"{name} does not run: {type(error).__name__}: {first}")
        else:
            self.ready[name] = call


def peers_of(captured: Captured, inputs: Sequence[Any]) -> dict[str, Call]:
    """Peers made from the captured graph, for a caller that has no model at hand: eager is then
    the graph with its compositions opened, and Inductor compiles the whole of it."""
    calls: dict[str, Call] = {EAGER: lambda: captured.gm(*inputs)}
    if captured.device.type == "cuda":
        compiled: list[Callable[[list[Any]], Any]] = []

        def default() -> object:
            if not compiled:
                graph = captured.graph
                outputs = sorted({o for o in graph.outputs if o is not None})
                compiled.append(compile_group(captured, _work(graph), outputs, "default"))
            return compiled[0](list(inputs))

        if all(o is None or o not in captured.graph.inputs for o in captured.graph.outputs):
            calls["default"] = default
    return calls


def peer_plan(name: str, seconds: float, graph: Graph, identity: Identity) -> Plan:
    """The plan that runs a graph as the peer does: no group for eager, which is the user's own
    code, and one group of the whole graph for a mode of torch.compile."""
    if name == EAGER:
        return identity.plan((), "measured")
    group = GroupPlan(_work(graph), "inductor", identity.graph_key, measured=seconds, options=name)
    return identity.plan([group], "measured")


def real_inputs(captured: Captured, inputs: Sequence[Any], seed: int) -> list[Any]:
    """The inputs as they are, or made from their types where one is fake."""
    if not any(isinstance(x, FakeTensor) for x in inputs):
        return list(inputs)
    made = make(captured.graph, next(iter(DATA_SETS)), captured.device, seed)
    return [m if isinstance(x, FakeTensor) else x for x, m in zip(inputs, made, strict=True)]


def _work(graph: Graph) -> tuple[int, ...]:
    return tuple(n.id for n in graph.nodes if n.op != INPUT)
