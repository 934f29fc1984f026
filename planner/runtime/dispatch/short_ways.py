"""Short ways for the calls of a loaded model: straight to eager, or into Dynamo at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.convert_frame import input_codes

from ...collector import paused
from .calls import MOST, TensorCall, kind_of_call
from .frames import COUNTS
from .front_end import Frames

log = logging.getLogger(__name__)

_TENSOR_CALLS = 4
"""To ask of more of them one after the other takes as long as to look for a kind of call."""

EagerCall: TypeAlias = tuple[int, tuple[str, ...], Callable[..., bool], bool, bool]
"""Calls of tensors that go to eager: how many they are, the names of the last ones, what asks
whether they are alike, whether gradients are on, and whether the model is in training."""


def _called(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


class ShortWays:
    """The calls that go to eager directly, and the function that enters Dynamo: None before a call
    has succeeded, False where all of torch.compile is needed."""

    __slots__ = (
        "_mixed",
        "check",
        "direct",
        "door",
        "eager",
        "eager_call",
        "enter",
        "gradients",
        "has_forgotten",
        "tensors",
        "traced",
        "training",
    )

    def __init__(self, collects: bool, eager_call: Callable[..., Any] = _called) -> None:
        """collects: the collector of cycles runs in the first call, too. eager_call: calls a model,
        its first argument."""
        self.eager_call = eager_call
        self.traced = collects
        """Whether a call has succeeded; the collector waits until then."""
        self.has_forgotten = False
        """Whether what the first call traced was forgotten, for the second to trace again."""
        self.enter: Callable[..., Any] | Literal[False] | None = None
        self.direct: list[Callable[..., Any]] = []
        """What runs a call by the frames that are known (see `Frames.direct`)."""
        self.eager: set[Any] = set()
        self.tensors: list[EagerCall] = []
        """The first few of these that have tensors alone."""
        self.door: tuple[int, tuple[str, ...]] | None = None
        """The arguments for which a door is written: how many, and the names of the last ones."""
        self.check: Callable[..., bool] | None = None
        """The question of the first of these that has such arguments."""
        self.gradients = self.training = False
        """Whether gradients are on in its calls, and whether the model is in training."""
        self._mixed: list[tuple[TensorCall, bool, bool]] = []
        """The first few that have plain values, too."""

    def enters(self, enter: Callable[..., Any] | None) -> None:
        self.enter = enter or False
        if isinstance(enter, Frames):
            self.direct = enter.direct

    def is_eager(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool = False
    ) -> bool:
        grad = torch.is_grad_enabled()
        for call, with_grad, trained in self._mixed:
            if with_grad is grad and trained is training and call.fits(args, kwargs):
                return True
        try:
            found = (kind_of_call(args, kwargs), grad, training) in self.eager
        except TypeError:  # what cannot be told apart goes the long way
            return False
        if found and len(self.tensors) + len(self._mixed) < _TENSOR_CALLS:
            self._know(TensorCall.of(args, kwargs), grad, training)
        return found

    def _know(self, call: TensorCall | None, grad: bool, training: bool) -> None:
        if call is not None and call.check_of_all is not None:
            known = len(call.types), call.names, call.check_of_all, grad, training
            self.tensors.append(known)
        elif call is not None:
            self._mixed.append((call, grad, training))

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
