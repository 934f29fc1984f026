"""Remembers what Dynamo traced for a call, for processes to come.

Only a call that is one graph and nothing else: no graph break, no effect on the user's objects, its
inputs tensors of the model or of the call, its result made of the graph's outputs. Whatever else a
call is, its model is traced in every process.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...capture.capture import Captured
from ...capture.collectives import process_groups
from ...errors import PlanError
from ...graph.graph import Numerics, from_json, key, to_json
from ..cuda_graphs.step import WATCH, GraphRun
from ..dispatch.frames import COUNTS
from ..dispatch.plan_runners import PlanRunners, Traced
from ..execution.modules import captured_without_fakes
from . import remembered, trees
from .code import Untold, traced
from .facts import facts
from .remembered import RememberedCall
from .unchanged import Seen

log = logging.getLogger(__name__)

_MOST = 4
"""Calls of a loaded model that are looked at, each of another kind."""


class Rememberer:
    """Watches the first calls of a model that goes through torch.compile."""

    def __init__(self, runners: Callable[[], PlanRunners], numerics: Numerics) -> None:
        self._runners, self._numerics = runners, numerics
        self._left = _MOST
        self._kinds: set[Any] = set()

    def call(
        self,
        kind: Any,
        model: Any,
        compiled: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """`compiled(*args, **kwargs)`, remembered if this kind of call is new."""
        if not self._left or kind in self._kinds or not _is_watchable(model):
            return compiled(*args, **kwargs)
        self._kinds.add(kind)
        self._left -= 1
        before, runs = COUNTS.graphs, list[GraphRun]()
        WATCH.runs = runs
        try:
            result = compiled(*args, **kwargs)
        finally:
            WATCH.runs = None
        if COUNTS.graphs - before == 2:  # One was compiled, and ran.
            try:
                self._keep(model, runs, args, dict(kwargs), result)
            except Untold as why:
                log.info("the capture is for this process alone: %s", why)
            except Exception:
                log.debug("a capture could not be remembered", exc_info=True)
        return result

    def _keep(
        self,
        model: nn.Module,
        runs: list[GraphRun],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        runners = self._runners()
        captured, found = _captured(runners), runners.traced
        if captured is None or found is None or len(runs) != 1:
            raise Untold("it is not one graph with kernels of ours")
        codes = _codes(found, model)
        if key(
            captured_without_fakes(from_json(to_json(captured.graph)), captured.device).graph
        ) != key(captured.graph):
            raise Untold("the graph is not what is read of its text")
        seen = Seen()
        lines = facts(model, codes, seen)
        call, tensors = trees.called(args, kwargs)
        places: dict[int, tuple[str | int, ...]] = {
            id(t): ("model", path, name) for (path, name), t in seen.tensors.items()
        }
        if any(id(t) in places for t in tensors):
            raise Untold("a tensor of the model is passed")
        places |= {id(t): ("argument", i) for i, t in enumerate(tensors)}
        (run,) = runs
        runner = runners.live[next(reversed(runners.live))].runner
        if runner is None or run.run != runner.boxed:
            raise Untold("another graph ran")
        if not all(id(x) in places for x in run.inputs):
            raise Untold("the graph has an input that is no tensor of the model or the call")
        if run.versions != tuple(x._version for x in run.inputs) or captured.updates:
            raise Untold("the model writes its inputs")
        of_output = {id(x): i for i, x in enumerate(run.outputs) if isinstance(x, torch.Tensor)}

        def leaf(tensor: torch.Tensor) -> int:
            if id(tensor) not in of_output:
                raise Untold("the result is made of more than the graph's outputs")
            return of_output[id(tensor)]

        remembered.keep(
            remembered.model_key(model),
            RememberedCall(
                remembered.made_by(self._numerics),
                remembered.state(),
                codes,
                lines,
                call,
                to_json(captured.graph),
                tuple(places[id(x)] for x in run.inputs),
                trees.flattened(result, leaf),
            ),
        )


def _is_watchable(model: Any) -> bool:
    if not isinstance(model, nn.Module) or torch.is_grad_enabled() or WATCH.runs is not None:
        return False
    compiling = torch.compiler.is_compiling() or remembered.modes() != (0, 0, False)
    return not compiling and not remembered.has_global_hooks()


def _captured(runners: PlanRunners) -> Captured | None:
    """The graph of the only plan with kernels."""
    live = list(runners.live.items())
    if not live or live[-1][0][1] != "inference" or live[-1][1].runner is None:
        return None
    captured = live[-1][1].runner.captured
    if process_groups(captured.fx_nodes):
        return None
    try:
        captured_without_fakes(captured.graph, captured.device)
    except PlanError as error:
        raise Untold(str(error)) from error
    return captured


def _codes(found: Traced, model: nn.Module) -> Any:
    """The functions that were traced, where the trace began with the model's own `forward`."""
    kind = type(model)
    forward = kind.forward
    own = isinstance(forward, types.FunctionType) and "forward" not in model.__dict__
    plain = kind.__call__ is nn.Module.__call__ and kind._call_impl is nn.Module._call_impl
    if not own or not plain or found.root is not forward.__code__:
        raise Untold("the trace does not begin with the model's forward")
    if not found.is_pure:
        raise Untold("the model does more than compute its result")
    return traced(list(found.codes))
