"""The result of `load`: torch.compile's module or function, with a short way to eager.

Where the plan for some inputs is the user's own eager code, torch.compile's front end is all that
a call costs more than eager does: some ten microseconds, more than a small operation takes. So a
call that was seen to run nothing but frames that are left alone goes to the model directly next
time. Eager is right for any call; only shapes and types decide whether it is the fastest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule

from .calls import MOST, kind_of
from .frames import COUNTS

_SEEN, _AGAIN = "_fusionplan_seen", "_fusionplan_again"


def loaded(
    compiled: Any, model: Callable[..., Any], again: Callable[[Any], Any] | None = None
) -> Any:
    """compiled: what `torch.compile` made of the model by our back end. again: loads a model in the
    same way; for copies, and processes to which it is sent."""
    if isinstance(compiled, OptimizedModule):
        compiled.__class__ = LoadedModule
        compiled.__dict__[_AGAIN] = again
        return compiled
    if compiled is model or isinstance(compiled, (type, torch.nn.Module)):
        return compiled  # torch.compile is switched off, or has compiled a class
    short = _Short()

    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        return short.call(model, compiled, args, kwargs)

    return run


class LoadedModule(OptimizedModule):
    """A module of torch.compile's, with the short way. A pickle or a copy of it is loaded anew from
    the model: what is compiled belongs to this process."""

    def __reduce__(self) -> Any:
        again = self.__dict__.get(_AGAIN)
        return super().__reduce__() if again is None else (again, (self._orig_mod,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks:
            return super().__call__(*args, **kwargs)
        short = self.__dict__.get(_SEEN)
        if short is None:
            short = self.__dict__[_SEEN] = _Short()
        return short.call(self._orig_mod, super().__call__, args, kwargs)


class _Short:
    """Which calls go to eager directly."""

    def __init__(self) -> None:
        self._eager: set[Any] = set()

    def call(
        self,
        model: Callable[..., Any],
        compiled: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        try:
            kind = kind_of(args), kind_of(kwargs), torch.is_grad_enabled(), _training(model)
            known = kind in self._eager
        except TypeError:  # what cannot be told apart goes the long way
            return compiled(*args, **kwargs)
        if known:
            return model(*args, **kwargs)
        graphs, left = COUNTS.graphs, COUNTS.left
        result = compiled(*args, **kwargs)
        graphs, left = COUNTS.graphs - graphs, COUNTS.left - left
        if left and left == graphs and len(self._eager) < MOST:
            self._eager.add(kind)
        return result


def _training(model: Callable[..., Any]) -> bool:
    return isinstance(model, torch.nn.Module) and model.training
