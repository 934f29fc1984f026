"""The result of `load`: torch.compile's module or function, with two short ways.

Where the plan for some inputs is the user's own eager code, torch.compile's front end is all that
a call costs more than eager does: some ten microseconds, more than a small operation takes. So a
call that was seen to run nothing but frames that are left alone goes to the model directly next
time. Eager is right for any call; only shapes and types decide whether it is the fastest.

Any other call, from the second on, enters Dynamo without the rest of torch.compile's front end
(`front_end`).

The first call may set a model up: a hook that is installed then, behind a lock, breaks the graph,
and what is left of it in pieces has no plan. So a model of which several graphs were traced in the
first call, one of them without a plan, is traced once more in the second: then it is set up.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.eval_frame import OptimizedModule

from ...collector import paused
from .calls import MOST, TensorCall, kind_of_call
from .frames import COUNTS
from .front_end import entered, is_plain

log = logging.getLogger(__name__)

_SEEN, _AGAIN = "_fusionplan_seen", "_fusionplan_again"
_COLLECTS = "_fusionplan_collects"

_TENSOR_CALLS = 4
"""To ask of more of them one after the other takes as long as to look for a kind of call."""


def loaded(
    compiled: Any,
    model: Callable[..., Any],
    again: Callable[[Any], Any] | None = None,
    collects: bool = False,
) -> Any:
    """compiled: what `torch.compile` made of the model by our back end. again: loads a model in the
    same way; for copies, and processes to which it is sent. collects: the collector of cycles runs
    in the first call, too, as a tune may be part of it; else it waits, as that call traces."""
    if isinstance(compiled, OptimizedModule):
        compiled.__class__ = LoadedModule
        compiled.__dict__ |= {_AGAIN: again, _COLLECTS: collects}
        return compiled
    if compiled is model or isinstance(compiled, (type, torch.nn.Module)):
        return compiled  # torch.compile is switched off, or has compiled a class
    short = _Short(collects)

    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return compiled(*args, **kwargs)
        if short.eager and short.is_eager(args, kwargs):
            return model(*args, **kwargs)
        if short.enter and is_plain():
            return short.watched(short.enter, args, kwargs)
        result = short.watched(compiled, args, kwargs)
        if short.enter is None:
            short.enter = entered(compiled) or False
        return result

    return run


class LoadedModule(OptimizedModule):
    """A module of torch.compile's, with both short ways. A pickle or a copy of it is loaded anew
    from the model: what is compiled belongs to this process."""

    def __reduce__(self) -> Any:
        again = self.__dict__.get(_AGAIN)
        return super().__reduce__() if again is None else (again, (self._orig_mod,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]
        if hooked or torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        model: torch.nn.Module = own["_modules"]["_orig_mod"]
        short = own.get(_SEEN)
        if short is None:
            short = own[_SEEN] = _Short(own.get(_COLLECTS, False))
        elif short.eager and short.is_eager(args, kwargs, model.training):
            return model(*args, **kwargs)
        elif short.enter and is_plain():
            return short.watched(short.enter, args, kwargs, model.training)
        result = short.watched(super().__call__, args, kwargs, model.training)
        if short.enter is None:
            short.enter = entered(self) or False
        return result


class _Short:
    """Which calls go to eager directly, and what enters Dynamo: None before a call has succeeded,
    False where all of torch.compile is needed."""

    def __init__(self, collects: bool) -> None:
        self.traced = collects
        """Whether a call has succeeded; the collector waits until then."""
        self.has_forgotten = False
        """Whether what the first call traced was forgotten, for the second to trace again."""
        self.enter: Callable[..., Any] | Literal[False] | None = None
        self.eager: set[Any] = set()
        self._tensors: list[tuple[TensorCall, bool, bool]] = []
        """The first few of these that have tensors alone; they are asked of first."""

    def is_eager(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool = False
    ) -> bool:
        grad = torch.is_grad_enabled()
        for call, with_grad, trained in self._tensors:
            if with_grad is grad and trained is training and call.fits(args, kwargs):
                return True
        try:
            found = (kind_of_call(args, kwargs), grad, training) in self.eager
        except TypeError:  # what cannot be told apart goes the long way
            return False
        if found and len(self._tensors) < _TENSOR_CALLS:
            alike = TensorCall.of(args, kwargs)
            self._tensors += [(alike, grad, training)] if alike else []
        return found

    def watched(
        self,
        compiled: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        training: bool = False,
    ) -> Any:
        """The call. If it ran nothing but frames left alone, its like go to eager from now on."""
        graphs, left = COUNTS.graphs, COUNTS.left
        if self.traced:
            result = compiled(*args, **kwargs)
        else:
            result = self._tracing(compiled, args, kwargs)
        if COUNTS.left == left:
            return result
        if COUNTS.left - left == COUNTS.graphs - graphs and len(self.eager) < MOST:
            with suppress(TypeError):
                self.eager.add((kind_of_call(args, kwargs), torch.is_grad_enabled(), training))
        return result

    def _tracing(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """The first call, or the second where the first left pieces without a plan."""
        given, missed, codes = COUNTS.given, COUNTS.missed, len(input_codes.seen)
        with paused(lasting=True):
            result = compiled(*args, **kwargs)
        self.traced = True
        is_broken = COUNTS.given > given + 1 and COUNTS.missed > missed
        # A model in training may be cut on purpose, as for the collectives of its gradients.
        if is_broken and not self.has_forgotten and not torch.is_grad_enabled():
            log.info("some graphs of the first call have no plan: the next one traces again")
            self.traced, self.has_forgotten = False, True
            for each in input_codes.seen[codes:]:
                if (code := each()) is not None:
                    reset_code(code)
        return result
