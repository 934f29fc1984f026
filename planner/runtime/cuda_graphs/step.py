"""One step of a loop that generates text, called without torch.compile's front end.

In each call Dynamo's guards check every parameter, and the CUDA graph checks the address of each:
some 50 microseconds of the host for a model of 150 parameters. A step checks its arguments only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from ...lowerings.base import Boxed
from .cudagraph import Replay

_MOST = 4
"""Kinds of calls that are kept, such as those of a few batch sizes."""

_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of a graph: what ran it, with what, and what came of it."""

    run: Boxed
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    versions: tuple[int, ...]
    """Of the inputs that are tensors, right after the run."""


class _Watch(threading.local):
    """The runs of graphs in this thread, while somebody wants to know them."""

    runs: list[GraphRun] | None = None

    def ran(self, run: Boxed, args: list[Any]) -> Sequence[Any]:
        """Run a graph, and remember it."""
        inputs = tuple(args)
        outputs = tuple(run(args))
        if self.runs is not None:
            self.runs.append(GraphRun(run, inputs, outputs, _versions(inputs)))
        return outputs


WATCH = _Watch()


def _versions(inputs: Sequence[Any]) -> tuple[int, ...]:
    """How often each tensor was written, as autograd counts it; of an inference tensor nobody
    does."""
    tensors = (x for x in inputs if isinstance(x, torch.Tensor))
    return tuple(0 if x.is_inference() else x._version for x in tensors)


class Step:
    """A model, called in a loop: `step(*args, **kwargs)` is `model(*args, **kwargs)`.

    The first call with new shapes, types or Python values goes through torch.compile, which must
    capture the whole model as one graph. Later ones like it go to the graph at once, without
    gradients or tangents only. Of the model nothing is looked at then: parameters, buffers and
    caches must be written in place and not replaced, and Python that the model runs beside its
    tensors does not run.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        self._bound: list[_BoundStep] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values()) if kwargs else args
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            names = tuple(kwargs) if kwargs else ()
            for bound in self._bound:
                if bound.takes(given, names):
                    return bound.called(given)
        return self._first(args, kwargs, given)

    @property
    def kinds(self) -> int:
        """The number of kinds of calls that go to their graph at once."""
        return len(self._bound)

    def _first(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: tuple[Any, ...]
    ) -> Any:
        watched = WATCH.runs is not None
        if watched or torch.is_grad_enabled() or forward_ad._current_level >= 0:
            return self.compiled(*args, **kwargs)
        runs: list[GraphRun] = []
        WATCH.runs = runs
        try:
            result = self.compiled(*args, **kwargs)
        finally:
            WATCH.runs = None
        bound = _bound(runs, given, tuple(kwargs), result)
        if bound is not None:
            self._bound = [bound, *self._bound][:_MOST]
        return result


@dataclass(slots=True)
class _BoundStep:
    """A graph whose inputs, but for the arguments of the call, stay what and where they are."""

    run: Boxed
    names: tuple[str, ...]
    kinds: tuple[_Kind, ...]
    inputs: tuple[Any, ...]
    own: dict[int, int]
    """By place of an input, the argument that it is."""
    result: Callable[[Sequence[Any], Sequence[Any]], Any]
    """From the graph's outputs and the arguments to the model's result."""
    replay: Replay | None = None

    def takes(self, given: Sequence[Any], names: tuple[str, ...]) -> bool:
        """Whether the graph was captured for such arguments."""
        if names != self.names or len(given) != len(self.kinds):
            return False
        return all(map(_Kind.has, self.kinds, given))

    def called(self, given: tuple[Any, ...]) -> Any:
        outputs: Sequence[Any] | None = None
        if self.replay is not None:
            outputs = self.replay(given)
        return self.result(self._run(given) if outputs is None else outputs, given)

    def _run(self, given: tuple[Any, ...]) -> Sequence[Any]:
        inputs = list(self.inputs)
        for place, argument in self.own.items():
            inputs[place] = given[argument]
        kept = tuple(inputs)
        outputs = self.run(inputs)
        replay_at = getattr(getattr(self.run, "__self__", None), "replay_at", None)
        self.replay = None if replay_at is None else replay_at(kept, self.own)
        return outputs


class _Kind:
    """What the graph may rely on of an argument: layout and device of a tensor, plain values; of
    anything else that it is the very object."""

    __slots__ = ("_device", "_dtype", "_gradient", "_shape", "_strides", "_type", "_value")

    def __init__(self, value: Any) -> None:
        self._type, self._value = type(value), value
        if isinstance(value, torch.Tensor):
            self._value, self._shape, self._strides = None, value.shape, value.stride()
            self._dtype, self._device = value.dtype, value.device
            self._gradient = value.requires_grad

    def has(self, value: Any) -> bool:
        if type(value) is not self._type:
            return False
        if isinstance(value, torch.Tensor):
            return bool(
                value.dtype is self._dtype
                and value.shape == self._shape
                and value.stride() == self._strides
                and value.device == self._device
                and value.requires_grad == self._gradient
            )
        return bool(value == self._value) if self._type in _PLAIN else value is self._value


def _bound(
    runs: Sequence[GraphRun], given: tuple[Any, ...], names: tuple[str, ...], result: Any
) -> _BoundStep | None:
    """The graph of a call that ran one and nothing else; None where calls must go on through
    torch.compile: another ran, inputs were written after it, or the result is made of more."""
    if len(runs) != 1 or _versions(runs[0].inputs) != runs[0].versions:
        return None
    (ran,) = runs
    build = _result(result, ran.outputs, given)
    if build is None:
        return None
    by_id = {id(value): place for place, value in enumerate(given)}
    own = {i: by_id[id(x)] for i, x in enumerate(ran.inputs) if id(x) in by_id}
    tensors = {i for i, value in enumerate(given) if isinstance(value, torch.Tensor)}
    if not tensors <= {*own.values()}:  # perhaps the graph has a view of it, or nothing
        return None
    return _BoundStep(ran.run, names, tuple(map(_Kind, given)), ran.inputs, own, build)


def _result(
    result: Any, outputs: Sequence[Any], given: Sequence[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], Any] | None:
    """How the result is made of the outputs and the arguments; None where it is made of more."""
    of_output = {id(x): place for place, x in enumerate(outputs) if isinstance(x, torch.Tensor)}
    of_given = {id(x): place for place, x in enumerate(given)}
    if id(result) in of_output:
        single = of_output[id(result)]
        return lambda outputs, _: outputs[single]
    leaves, spec = pytree.tree_flatten(result)
    sources: list[tuple[str, Any]] = []
    for leaf in leaves:
        if id(leaf) in of_output:
            sources.append(("output", of_output[id(leaf)]))
        elif isinstance(leaf, _PLAIN):
            sources.append(("plain", leaf))
        elif id(leaf) in of_given:
            sources.append(("given", of_given[id(leaf)]))
        else:
            return None

    def build(outputs: Sequence[Any], given: Sequence[Any]) -> Any:
        from_ = {"output": outputs, "given": given}
        made = [x if kind == "plain" else from_[kind][x] for kind, x in sources]
        return pytree.tree_unflatten(made, spec)

    return build
