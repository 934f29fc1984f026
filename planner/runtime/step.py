"""A step that a loop calls as text is generated, without torch.compile's front end.

In each call Dynamo asks of every parameter whether it is as it was when the graph was captured, and
the CUDA graph asks where each of them lies: some 50 microseconds of the host for a model of 150
parameters. A step asks that of its arguments only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..lowerings.base import Boxed
from .calls import kind_of

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

    The first call with arguments of a kind goes through torch.compile, which must capture the whole
    model as one graph. Later ones with that kind go to the graph at once, without gradients only.
    Of the model nothing is looked at then: parameters, buffers and caches must be written in place
    and not replaced, and Python that the model runs beside its tensors does not run.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        self._bound: list[_BoundStep] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values()) if kwargs else args
        if not torch.is_grad_enabled():
            names = tuple(kwargs)
            for bound in self._bound:
                if bound.is_same(given, names):
                    return bound.replayed()
            for bound in self._bound:
                if bound.is_alike(given, names):
                    return bound.called(given)
        return self._first(args, kwargs, given)

    @property
    def kinds(self) -> int:
        """The number of kinds of calls that go to their graph at once."""
        return len(self._bound)

    def _first(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: tuple[Any, ...]
    ) -> Any:
        if torch.is_grad_enabled() or WATCH.runs is not None:
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
    given: tuple[Any, ...]
    kinds: tuple[Any, ...]
    inputs: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]
    """Places of inputs, and of the arguments that they are."""
    result: Callable[[Sequence[Any], Sequence[Any]], Any]
    """From the graph's outputs and the arguments to the model's result."""
    pointers: tuple[int, ...] = ()
    again: Callable[[], Sequence[Any]] | None = None
    """Replays the graph with the arguments `given`, at the addresses `pointers`."""

    def is_same(self, given: Sequence[Any], names: tuple[str, ...]) -> bool:
        """Whether these are the very arguments of the last call, where they were."""
        if self.again is None or len(given) != len(self.given) or names != self.names:
            return False
        for own, other in zip(self.given, given, strict=True):
            if own is not other:
                return False
        return self.pointers == _pointers(given)

    def replayed(self) -> Any:
        assert self.again is not None
        return self.result(self.again(), self.given)

    def is_alike(self, given: Sequence[Any], names: tuple[str, ...]) -> bool:
        """Whether the graph was captured for such arguments."""
        return names == self.names and self.kinds == tuple(map(_kind, given))

    def called(self, given: tuple[Any, ...]) -> Any:
        inputs = list(self.inputs)
        for place, argument in self.places:
            inputs[place] = given[argument]
        kept = tuple(inputs)
        outputs = self.run(inputs)
        again = getattr(getattr(self.run, "__self__", None), "replay_at", None)
        self.given, self.pointers = given, _pointers(given)
        self.again = None if again is None else again(kept)
        return self.result(outputs, given)


def _pointers(given: Sequence[Any]) -> tuple[int, ...]:
    return tuple([x.data_ptr() for x in given if isinstance(x, torch.Tensor)])


def _kind(value: Any) -> Any:
    """What the graph may rely on of an argument: layout and device of a tensor, plain values; of
    anything else that it is the very object."""
    if isinstance(value, torch.Tensor):
        return kind_of(value), type(value), value.stride(), value.device
    return value if isinstance(value, _PLAIN) else id(value)


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
    places = tuple((i, by_id[id(x)]) for i, x in enumerate(ran.inputs) if id(x) in by_id)
    inside = {argument for _, argument in places}
    tensors = {i for i, value in enumerate(given) if isinstance(value, torch.Tensor)}
    if not tensors <= inside:  # perhaps the graph has a view of it, or nothing
        return None
    return _BoundStep(ran.run, names, given, tuple(map(_kind, given)), ran.inputs, places, build)


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
