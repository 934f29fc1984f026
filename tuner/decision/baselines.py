"""Baselines: the user's eager code and the modes of torch.compile, and plans that are one of them.

All are calls of the whole model as its user would call it, on the inputs of a turn.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...planner.capture.capture import Captured
from ...planner.graph.graph import INPUT, Graph
from ...planner.lowerings.inductor import MODES
from ...planner.lowerings.registry import INDUCTOR
from ...planner.plan import GroupPlan, Plan
from ..capture.capture_model import Model, run_step
from ..capture.rotating_inputs import Turns
from ..measure.contest import TurnCall
from ..progress.progress import Progress
from ..search.tuned_groups import Identity
from ..trial.inputs import DATA_SETS, make
from ..workers.assembler import as_in_workers

EAGER = "eager"


@dataclass(slots=True)
class Baselines:
    """Calls by name, each ready once `warm` has run. One that fails is left out, with a note: that
    torch.compile cannot do the model is no fault of the plan. compiling: around their first calls;
    for calls that run by a plan nothing is to be changed. kind: what they are, for the progress."""

    given: Mapping[str, TurnCall]
    progress: Progress
    compiling: Callable[[], AbstractContextManager[None]] = as_in_workers
    kind: str = "baselines"
    ready: dict[str, TurnCall] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _warmed: bool = False

    def warm(self) -> None:
        """Run each twice, which compiles it. Only the first call does anything."""
        if self._warmed:
            return
        self._warmed = True
        with self.compiling():
            for number, (name, call) in enumerate(self.given.items(), 1):
                self.progress.phase(self.kind, f"compiling {name}, {number} of {len(self.given)}")
                self._warm(name, call)
        if torch.cuda.is_available():
            # What compiling and tuning them took, the process that measures candidates needs.
            gc.collect()
            torch.cuda.empty_cache()

    def _warm(self, name: str, call: TurnCall) -> None:
        try:
            call(0)
            call(1)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - the user's model under another compiler
            first = (str(error).strip().splitlines() or [""])[0]
            self.left_out[name] = f"{type(error).__name__}: {first}"
            self.progress.note(f"{name} does not run: {self.left_out[name]}")
        else:
            self.ready[name] = call


def model_baselines(
    model: Model, turns: Turns, modes: Sequence[str], training: bool = False
) -> dict[str, TurnCall]:
    """Eager, and modes of torch.compile: inference under no_grad, or whole training steps."""
    # torch.compile itself does nothing before the first call.
    compiled = {m: torch.compile(model, mode=m, dynamic=False) for m in modes}
    return {n: through(m, turns, training) for n, m in ({EAGER: model} | compiled).items()}


def through(model: Model, turns: Turns, training: bool = False) -> TurnCall:
    """A call of the model on the inputs of a turn, or a training step: the forward pass and the
    gradients of the sum of its outputs, which are let go of."""
    calls = turns.calls

    def infer(turn: int) -> object:
        with torch.no_grad():
            return calls[turn % len(calls)].run(model)

    def step(turn: int) -> object:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run_step(model, calls[turn % len(calls)])

    return step if training else infer


def graph_baselines(captured: Captured, turns: Turns) -> dict[str, TurnCall]:
    """Baselines made from a captured graph, for a caller that has no model at hand: eager is then
    the graph with its compositions opened, and Inductor compiles the whole of it."""
    inputs = [call.args for call in turns.calls]

    def eager(turn: int) -> object:
        with torch.no_grad():
            return captured.gm(*inputs[turn % len(inputs)])

    compiled: list[Callable[..., Any]] = []

    def default(turn: int) -> object:
        if not compiled:
            compiled.append(INDUCTOR.captured(captured, MODES[0]))
        with torch.no_grad():
            return compiled[0](*inputs[turn % len(inputs)])

    calls: dict[str, TurnCall] = {EAGER: eager}
    graph = captured.graph
    keeps = graph.numerics == "fast"  # Inductor keeps none of eager's roundings.
    if keeps and captured.device.type == "cuda" and not {*graph.outputs} & {*graph.inputs}:
        calls[MODES[0]] = default
    return calls


def baseline_plan(name: str, graph: Graph, identity: Identity, frame: bool = False) -> Plan:
    """The plan that runs a graph as the baseline does: no group for eager, which is the user's own
    code (`frame`: all of the function that was traced), and one group of the whole graph for a
    mode of torch.compile."""
    if name == EAGER:
        return replace(identity.plan((), "searched"), frame=frame)
    group = GroupPlan(_work(graph), INDUCTOR.name, identity.graph_key, options=name)
    return identity.plan([group], "searched")


def real_inputs(captured: Captured, inputs: Sequence[Any], seed: int) -> list[Any]:
    """The inputs as they are, or made from their types where one is fake."""
    if not any(isinstance(x, FakeTensor) for x in inputs):
        return list(inputs)
    made = make(captured.graph, next(iter(DATA_SETS)), captured.device, seed)
    return [m if isinstance(x, FakeTensor) else x for x, m in zip(inputs, made, strict=True)]


def _work(graph: Graph) -> tuple[int, ...]:
    return tuple(n.id for n in graph.nodes if n.op != INPUT)
