"""From a model and its inputs to every graph that torch.compile hands to a back end.

The model runs once under torch.compile with a back end that collects. It executes the graphs that
it was given, so that what comes after a graph break is captured too, with the inputs it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

from ...planner.capture.attention_calls import attention_chosen
from ...planner.capture.capture import (
    Captured,
    Stage,
    capture,
    decompositions,
    is_dynamic,
    specialise,
)
from ...planner.capture.data_dependent import in_parts
from ...planner.capture.element_indices import elements_indexed
from ...planner.capture.opened_layers import layers_opened
from ...planner.capture.rewrites.rewrite import rewritten
from ...planner.capture.saved_inputs import save_as_they_were
from ...planner.capture.saving import RESULTS, partition
from ...planner.capture.symbolic import Symbolic, symbolic
from ...planner.capture.writes_in_place import keeps_writes
from ...planner.collector import paused
from ...planner.errors import MORE_MEMORY, ModelError, PlanError, summary_of
from ...planner.graph.graph import Numerics, key
from ...planner.graph.ops import is_compute
from .traced_model import TracedGraph, TracedModel

Model = Callable[..., Any]

# Every graph of a capture is compiled once; Dynamo's limit is against recompilation by accident,
# and beyond it it would silently run without us.
_NO_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(inputs: Any) -> CallArguments:
        """One tensor, a tuple or list of arguments, or a dictionary of them by name. Raises
        ModelError for anything else."""
        if isinstance(inputs, CallArguments):
            return inputs
        if isinstance(inputs, torch.Tensor):
            return CallArguments((inputs,))
        if isinstance(inputs, (tuple, list)):
            return CallArguments(tuple(inputs))
        if isinstance(inputs, Mapping):
            odd = next((name for name in inputs if not isinstance(name, str)), None)
            if odd is not None:
                raise ModelError(
                    f"the inputs are a dictionary with the key {odd!r} of type "
                    f"{type(odd).__name__}: its keys must be the names of the model's arguments"
                )
            return CallArguments((), dict(inputs))
        raise ModelError(
            f"the inputs are of type {type(inputs).__name__}: give a tensor, a tuple or list of "
            "arguments, or a dictionary of them by name"
        )

    def __str__(self) -> str:
        """`float32[4, 8], mask=bool[8]`: types and shapes."""
        named = (f"{name}={_shown(value)}" for name, value in self.kwargs.items())
        return ", ".join([*map(_shown, self.args), *named])

    def run(self, model: Model) -> Any:
        return model(*self.args, **self.kwargs)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """One graph of the model. inputs: the tensors it was run with, weights included, in order.
    times: how often this very graph ran in the call. forward: of a backward graph, the key of the
    forward graph that it belongs to."""

    key: str
    captured: Captured
    inputs: tuple[Any, ...] = field(repr=False)
    stage: Stage
    times: int = 1
    forward: str | None = None


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """parts: the different graphs, in order of first use. graphs: how many graphs ran in all,
    those that cannot be planned included. notes: for the user. sources: the graphs from Dynamo that
    they come from, each with its inputs. traced: what runs the model in other ways without tracing
    it again; None where that cannot be, as in training, or where sizes vary."""

    parts: tuple[ModelGraph, ...]
    graphs: int
    notes: tuple[str, ...] = ()
    sources: tuple[tuple[fx.GraphModule, tuple[Any, ...]], ...] = field(default=(), repr=False)
    traced: TracedModel | None = field(default=None, repr=False)


def check_runs(model: Model, call: CallArguments, training: bool = False) -> None:
    """Run the model as it is. Raises ModelError when it fails."""
    try:
        _run(model, call, training)
    except torch.OutOfMemoryError as error:
        raise ModelError(_NO_MEMORY) from error
    except Exception as error:
        told = f"the model fails on these inputs ({call}): {describe(error)}"
        raise ModelError(f"{told}; change the inputs or the model") from error


def capture_model(
    model: Model,
    inputs: Any,
    *,
    training: bool = False,
    dynamic: bool = False,
    numerics: Numerics = "fast",
    ran: Callable[[], object] = lambda: None,
    seen: Callable[[Captured], object] = lambda captured: None,
) -> CapturedModel:
    """Every graph of one call: under `no_grad`, or, in training, of the call and the backward
    pass of the sum of its float outputs. The model's own mode (train or eval) is left alone.
    dynamic: with symbolic sizes; else only those that `torch._dynamo.mark_dynamic` marks. numerics:
    see `Graph`. ran: called when the model has run as it is. seen: told of each graph with fixed
    sizes as soon as it is captured; Dynamo takes seconds more where it is large.

    Raises ModelError when the model itself fails or torch.compile cannot capture it.
    """
    call = CallArguments.of(inputs)
    check_runs(model, call, training)
    ran()
    collector = _Collector(numerics, seen)
    compiled = partial(torch.compile, model, backend=collector, dynamic=dynamic)
    limits = {"recompile_limit": _NO_LIMIT, "accumulated_recompile_limit": _NO_LIMIT}
    try:
        with torch._dynamo.config.patch(limits), paused():
            _run(compiled(), call, training)
    except torch.OutOfMemoryError as error:
        raise ModelError(_NO_MEMORY) from error
    except Exception as error:
        raise ModelError(f"torch.compile cannot capture the model: {describe(error)}") from error
    return replace(collector.result(), traced=None if training else collector.traced(compiled))


def describe(error: BaseException) -> str:
    """As `summary_of`, of what was raised first: Dynamo wraps what a back end raises."""
    while isinstance(error, torch._dynamo.exc.TorchDynamoException):
        # Dynamo keeps what a back end raised in a field of its own.
        inner = error.__cause__ or getattr(error, "inner_exception", None)
        if inner is None:
            break
        error = inner
    return summary_of(error)


def _run(model: Model, call: CallArguments, training: bool) -> None:
    if training:
        run_step(model, call)
        return
    with torch.no_grad():
        call.run(model)


def run_step(model: Model, call: CallArguments) -> tuple[torch.Tensor | None, ...]:
    """A forward pass and the gradients of the sum of its float outputs, by every parameter and
    input that asks for one. Raises PlanError where nothing does."""
    with torch.enable_grad():
        losses = [t.float().sum() for t in _floats(call.run(model)) if t.requires_grad]
        if not losses:
            raise PlanError("no output depends on anything that requires a gradient")
        # Not .backward(): the user's own gradients stay as they are.
        leaves = _leaves(model, call)
        total = sum(losses[1:], losses[0])
        return torch.autograd.grad(total, leaves, allow_unused=True)


def _leaves(model: Model, call: CallArguments) -> list[torch.Tensor]:
    own = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    given = _floats([call.args, dict(call.kwargs)])
    found = {id(t): t for t in [*own, *given] if t.requires_grad}
    if not found:
        raise PlanError("neither a parameter nor an input requires a gradient")
    return list(found.values())


def _floats(value: Any) -> list[torch.Tensor]:
    """Every float tensor in tuples, lists, dictionaries and objects with fields."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in _floats(item)]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _floats(item)]
    if hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        return [t for item in vars(value).values() for t in _floats(item)]
    return []


_NO_MEMORY = f"the device's memory is too small for the model on these inputs: {MORE_MEMORY}"


@dataclass(slots=True)
class _Source:
    """Of one Dynamo graph, the key of the forward graph of its last run."""

    graph: TracedGraph
    forward: str | None = None


class _Collector:
    """A torch.compile back end that runs every graph as it is, and remembers it."""

    def __init__(self, numerics: Numerics, seen: Callable[[Captured], object]) -> None:
        self._numerics, self._seen = numerics, seen
        self._parts: dict[tuple[str, Stage], ModelGraph] = {}
        self._notes: dict[str, None] = {}
        self._graphs = 0
        self._sources: list[tuple[fx.GraphModule, tuple[Any, ...]]] = []
        self._traced = TracedModel()

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        source = _Source(TracedGraph.now(gm, inputs))
        self._sources.append((gm, tuple(inputs)))
        compiler = aot_autograd(
            fw_compiler=lambda g, x: self._compile(g, x, "forward", source),
            bw_compiler=lambda g, x: self._compile(g, x, "backward", source),
            inference_compiler=lambda g, x: self._compile(g, x, "inference", source),
            partition_fn=partition,
            decompositions=decompositions(),
            keep_inference_input_mutations=keeps_writes(inputs),
        )
        opened = layers_opened(elements_indexed(gm), self._numerics)
        chosen = attention_chosen(opened, self._numerics)
        try:
            source.graph.itself = compiler(chosen, inputs)
        except Exception as error:
            cut = in_parts(gm, error, self)
            if cut is None:
                raise
            self._sources.pop()
            source.graph.itself = cut
        return self._traced.add(source.graph)

    def traced(self, compiled: Callable[[], Model]) -> TracedModel | None:
        """The trace, by which the model runs in other ways, too; None where a graph of it cannot be
        planned or where it was given sizes that vary. compiled: the model as torch.compile makes
        it, each time anew."""
        self._traced.compiled = compiled
        whole = all(graph.captured is not None for graph in self._traced.graphs)
        return self._traced if whole else None

    def result(self) -> CapturedModel:
        notes = list(self._notes)
        if not self._graphs:
            notes.append("torch.compile took no graph from the model")
        if len(self._sources) > 1:
            notes.append(
                f"torch.compile breaks the model into {len(self._sources)} graphs, and nothing is "
                "fused across a break; TORCH_LOGS=graph_breaks says where they are"
            )
        parts = []
        for part in self._parts.values():
            if part.stage == "backward" and (part.forward or "", "forward") not in self._parts:
                notes.append("a backward graph is left as it is, as its forward graph is")
            else:
                parts.append(part)
        return CapturedModel(tuple(parts), self._graphs, tuple(notes), tuple(self._sources))

    def _compile(
        self, gm: fx.GraphModule, fakes: Sequence[Any], stage: Stage, source: _Source
    ) -> Callable[[list[Any]], Any]:
        if stage == "forward":
            save_as_they_were(gm, gm.meta.get(RESULTS, 0))
        dynamic = is_dynamic(gm)
        static = None if dynamic else self._static(gm, stage)
        if static is not None:
            if stage == "inference":
                source.graph.captured, source.graph.fakes = static[1], tuple(fakes)
            with _disable_current_modes():
                self._seen(static[1])
        with _disable_current_modes():
            varying = symbolic(gm, self._numerics) if dynamic else None

        def run(args: list[Any]) -> Any:
            if source.graph.inner is not None:
                return source.graph.inner(args)
            inputs = tuple(args)
            args.clear()
            self._graphs += 1
            if static is not None:
                self._keep(static, inputs, stage, source)
            elif dynamic:
                self._keep_specialised(gm, varying, inputs, stage, source)
            return gm(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]  # as AOTAutograd wants it
        return run

    def _static(self, gm: fx.GraphModule, stage: Stage) -> tuple[str, Captured] | None:
        return self._captured(
            lambda: capture(rewritten(gm, stage, self._numerics), self._numerics), stage
        )

    def _captured(self, make: Callable[[], Captured], stage: Stage) -> tuple[str, Captured] | None:
        """The graph with its key, or None, with a note why it is left out."""
        try:
            with _disable_current_modes(), torch.no_grad():
                captured = make()
        except PlanError as error:
            self._notes[f"a {stage} graph is left as it is: {error}"] = None
            return None
        if not any(is_compute(node) for node in captured.graph.nodes):
            count = sum(n.op == "call_function" for n in captured.fx_nodes)
            self._notes[f"a {stage} graph of {count} operations has nothing to fuse"] = None
            if not count:
                return None
        return key(captured.graph), captured

    def _keep(
        self,
        found: tuple[str, Captured],
        inputs: tuple[Any, ...],
        stage: Stage,
        source: _Source,
    ) -> None:
        graph_key, captured = found
        if stage == "forward":
            source.forward = graph_key
        known = self._parts.get((graph_key, stage))
        if known is None:
            forward = source.forward if stage == "backward" else None
            part = ModelGraph(graph_key, captured, inputs, stage, 1, forward)
            self._parts[graph_key, stage] = part
        else:
            self._parts[graph_key, stage] = replace(known, times=known.times + 1)

    def _keep_specialised(
        self,
        gm: fx.GraphModule,
        varying: Symbolic | None,
        inputs: tuple[Any, ...],
        stage: Stage,
        source: _Source,
    ) -> None:
        def make() -> Captured:
            if varying is not None:
                return varying.at(varying.sizes(inputs))[0]
            return capture(specialise(gm, inputs).gm, self._numerics)

        found = self._captured(make, stage)
        if found is not None:
            tensors = tuple(x for x in inputs if isinstance(x, torch.Tensor))
            self._keep(found, tensors, stage, source)
