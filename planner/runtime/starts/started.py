"""A loaded model before anything is traced: calls that are remembered run at once.

A call runs by a remembered capture where all that the capture depended on is as it was: the code,
the attributes of every module, the globals it names, torch's state, and the sizes of every tensor.
That is read before the first call, and watched by identity from then on. At the first call for
which that does not hold, the model becomes what torch.compile makes of it, for good.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...errors import PlanError
from ...graph.graph import TensorType, from_json
from ...lowerings.base import Boxed
from ..dispatch.compile_inputs import Given
from ..dispatch.plan_runners import PlanRunners
from ..execution.modules import captured_without_fakes
from ..phases import phase
from . import remembered, trees
from .code import Untold, traced_now
from .facts import facts
from .remembered import RememberedCall
from .unchanged import Seen, tensor_guards

log = logging.getLogger(__name__)

_START = "_fusionplan_start"
_TRACING = threading.Lock()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True, slots=True)
class _BoundCall:
    """A remembered call with what runs it. inputs: of the graph, None where an argument goes."""

    call: Any
    guards: Any
    inputs: tuple[torch.Tensor | None, ...]
    arguments: tuple[tuple[int, int], ...]
    """By place of an input, the number of the argument."""
    result: Any
    run: Boxed
    state: Mapping[str, str]

    def takes(self, call: Any, tensors: Sequence[torch.Tensor]) -> bool:
        return bool(call == self.call and self.guards.check(*tensors))

    def called(self, tensors: Sequence[torch.Tensor]) -> Any:
        inputs: list[Any] = list(self.inputs)
        for place, number in self.arguments:
            inputs[place] = tensors[number]
        outputs = self.run(inputs)
        return trees.built(self.result, outputs.__getitem__)


class Start:
    """The remembered calls of one model. compiled: gives the model as torch.compile makes it."""

    def __init__(
        self,
        calls: Sequence[RememberedCall],
        runners: PlanRunners,
        compiled: Callable[[], nn.Module],
    ) -> None:
        self.runners, self.compiled = runners, compiled
        self._calls = list(calls)
        self._seen: dict[int, Seen] = {}
        self._bound: list[tuple[_BoundCall, Seen]] = []

    def called(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call. Raises Untold where the model has to be traced for it."""
        try:
            bound, tensors = self._ready(model, args, kwargs)
        except Untold:
            raise
        except Exception as error:  # a fault of ours must not stop the user's model
            log.debug("a model cannot be looked at", exc_info=True)
            raise Untold(f"it cannot be looked at: {type(error).__name__}: {error}") from error
        return bound.called(tensors)

    def _ready(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_BoundCall, list[torch.Tensor]]:
        """What runs the call, and its tensors."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            raise Untold("gradients are wanted, or it is traced itself")
        if remembered.modes() != (0, 0, False) or remembered.has_global_hooks():
            raise Untold("modes or hooks of torch are active")
        call, tensors = trees.called(args, kwargs)
        for bound, seen in self._bound:
            if bound.takes(call, tensors):
                if (
                    bound.state["inference"] == str(torch.is_inference_mode_enabled())
                    and seen.still()
                ):
                    return bound, tensors
                self._bound = []
                break
        with phase("facts"):
            return self._bind(model, call, tensors), tensors

    def _bind(self, model: nn.Module, call: Any, tensors: Sequence[torch.Tensor]) -> _BoundCall:
        state = remembered.state()
        made_by = remembered.made_by(self.runners.numerics)
        fitting = [
            each
            for each in self._calls
            if each.call == call and each.state == state and each.made_by == made_by
        ]
        if not fitting:
            raise Untold("no call like it is remembered")
        why = ""
        for each in fitting:
            seen = Seen()
            traced_now(each.traced)
            found = facts(model, each.traced, seen)
            if found != each.facts:
                why = remembered.differences(each, found)
                continue
            seen.done()
            bound = self._built(each, seen, tensors)
            self._bound.append((bound, seen))
            return bound
        raise Untold(f"the model is another: {why}")

    def _built(
        self, each: RememberedCall, seen: Seen, tensors: Sequence[torch.Tensor]
    ) -> _BoundCall:
        inputs: list[torch.Tensor | None] = []
        arguments: list[tuple[int, int]] = []
        for place, source in enumerate(each.inputs):
            match source:
                case ("argument", int(number)) if number < len(tensors):
                    arguments.append((place, number))
                    inputs.append(None)
                case ("model", str(path), str(name)) if (path, name) in seen.tensors:
                    inputs.append(seen.tensors[path, name])
                case _:
                    raise Untold(f"an input of the graph is not found: {source}")
        numbers: list[Any] = []
        trees.built(each.result, numbers.append)
        outputs = each.graph["outputs"]
        if not all(type(n) is int and 0 <= n < len(outputs) for n in numbers):
            raise Untold("its result cannot be read")
        real = list(inputs)
        for place, number in arguments:
            real[place] = tensors[number]
        run = self._runner(each, [t for t in real if t is not None])
        return _BoundCall(
            each.call,
            tensor_guards(tensors),
            tuple(inputs),
            tuple(arguments),
            each.result,
            run,
            each.state,
        )

    def _runner(self, each: RememberedCall, real: list[torch.Tensor]) -> Boxed:
        device = next((t.device for t in real if t.device.type == "cuda"), torch.device("cpu"))
        try:
            captured = captured_without_fakes(from_json(each.graph), device)
        except (PlanError, ValueError, KeyError, TypeError, IndexError) as error:
            raise Untold(f"its graph cannot be read: {error}") from error
        kinds = [captured.graph.nodes[i].type for i in captured.graph.inputs]
        if len(kinds) != len(real) or not all(map(_is_of, real, kinds)):
            raise Untold("the graph's inputs are others")
        live = self.runners.found(captured, Given(real, "inference", real))
        if isinstance(live, str) or live.runner is None:
            raise Untold(live if isinstance(live, str) else "its plan has no kernels")
        self.runners.live[live.plan.graph_key, "inference"] = live
        return live.runner.boxed


def _is_of(real: torch.Tensor, kind: TensorType | None) -> bool:
    if kind is None:
        return False
    found = tuple(real.shape), real.stride(), str(real.dtype).removeprefix("torch.")
    return found == (kind.shape, kind.stride, kind.dtype)


class StartedModule(nn.Module):
    """Stands for a model until it has to be traced, and is torch.compile's module from then on."""

    def __init__(self, model: nn.Module, start: Start) -> None:
        super().__init__()
        self.__dict__["_modules"]["_orig_mod"] = model
        self.__dict__[_START] = start
        del self.__dict__["training"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start: Start | None = self.__dict__.get(_START)
        if start is not None:  # else another thread has traced it just now
            try:
                if any(self.__dict__[name] for name in _HOOKS):
                    raise Untold("the loaded model has hooks")
                return start.called(self.__dict__["_modules"]["_orig_mod"], args, kwargs)
            except Untold as why:
                log.info("the model is traced: %s", why)
            self.trace()
        return self(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    def trace(self) -> None:
        """Become what torch.compile makes of the model."""
        with _TRACING:
            start: Start | None = self.__dict__.get(_START)
            if start is None:
                return
            made = start.compiled()
            hooks = {n: v for n, v in self.__dict__.items() if "_hooks" in n and v}
            self.__dict__.update(made.__dict__)
            self.__dict__.update(hooks)
            object.__setattr__(self, "__class__", type(made))
            del self.__dict__[_START]

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self.__dict__["_modules"]["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_modules"]["_orig_mod"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_modules"]["_orig_mod"], name)

    def __deepcopy__(self, memo: Any) -> Any:
        self.trace()
        return copy.deepcopy(self, memo)

    def __reduce__(self) -> Any:
        self.trace()
        return self.__reduce__()


def runners_of(loaded: Any) -> PlanRunners | None:
    """What runs the plans of a model that has not been traced; None of any other."""
    if isinstance(loaded, StartedModule):
        runners: PlanRunners = loaded.__dict__[_START].runners
        return runners
    return None


def started(
    model: Any, runners: Callable[[], PlanRunners], compiled: Callable[[], Any]
) -> StartedModule | None:
    """The model, to be run by remembered calls; None where there are none."""
    if not isinstance(model, nn.Module) or not _is_plain(model):
        return None
    calls = remembered.find(remembered.model_key(model))
    return StartedModule(model, Start(calls, runners(), compiled)) if calls else None


def _is_plain(model: nn.Module) -> bool:
    """Whether nothing is asked of the model that `StartedModule` does not hand on."""
    kind = type(model)
    special = ("__len__", "__getitem__", "__iter__", "__contains__", "_initialize_hook")
    plain = kind.__call__ is nn.Module.__call__ and not any(hasattr(model, n) for n in special)
    return plain and not isinstance(model, torch.jit.ScriptModule)
