"""A graph called without AOTAutograd's wrapper, where that was seen to do nothing.

Around a graph of inference AOTAutograd puts what some graphs need: views made again of results that
share memory, inputs written, parts of subclasses, tokens. It does the same in every call, so that a
call in which the graph had exactly the caller's inputs, and the caller exactly the graph's results,
says that there is nothing to do. What it also does, gradients off and autocast off, is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...lowerings.base import Boxed
from ..execution.one_by_one import one_by_one
from .plain_calls import set_uncounted, uncounted

_TRIES = 3
"""Calls that are looked at; two threads may disturb each other's."""


class PassThrough:
    """`graph` is what AOTAutograd is to wrap; `called` what is called in place of its wrapper."""

    def __init__(self, graph: Boxed, told: Callable[[], object] | None = None) -> None:
        """told: called once, if the wrapper is seen to do nothing."""
        self._graph = graph
        self._told = told or _nothing
        self._tries = _TRIES
        self._seen: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None

    @property
    def graph(self) -> Boxed:
        graph = self._graph

        def watched(args: list[Any]) -> Sequence[Any]:
            if not self._tries:
                return graph(args)
            inputs = tuple(args)
            outputs = graph(args)
            self._seen = inputs, tuple(outputs)
            return outputs

        watched._boxed_call = True  # type: ignore[attr-defined]
        return watched

    def called(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        alone = without_wrapper(self._graph)
        does_nothing = False

        def call(*args: Any) -> Any:
            nonlocal does_nothing
            if does_nothing:
                return alone(*args)
            if not self._tries:
                return wrapper(*args)
            try:
                results = wrapper(*args)
                does_nothing = self._did_nothing(args, results)
                if does_nothing:
                    set_uncounted(call, uncounted(alone))
                    self._told()
            finally:
                self._seen = None  # It would hold the tensors of this call.
            self._tries = 0 if does_nothing else self._tries - 1
            if not self._tries:
                self._told = _nothing  # It may hold the graph that Dynamo has traced.
            return results

        return call

    def _did_nothing(self, args: tuple[Any, ...], results: Any) -> bool:
        if self._seen is None or _autocasts() or not isinstance(results, (list, tuple)):
            return False
        inputs, outputs = self._seen
        return _are(args, inputs) and _are(results, outputs)


def without_wrapper(graph: Boxed) -> Callable[..., Any]:
    """Calls a graph of inference around which the wrapper would do nothing but that it switches
    gradients off."""
    call, bare = _without_gradients(graph), uncounted(graph)
    if bare is not graph:
        set_uncounted(call, _without_gradients(bare))
    return call


def _without_gradients(graph: Boxed) -> Callable[..., Any]:
    same = one_by_one(graph)
    if same is not None:
        return same

    def call(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return graph(list(args))
        torch._C._set_grad_enabled(False)
        try:
            return graph(list(args))
        finally:
            torch._C._set_grad_enabled(True)

    return call


def _nothing() -> None:
    pass


def passes_through(gm: fx.GraphModule) -> bool:
    """Whether no call of an ATen graph writes: else AOTAutograd tells autograd of it."""
    return not any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for node in gm.graph.nodes
    )


def _autocasts() -> bool:
    """The wrapper switches autocast off; Dynamo's guards know whether it was on."""
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(lambda a, b: a is b, some, others))
