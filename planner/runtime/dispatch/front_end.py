"""Dynamo entered without what torch.compile does around it in each call.

A module of torch.compile's enters a context, goes through the call of a module that has no hooks,
and asks whether anybody traces or exports; together that takes as long as a small kernel. What a
call needs is what tells Dynamo which frames are its own. Its guards are asked as always, and it
compiles anew where they say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo import eval_frame
from torch.fx import _symbolic_trace
from torch.nn.modules import module as modules


def entered(compiled: torch.nn.Module) -> Callable[..., Any] | None:
    """A module of torch.compile's as a function that enters Dynamo at once. None where its options
    ask for more than that. It may be called where `is_plain`."""
    context: Any = getattr(compiled, "dynamo_ctx", None)
    inner = getattr(compiled.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
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

    return run


def is_plain() -> bool:
    """Whether nothing but a call of the model is under way: nobody traces, exports or has asked
    torch.compile to behave otherwise, and no hook is told of all modules' calls."""
    stance = eval_frame._stance
    return (
        stance.stance == "default"
        and stance.backend is None
        and not stance.skip_guard_eval_unsafe
        and torch._C._get_tracing_state() is None
        and not _symbolic_trace._is_fx_tracing_flag
        and not torch.compiler.is_exporting()
        and not modules._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
