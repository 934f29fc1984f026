"""Enters Dynamo directly, without the work that torch.compile does around it in each call.

What torch.compile makes of a module or a function enters a context, runs the call of a module that
has no hooks, and asks whether anybody traces or exports. Together that takes as long as a small
kernel. All that a call needs is to tell Dynamo which frames are its own. Its guards are checked as
always, and if they fail, it compiles again.

If a call is known to run one graph and nothing else, the guards are checked here, and the code that
Dynamo made is called, without the interpreter's way through every frame.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import compiler
from torch._C import _get_tracing_state
from torch._C._dynamo.eval_frame import (
    _debug_get_cache_entry_list,
    get_eval_frame_callback,
    set_eval_frame,
)
from torch._dynamo import eval_frame
from torch.fx import _symbolic_trace
from torch.nn.modules import module

from .arguments import Arguments, is_simple
from .direct_call import NOT_DIRECT, CompiledFrame, can_be_direct, direct_call
from .frames import COUNTS, LeftAlone, diverted_by, is_left_alone
from .graph_alone import graph_alone
from .plain_calls import plainly

_MOST = 4
"""Compiled frames that are kept, such as those of a few batch sizes."""
CALL = torch.nn.Module.__call__
"""What a call of a module is, but for classes that have one of their own."""
_TRIES = 8
"""Calls in a row without such a frame, after which none is looked for any more."""


def entered(compiled: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function that calls a compiled module or function and enters Dynamo at once; None where the
    options of torch.compile ask for more than that. It may be called where `is_plain`."""
    context, inner = _parts(compiled)
    if inner is None or context is None or not callable(context.callback):
        return None
    if context.fullgraph or context.error_on_graph_break is not None:
        return None
    if getattr(context, "_isolate_recompiles_id", -1) != -1:
        return None
    callback, hooks = context.callback, context.enter_exit_hooks

    def run(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            undone = [enter() for enter in hooks]
            set_eval_frame(callback)
            try:
                return inner(*args, **kwargs)
            finally:
                set_eval_frame(None)
                for undo in undone:
                    undo()
        finally:
            set_eval_frame(before)

    model = getattr(inner, "__self__", None)
    function = inner
    if isinstance(model, torch.nn.Module):
        if type(model).__call__ is not CALL:
            return run
        function = inspect.getattr_static(type(model), "forward", None)
    elif model is not None:
        return run
    if not isinstance(function, FunctionType) or not is_simple(function):
        return run
    if not can_be_direct(function):
        return run
    return Frames(model, function, run)


def _parts(compiled: Any) -> tuple[Any, Callable[..., Any] | None]:
    """The context that torch.compile enters, and what it calls within."""
    if isinstance(compiled, torch.nn.Module):
        wrapped = compiled.__dict__.get("forward")
        inner = getattr(wrapped, "_torchdynamo_orig_callable", None)
        return getattr(compiled, "dynamo_ctx", None), inner
    with suppress(AttributeError, ValueError):
        names, cells = compiled.__code__.co_freevars, compiled.__closure__ or ()
        found = {n: cell.cell_contents for n, cell in zip(names, cells, strict=True)}
        return found.get("self"), found.get("fn")
    return None, None


GLOBAL_HOOKS = (
    module._global_forward_hooks,
    module._global_forward_pre_hooks,
    module._global_backward_hooks,
    module._global_backward_pre_hooks,
)
"""Hooks of all modules, by number; torch keeps these very dictionaries."""


def is_plain() -> bool:
    """Whether nothing but a call of the model is under way: nobody traces, exports or has asked
    torch.compile to behave otherwise, and no hook is told of all modules' calls."""
    return (
        get_eval_frame_callback() is None
        and (eval_frame._stance is USUAL or _is_usual(eval_frame._stance))
        and _get_tracing_state() is None
        and not _symbolic_trace._is_fx_tracing_flag
        and not compiler._is_exporting_flag
        and not any(GLOBAL_HOOKS)
    )


def _is_usual(stance: Any) -> bool:
    return (
        stance.stance == "default" and stance.backend is None and not stance.skip_guard_eval_unsafe
    )


USUAL = eval_frame._stance if _is_usual(eval_frame._stance) else None
"""What torch.compile was told to do when this was imported; it is there again after each change."""


class Frames:
    """The frames of a function, or of a module's `forward`, that Dynamo has compiled to one graph.
    enter: by way of the interpreter, for all other calls."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        function: FunctionType,
        enter: Callable[..., Any],
    ) -> None:
        self._model, self._function, self._enter = model, function, enter
        self._own = () if model is None else (model,)
        self._arguments = Arguments(function)
        self._found: list[CompiledFrame] = []
        self._tries = _TRIES
        self._direct: Callable[..., Any] | None = None
        self.direct: list[Callable[..., Any]] = []
        """At most one, which runs a call by the frames that are known (of a module with it as the
        first argument) or gives NOT_DIRECT; none where one may leave sizes to the user's code. It
        is always this list."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self._own + args
        if self._direct is not None:
            try:
                result = self._direct(*own, **kwargs)
            except LeftAlone as left:
                if all(frame.diverted is not left.frame for frame in self._found):
                    raise
                COUNTS.left += 1
                return self._function(*own, **kwargs)
            if result is not NOT_DIRECT:
                return result
        result = self._enter(*args, **kwargs)
        if self._tries:
            self._learn(self._arguments.bound(own, kwargs))
        return result

    def _learn(self, given: Mapping[str, Any]) -> None:
        """Looks for what Dynamo has just run."""
        found = [frame for frame in self._found if frame.guards.cache_entry is not None]
        for entry in _debug_get_cache_entry_list(self._function.__code__):
            guards, code = entry.guard_manager, entry.code
            if not guards.check(given):
                continue
            if is_left_alone(code):
                # As when it was compiled: whoever counts learns that eager ran this call.
                COUNTS.graphs += 1
                COUNTS.left += 1
            else:
                scope = self._function.__globals__
                diverted = diverted_by(code, scope)
                made = code if diverted is None else diverted.made
                if not _is_one_graph(made, self._function.__code__):
                    break
                plain, profiled = (
                    plainly(made, scope, is_counted=diverted is not None, tells=tells)
                    for tells in (False, True)
                )
                alone = None if plain is None else graph_alone(plain, given)
                own = FunctionType(made, scope, made.co_name)
                runs = plain or own, profiled or own
                frame = CompiledFrame(guards, guards.check, *runs, diverted, alone)
                self._know([frame, *found])
            self._tries = _TRIES
            return
        self._tries -= 1

    def _know(self, found: Sequence[CompiledFrame]) -> None:
        self._found = [*found[:_MOST]]
        self._direct = direct_call(self._function, self._found, self._model is not None)
        diverts = any(frame.diverted is not None for frame in self._found)
        self.direct[:] = [] if diverts else [self._direct]


def _is_one_graph(code: CodeType, of: CodeType) -> bool:
    """Whether code that Dynamo made calls one graph, and nothing that it has to compile or skip."""
    graphs = [name for name in code.co_names if name.startswith("__compiled_fn")]
    resumed = any(name.startswith("__resume") for name in code.co_names)
    return len(graphs) == 1 and not resumed and _signature(code) == _signature(of)


def _signature(code: CodeType) -> tuple[Any, ...]:
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_argcount, code.co_kwonlyargcount, code.co_freevars, flags
