"""A graph of ATen operations, run node by node: in its own dtypes, or all of it in a wider one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import getitem
from typing import Any

import torch

from ...planner.errors import PlanError
from ...planner.graph.graph import INPUT, Arg, Graph, Node, Ref, Symbol, refs
from ...planner.graph.ops import IndexedWrite, Lookup, bound, overload, row
from .float64_attention import wide_attention
from .float64_convolution import wide_convolution

_ITEM = "operator.getitem"
"""One of several results of an operation."""

# A value that was widened may have other strides than the captured one: no view is then sure.
_SAME_VALUE = {"aten.view.default": "aten.reshape.default"}

_COPYING = {"aten.index_put_.default": "aten.index_put.default"}
"""What gives a new tensor in place of writing into one: the same inputs are given again."""

_BITCAST = "fusionplan.bitcast.default"


class Outside(IndexError):
    """An index that a group computes lies outside of what it is an index of."""


class Evaluator:
    """`evaluator(*inputs)` gives the outputs of the graph as a list. `wide`: a dtype that
    every float has, and to which every cast to a float goes; integers and booleans stay. within:
    look at every index first, and raise Outside, where a device would end the process. in_place:
    inputs that the graph writes are written, as when it runs; else their results are copies.

    Raises PlanError for a graph with something that is no operator, such as a constant of the
    user's model: a group reads those as inputs.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        *,
        wide: torch.dtype | None = None,
        within: bool = False,
        in_place: bool = False,
    ) -> None:
        self._in_place = in_place
        self.graph, self.device, self.wide = graph, device, wide
        kinds = (Lookup, IndexedWrite)
        self._lookups = {n.id: n for n in graph.nodes if within and isinstance(row(n), kinds)}
        self._steps = [
            (n.id, *self._step(n.op, n.args, n.kwargs)) for n in graph.nodes if n.op != INPUT
        ]
        self._wanted = self._read_by_outputs()
        self._wanted_steps = [step for step in self._steps if step[0] in self._wanted]
        self._dead = self._last_reads()

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = self._values(inputs, self._wanted_steps, self._dead)
        return [values[o] for o in self.graph.outputs if o is not None]

    def values(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The value of every node."""
        return self._values(inputs, self._steps, {})

    def _values(
        self,
        inputs: Sequence[torch.Tensor],
        steps: Sequence[tuple[int, Callable[..., Any], list[Any], dict[str, Any]]],
        dead: Mapping[int, Sequence[int]],
    ) -> list[Any]:
        """dead: values that are not read after a node."""
        values: list[Any] = [None] * len(self.graph.nodes)
        for node, value in zip(self.graph.inputs, inputs, strict=True):
            is_wide = self.wide and value.is_floating_point()
            values[node] = value.to(self.wide) if is_wide else value
        with torch.no_grad(), _default_dtype(self.wide):
            for node, function, args, kwargs in steps:
                if node in self._lookups:
                    _look(self._lookups[node], values)
                values[node] = self.apply(
                    node,
                    function,
                    [_fill(a, values) for a in args],
                    {k: _fill(v, values) for k, v in kwargs.items()},
                )
                for last in dead.get(node, ()):
                    values[last] = None
        return values

    def apply(
        self, node: int, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """The result of one node's operation."""
        return function(*args, **named)

    def _step(
        self, op: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]
    ) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        op = _SAME_VALUE.get(op, op)
        function = _overload(op if self._in_place else _COPYING.get(op, op))
        if self.wide:
            function = wide_attention(op) or wide_convolution(op) or function
        if self.wide and op == _BITCAST:
            return partial(_wide_bitcast, self.wide), [args[0], _dtype(args[1])], {}
        return (
            function,
            [self._constant(a) for a in args],
            {k: self._constant(v) for k, v in kwargs},
        )

    def _constant(self, value: Arg) -> Any:
        if isinstance(value, tuple):
            return [self._constant(v) for v in value]
        if not isinstance(value, Symbol):
            return value
        if value.kind == "dtype":
            dtype = getattr(torch, value.name)
            return self.wide if self.wide and dtype.is_floating_point else dtype
        if value.kind == "device":
            return self.device if value.name == "graph" else torch.device(value.name)
        if value.kind in ("layout", "memory_format"):
            return getattr(torch, value.name)
        raise PlanError(f"an operation with a {value.kind} cannot be evaluated by itself")

    def _read_by_outputs(self) -> set[int]:
        """What the outputs are computed from, and what draws random numbers or writes: it is done
        in the order of the graph, for others to find what they would."""
        wanted = {o for o in self.graph.outputs if o is not None}
        wanted |= {node for node, function, *_ in self._steps if has_effects(function)}
        for node in reversed(self.graph.nodes):
            if node.id in wanted:
                wanted.update(node.inputs)
        return wanted

    def _last_reads(self) -> dict[int, list[int]]:
        last: dict[int, int] = {}
        for node in (n for n in self.graph.nodes if n.id in self._wanted):
            last.update(dict.fromkeys(node.inputs, node.id))
        dead: dict[int, list[int]] = {n.id: [] for n in self.graph.nodes}
        for source, reader in last.items():
            if source not in self.graph.outputs:
                dead[reader].append(source)
        return dead


def evaluate(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    device: torch.device,
    *,
    wide: torch.dtype | None = None,
    within: bool = False,
) -> list[torch.Tensor]:
    """The outputs of the graph for these inputs (see `Evaluator`), with random numbers from the
    same seed each time."""
    with seeded(device):
        return Evaluator(graph, device, wide=wide, within=within)(*inputs)


@contextmanager
def seeded(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Within it the random numbers of torch begin at a seed; afterwards the caller's go on."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _look(node: Node, values: Sequence[Any]) -> None:
    """Raises Outside where an index is outside of what it is an index of."""
    kind = row(node)
    assert isinstance(kind, (Lookup, IndexedWrite))
    named = bound(node)
    (source,), index = refs(named[kind.source]), named[kind.index]
    several, place = isinstance(index, tuple), 0
    for one in index if isinstance(index, tuple) else (index,):
        found = next((values[r] for r in refs(one)), None)
        if found is None or found.dtype is torch.bool:
            place += 1 if found is None else found.ndim  # A mask stands for all its dimensions.
            continue
        size = values[source].shape[place if several else named.get("dim", 0)]
        place += 1
        if found.numel():
            least, most = int(found.min()), int(found.max())
            if least < (-size if kind.wraps else 0) or most >= size:
                outside = least if least < 0 else most
                raise Outside(f"{node.name} wants element {outside} of {size}")


def has_effects(function: Callable[..., Any]) -> bool:
    """Whether an operation draws random numbers or writes to its arguments."""
    tags, schema = getattr(function, "tags", ()), getattr(function, "_schema", None)
    writes = schema is not None and schema.is_mutable
    return writes or torch.Tag.nondeterministic_seeded in tags


def _dtype(value: Arg) -> torch.dtype:
    assert isinstance(value, Symbol)
    found: torch.dtype = getattr(torch, value.name)
    return found


def _wide_bitcast(wide: torch.dtype, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bits are those of the narrow types, whatever the value was computed in."""
    narrow = x.float() if x.dtype is torch.float64 and dtype.itemsize == 4 else x
    result: torch.Tensor = overload(_BITCAST)(narrow, dtype)
    return result.to(wide) if dtype.is_floating_point else result


def _overload(name: str) -> Callable[..., Any]:
    if name == _ITEM:
        return getitem
    try:
        found: Callable[..., Any] = overload(name)
    except (ValueError, AttributeError) as error:
        raise PlanError(f"{name} is no operator that can be evaluated by itself") from error
    return found


def _fill(value: Any, values: Sequence[Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.node]
    if isinstance(value, list):
        return [_fill(v, values) for v in value]
    return value


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """What an integer becomes where it meets a true division."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
