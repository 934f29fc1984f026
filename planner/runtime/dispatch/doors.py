"""The doors of a loaded model: what a call of it comes through first.

A small operation takes a few microseconds of the host, and a processor that has done other work
finds nothing of our code in its caches: there a call of one more function takes as long as ten
otherwise. So each door is one function, which finds all that it asks in its own cells. What it does
not know goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C import _get_tracing_state
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo import eval_frame
from torch.compiler import is_dynamo_compiling

from .direct_call import NOT_DIRECT
from .front_end import CALL, GLOBAL_HOOKS, USUAL
from .short_ways import ShortWays

LongWay = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]

SHORT = "_fusionplan_short"
"""The attribute of a loaded module with what is known of its calls."""


def module_door() -> Callable[..., Any]:
    """The call of all loaded modules."""
    gradients_are_on, compiles = torch.is_grad_enabled, is_dynamo_compiling
    callback, is_traced, of_dynamo = get_eval_frame_callback, _get_tracing_state, eval_frame
    usual, no, none = USUAL, NOT_DIRECT, ()
    hooks1, hooks2, hooks3, hooks4 = GLOBAL_HOOKS

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        if (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return self._fusionplan_long(args, kwargs)
        model, short = own["_modules"]["_orig_mod"], own["_fusionplan_short"]
        if compiles():
            return model(*args, **kwargs)  # It is a part of what somebody else compiles.
        if short.tensors:
            given, names = ((*args, *kwargs.values()), (*kwargs,)) if kwargs else (args, none)
            gradients, training = gradients_are_on(), model.training
            for count, named, check, with_gradients, trained in short.tensors:
                if (
                    len(given) == count
                    and named == names
                    and with_gradients is gradients
                    and trained is training
                    and check(*given)
                ):
                    return short.eager_call(model, *args, **kwargs)
        if (
            short.direct
            and callback() is None
            and of_dynamo._stance is usual
            and is_traced() is None
            and not (hooks1 or hooks2 or hooks3 or hooks4)
        ):
            result = short.direct[0](model, *args, **kwargs)
            if result is not no:
                return result
        return self._fusionplan_long(args, kwargs)

    return __call__


def eager_call(model: torch.nn.Module) -> Callable[..., Any]:
    """Calls a model, its first argument: by what a call comes to, unless its class has a call of
    its own."""
    if type(model).__call__ is CALL and model._compiled_call_impl is None:
        return type(model)._call_impl
    return lambda model, *args, **kwargs: model(*args, **kwargs)


def function_door(
    function: Callable[..., Any], short: ShortWays, long: LongWay
) -> Callable[..., Any]:
    """The call of a loaded function."""
    known, gradients_are_on, compiles = short.tensors, torch.is_grad_enabled, is_dynamo_compiling
    callback, is_traced, of_dynamo = get_eval_frame_callback, _get_tracing_state, eval_frame
    usual, no, none = USUAL, NOT_DIRECT, ()
    hooks1, hooks2, hooks3, hooks4 = GLOBAL_HOOKS

    def run(*args: Any, **kwargs: Any) -> Any:
        if compiles():
            return long(args, kwargs)
        if known:
            given, names = ((*args, *kwargs.values()), (*kwargs,)) if kwargs else (args, none)
            gradients = gradients_are_on()
            for count, named, check, with_gradients, _ in known:
                if (
                    len(given) == count
                    and named == names
                    and with_gradients is gradients
                    and check(*given)
                ):
                    return function(*args, **kwargs)
        if (
            short.direct
            and callback() is None
            and of_dynamo._stance is usual
            and is_traced() is None
            and not (hooks1 or hooks2 or hooks3 or hooks4)
        ):
            result = short.direct[0](*args, **kwargs)
            if result is not no:
                return result
        return long(args, kwargs)

    return run
