"""Baselines: the user's eager code and the modes of torch.compile, and plans that are one of them.

All are calls of the whole model as its user would call it, on the inputs of a turn.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...planner.capture.capture import Captured, Stage
from ...planner.graph.graph import INPUT, Graph, key
from ...planner.graph.ops import Contraction, Depthwise, row
from ...planner.lowerings.inductor import MODES
from ...planner.lowerings.registry import INDUCTOR
from ...planner.plan import GroupPlan, Plan
from ...planner.runtime.cuda_graphs.cudagraph import GraphedExecutor
from ...planner.runtime.execution.executor import Executor
from ..capture.capture_model import Model, describe, run_step
from ..capture.rotating_inputs import RotatingInputs
from ..capture.traced_model import TracedGraph, TracedModel
from ..measure.contest import TurnCall
from ..measure.time_limit import OutOfTime, stopped_after
from ..measure.turns import current_gpu_turn
from ..measure.wall import Wall
from ..progress.progress import Progress
from ..search.tuned_groups import Identity
from ..trial.inputs import DATA_SETS, make
from ..workers.assembler import as_in_workers
from .device_turns import LOOK_S, Turn, timed_in_turn
from .inductor_workers import found_in_caches
from .interrupted_graphs import forget_unfinished_warmup
from .modes_ahead import ModesAhead
from .silence_inductor import quiet_autotuning

EAGER = "eager"

_TUNED = "max-autotune"
TUNED_TIMES, TUNED_S = 2.0, 4.0
"""Times the seconds of the quickest mode that one takes at least which tunes its products too, and
seconds for each product (4.6 were seen, with 16 cores): an estimate, by which a mode is not begun
where it would only be cut off."""

NO_TIME = "it was not begun, for the time of the tune was over"
ROUNDS = 'it keeps none of eager\'s roundings, which numerics="eager" asks for'
GIVES_INPUTS = "the graph gives one of its inputs as a result"
ONE_OF_A_STEP = "its CUDA graphs are made for a whole training step"
CUT_OFF = "the time of the tune was over before it was compiled"


@dataclass(slots=True)
class Baselines:
    """Calls by name, each ready once `warm` has run. One that fails is left out, with a note: that
    torch.compile cannot do the model is no fault of the plan. compiling: around their first calls;
    for calls that run by a plan nothing is to be changed. kind: what they are, for the progress.
    wall: the time that they are a part of. Eager is always run; a mode that would take longer than
    their share of it is left out. None: there is no limit. beside: the only search of the tune runs
    at the same time. turn: held by whoever times something on the device meanwhile."""

    given: Mapping[str, TurnCall]
    progress: Progress
    compiling: Callable[[], AbstractContextManager[None]] = as_in_workers
    kind: str = "baselines"
    wall: Wall | None = None
    beside: bool = False
    turn: Turn = field(default_factory=threading.RLock)
    products: int = 0
    """Different matrix products and convolutions of the model."""
    is_over: Callable[[], bool] = lambda: False
    """Whether nobody wants those that are not ready yet."""
    is_enough: Callable[[], bool] = lambda: False
    """Whether the search beside is done, and a further one can wait for those that are not ready
    yet in its place."""
    ahead: ModesAhead | None = None
    """Modes that other processes put into Inductor's caches; one that is not there in time is not
    compiled here. None: each is compiled here, one after the other."""
    ready: dict[str, TurnCall] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    begun: bool = False
    """Whether `warm` has been called."""
    _pending: list[str] = field(default_factory=list)
    """Modes that other processes had not done, or had only just, when `warm` ended."""
    _took: dict[str, float] = field(default_factory=dict)
    """Seconds of each mode."""

    def warm(self) -> None:
        """Run each twice, which compiles it. What others are still at then, or have just done, is
        left to the next call, in the end to `finish`. Without such modes only the first call does
        anything."""
        names, self._pending = self._pending if self.begun else list(self.given), []
        if not names:
            return
        self.begun = True
        until = self.wall.baselines_until(self.beside) if self.wall else float("inf")
        tunes = any(name in MODES for name in names)
        first = len(self.given) - len(names) + 1
        with self.compiling(), timed_in_turn(self.turn) if tunes else nullcontext():
            for number, name in enumerate(self._coming(names, until), first):
                has_time = self._has_time(name, until)
                if self._is_under_way(name) or (self._is_found(name) and not has_time):
                    self._pending.append(name)
                elif has_time:
                    verb = "running" if name == EAGER else "compiling"
                    text = f"{verb} {name}, {number} of {len(self.given)}"
                    self.progress.phase(self.kind, text)
                    self._warm(name, self.given[name], until)
                else:
                    self._leave_out(name, NO_TIME)
        if not self._pending or self.is_over():
            self.finish()
        if torch.cuda.is_available():
            # What compiling and tuning them took, the process that measures candidates needs.
            gc.collect()
            torch.cuda.empty_cache()

    def finish(self) -> None:
        """The last look at the modes that others prepare: those that are done by now are compiled
        here, where half of what is left of the time allows it. The others are given up."""
        until = self.wall.clock() + self.wall.left_s / 2 if self.wall else float("inf")
        with self.compiling(), timed_in_turn(self.turn) if self._pending else nullcontext():
            while self._pending:
                name = self._pending.pop(0)
                if self._is_under_way(name) or not self._has_time(name, until):
                    self._leave_out(name, CUT_OFF)
                else:
                    self.progress.phase(self.kind, f"compiling {name}")
                    self._warm(name, self.given[name], until)
        if self.ahead is not None:
            self.ahead.close()

    def _coming(self, names: Sequence[str], until: float) -> Iterator[str]:
        """Each name: those that others prepare as they become ready, and when the time is over
        those that are not."""
        left = list(names)
        while left:
            name = self._next(left, until)
            left.remove(name)
            yield name

    def _next(self, left: Sequence[str], until: float) -> str:
        ahead, wall = self.ahead, self.wall
        if ahead is None:
            return left[0]
        told = False
        while (name := ahead.next(left)) is None:
            late = wall is not None and wall.clock() >= until
            if late or self.is_over() or self.is_enough():
                return left[0]
            if not told:
                others = "other processes compile"
                self.progress.phase(self.kind, f"{others} {', '.join(left)}")
                told = True
            time.sleep(LOOK_S)
        return name

    def _is_under_way(self, name: str) -> bool:
        """Whether others have not done it by the time that it is asked for."""
        return self.ahead is not None and self.ahead.next([name]) is None

    @property
    def compiles(self) -> bool:
        """Whether modes of torch.compile are still to be compiled."""
        if self.begun:
            return bool(self._pending)
        return any(name != EAGER for name in self.given)

    def _has_time(self, name: str, until: float) -> bool:
        """Whether a mode may be compiled by then: none takes less than the quickest one so far."""
        if self.is_over():
            return False
        if self.wall is None or name == EAGER:
            return True
        quickest = min(self._took.values(), default=0.0)
        tunes = name.startswith(_TUNED) and not self._is_found(name)
        tuned_s = max(TUNED_TIMES * quickest, quickest + TUNED_S * self.products)
        least_s = tuned_s if tunes else quickest
        return self.wall.clock() + least_s < until

    def _is_found(self, name: str) -> bool:
        """Whether others have put it into Inductor's caches."""
        return self.ahead is not None and self.ahead.has(name)

    def _warm(self, name: str, call: TurnCall, until: float) -> None:
        if self.ahead is not None and (why := self.ahead.broke(name)) is not None:
            self._leave_out(name, f"it breaks the device for the process that runs it: {why}")
            return
        wall = self.wall if name != EAGER else None
        began = wall.clock() if wall else 0.0
        try:
            limit = stopped_after(until - began) if wall else nullcontext()
            found = found_in_caches() if self._is_found(name) else nullcontext()
            with limit, quiet_autotuning(), found:
                # The first call of a mode compiles, which takes the turn where it times kernels.
                with self._device_turn() if name == EAGER else nullcontext():
                    call(0)
                with self._device_turn():
                    call(1)
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
        except OutOfTime:
            forget_unfinished_warmup()
            if wall is None:  # It is not this call's own limit: more than the call ends.
                raise
            self._leave_out(name, CUT_OFF)
        except Exception as error:  # noqa: BLE001 - the user's model under another compiler
            self.left_out[name] = describe(error)
            self.progress.note(f"{name} does not run: {self.left_out[name]}")
        else:
            self.ready[name] = call
        if wall:
            self._took[name] = wall.clock() - began

    @contextmanager
    def _device_turn(self) -> Iterator[None]:
        """Of this tune's threads and processes, and of the tunes that share the GPU."""
        with self.turn, current_gpu_turn():
            yield

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = reason
        self.progress.note(f"{name} is not compared: {reason}")


def model_baselines(
    model: Model,
    turns: RotatingInputs,
    modes: Sequence[str],
    training: bool = False,
    traced: TracedModel | None = None,
) -> dict[str, TurnCall]:
    """Eager, and modes of torch.compile: inference under no_grad, or whole training steps. traced:
    the model as it was traced before, which all modes then share."""
    # Neither does anything before the first call.
    if traced is not None:
        compiled = {m: traced.by(partial(TracedGraph.by_mode, mode=m)) for m in modes}
    else:
        compiled = {m: torch.compile(model, mode=m, dynamic=False) for m in modes}
    return {n: through(m, turns, training) for n, m in ({EAGER: model} | compiled).items()}


def through(model: Model, turns: RotatingInputs, training: bool = False) -> TurnCall:
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


def different_products(graphs: Iterable[Graph]) -> int:
    """The number of matrix products and convolutions of different shapes in the graphs."""
    return len(
        {
            (node.op, *(graph.nodes[source].type for source in node.inputs))
            for graph in graphs
            for node in graph.nodes
            if isinstance(row(node), Contraction | Depthwise)
        }
    )


def graph_baselines(
    captured: Captured, turns: RotatingInputs, stage: Stage = "inference"
) -> dict[str, TurnCall]:
    """Baselines made from a captured graph, for a caller that has no model at hand: eager is then
    the graph with its compositions opened, and Inductor compiles the whole of it, in every mode
    that `modes_left_out` does not name."""
    inputs = [call.args for call in turns.calls]

    def eager(turn: int) -> object:
        with torch.no_grad():
            return captured.gm(*inputs[turn % len(inputs)])

    def mode(name: str) -> TurnCall:
        compiled: list[Callable[..., Any]] = []

        def call(turn: int) -> object:
            if not compiled:
                compiled.append(_compiled(captured, name))
            with torch.no_grad():
                return compiled[0](*inputs[turn % len(inputs)])

        return call

    without = modes_left_out(captured, stage)
    possible = [m for m in MODES if m not in without] if captured.device.type == "cuda" else []
    return {EAGER: eager} | {name: mode(name) for name in possible}


def modes_left_out(captured: Captured, stage: Stage) -> dict[str, str]:
    """The modes of torch.compile that a captured graph by itself is not compared with, and why. On
    the CPU there are none to compare with, and nothing is said."""
    graph = captured.graph
    if captured.device.type != "cuda":
        return {}
    if graph.numerics == "eager":
        return dict.fromkeys(MODES, ROUNDS)
    if {*graph.outputs} & {*graph.inputs}:
        return dict.fromkeys(MODES, GIVES_INPUTS)
    if stage != "inference":
        # In a CUDA graph both graphs of a step have to agree on where the saved values lie.
        return {name: ONE_OF_A_STEP for name in MODES if INDUCTOR.owns_cuda_graphs(name)}
    return {}


def _compiled(captured: Captured, mode: str) -> Callable[..., Any]:
    """A captured graph by a mode of torch.compile. A mode with CUDA graphs has its kernels in one
    of ours, as it is run where it is kept."""
    if not INDUCTOR.owns_cuda_graphs(mode):
        return INDUCTOR.captured(captured, mode)
    identity = Identity(key(captured.graph), str(captured.device), {})
    plan = replace(baseline_plan(mode, captured.graph, identity), cudagraph=True)
    return GraphedExecutor(Executor(captured, plan, captured.device))


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
