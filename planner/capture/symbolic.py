"""A graph with symbolic sizes, tidied once, and the static graph that it is at any sizes.

To trace a graph again takes milliseconds for every node; to evaluate the expressions of its sizes
takes much less. In the graph for some sizes the numbers that are expressions vary (see `sizes`).
What an expression comes to at the probe sizes tells it from the others; those sizes are the same
in every process, so that stored plans are found by them: each symbol is a multiple of a smooth
number, for expressions that divide, by a prime of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import _lazy_graph_module

from ..errors import PlanError
from ..graph.graph import INPUT, Arg, Graph, Numerics, Ref
from ..graph.sizes import ALIGNED, Amount, Size, bases, factored, size
from ..graph.varying import mapped
from .capture import Captured, device_of, hint, is_symbolic, node_of, outputs_of, tidied

log = logging.getLogger(__name__)

_SMOOTH = 240
_PRIMES = ((7, 13, 19, 29, 37, 43, 53, 61), (11, 17, 23, 31, 41, 47, 59, 67))
"""Of each set of probe sizes, by the number of the symbol."""

_NAMED: dict[Any, Any] = {torch.ops.aten.true_divide.Tensor: torch.ops.aten.div.Tensor}
"""What a static capture calls an operation."""

# Private to torch: a module that makes its code when it is first run. Mostly it never is.
_GraphModule: Any = getattr(_lazy_graph_module, "_LazyGraphModule", fx.GraphModule)


def symbolic(gm: fx.GraphModule, numerics: Numerics = "fast") -> Symbolic | None:
    """The graph as one that `at` evaluates; None where that cannot be, and tracing it again for
    each set of sizes (`capture.specialise`) is what is left."""
    try:
        return Symbolic(gm, numerics)
    except PlanError as error:
        log.debug("a graph with symbolic sizes is traced again for each: %s", error)
        return None


class Symbolic:
    """A functional FX graph with symbolic sizes: `at` gives the static graph for some sizes.

    tensors: which of its inputs are tensors: those are the static graph's. Raises PlanError where
    the inputs do not tell all its sizes.
    """

    def __init__(self, gm: fx.GraphModule, numerics: Numerics = "fast") -> None:
        self._numerics = numerics
        inputs = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        self.tensors = tuple(i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor))
        self._places = _places(inputs)
        self._read = tuple(self._places.values())
        self._slots: dict[Any, int] = {}
        """Of each expression its place among the numbers, by which the template has it."""
        copy, self._outputs = self._without_numbers(gm)
        self._gm = tidied(copy, numerics)
        self._nodes = [n for n in self._gm.graph.nodes if n.op != "output" and not _is_number(n)]
        self._device = device_of(self._nodes)
        self._template = self._captured()
        self._refuse()
        self._probes = list(zip(*map(self._at_probe, _PRIMES), strict=True))
        self._factored = self._factors()

    def sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Those sizes of a call's inputs (tensors, fake or real, and numbers) that tell all."""
        found = [inputs[i] if d < 0 else inputs[i].size(d) for i, d in self._read]
        if {*map(type, found)} == {int}:
            return tuple(found)
        return tuple(map(hint, found))

    def at(self, sizes: Sequence[int]) -> tuple[Captured, tuple[tuple[int, Any], ...]]:
        """The static graph of the tensors at these sizes, and those outputs of the symbolic graph
        that are numbers, by position."""
        values = self._evaluated(sizes)
        numbers = [self._number(slot, values) for slot in range(len(values))]
        graph = mapped(self._template, lambda slot: numbers[slot])
        gm, fx_nodes = self._static(graph, values)
        outputs = tuple((i, values[slot]) for i, slot in self._outputs)
        return Captured(gm, graph, self._device, fx_nodes), outputs

    # --- once ---

    def _without_numbers(
        self, gm: fx.GraphModule
    ) -> tuple[fx.GraphModule, tuple[tuple[int, int], ...]]:
        """A copy with one node for each expression that returns no numbers; and which outputs
        those are."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        first: dict[int, fx.Node] = {}
        for node in list(graph.nodes):
            if _is_number(node):
                same = first.setdefault(self._slot(node.meta["val"]), node)
                if same is not node:
                    node.replace_all_uses_with(same)
            elif _is_check(node):
                graph.erase_node(node)
            else:
                node.target = _NAMED.get(node.target, node.target)
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        kept, numbers = [], []
        for position, value in enumerate(outputs_of(graph)):
            if value is None or (isinstance(value, fx.Node) and not _is_number(value)):
                kept.append(value)
            else:
                number = value.meta["val"] if isinstance(value, fx.Node) else value
                numbers.append((position, self._slot(number)))
        output.args = (tuple(kept),)
        return fx.GraphModule(gm, graph), tuple(numbers)

    def _slot(self, number: Any) -> int:
        expression = number.node.expr if is_symbolic(number) else (type(number), number)
        return self._slots.setdefault(expression, len(self._slots))

    def _captured(self) -> Graph:
        """The graph with slots in place of varying numbers."""
        refs: dict[fx.Node, Arg] = {}
        for node in self._gm.graph.nodes:
            if _is_number(node):
                refs[node] = Size(self._slot(node.meta["val"]))
        refs |= {node: Ref(i) for i, node in enumerate(self._nodes)}

        def read(number: Any) -> Any:
            return Size(self._slot(number)) if is_symbolic(number) else int(number)

        nodes = tuple(
            node_of(self._gm, i, node, refs, self._device, read)
            for i, node in enumerate(self._nodes)
        )
        number = {node: i for i, node in enumerate(self._nodes)}
        outputs = outputs_of(self._gm.graph)
        chosen = tuple(None if o is None else number[o] for o in outputs)
        return Graph(nodes, chosen, self._numerics)

    def _refuse(self) -> None:
        if len(self._places) > len(_PRIMES[0]):
            raise PlanError(f"the graph has {len(self._places)} sizes that vary")
        for expression in self._slots:
            if isinstance(expression, sympy.Basic):
                unknown = expression.free_symbols - self._places.keys()
                if unknown:
                    raise PlanError(f"the graph has sizes that depend on its data: {unknown}")
        for node in self._nodes:
            if node.op == "get_attr" and not isinstance(node.meta.get("val"), torch.Tensor):
                raise PlanError(f"the graph holds another one, {node.target}")

    def _at_probe(self, primes: Sequence[int]) -> list[Any]:
        return self._evaluated([_SMOOTH * p for p in primes[: len(self._places)]])

    def _factors(self) -> list[tuple[int, tuple[int, ...]] | None]:
        """Of each number that is a multiple of a product of sizes of the inputs: by what, and the
        slots of those."""
        types = [n.type for n in self._template.nodes if n.op == INPUT and n.type is not None]
        slots = {int(n) for t in types for n in t.shape if isinstance(n, Size)}
        base = {self._probes[s]: s for s in slots}
        known = bases(Size(0, probes) for probes in base)
        found: list[tuple[int, tuple[int, ...]] | None] = []
        for probes in self._probes:
            product = factored(probes, known) if type(probes[0]) is int else None
            if product is None:
                found.append(None)
            else:
                found.append((product[0], tuple(base[s.probes] for s in product[1])))
        return found

    # --- for each set of sizes ---

    def _evaluated(self, sizes: Sequence[int]) -> list[Any]:
        values = dict(zip(self._places, map(sympy.Integer, sizes), strict=True))
        return [
            _plain(e.xreplace(values)) if isinstance(e, sympy.Basic) else e[1] for e in self._slots
        ]

    def _number(self, slot: int, values: Sequence[Any]) -> Any:
        value, probes = values[slot], self._probes[slot]
        if isinstance(value, bool) or all(p == value for p in probes):
            return value
        if isinstance(value, float):
            return Amount(value, probes)
        divisor = 1
        if (known := self._factored[slot]) is not None:
            scale, factors = known
            divisor = scale * prod(ALIGNED for f in factors if values[f] % ALIGNED == 0)
        return size(value, probes, gcd(divisor, value, ALIGNED))

    def _static(
        self, graph: Graph, values: Sequence[Any]
    ) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
        """The FX graph at these sizes, node by node that of the planner."""
        made = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}

        def argument(value: Any) -> Any:
            if isinstance(value, fx.Node):
                known = copies.get(value)
                return values[self._slot(value.meta["val"])] if known is None else known
            return values[self._slot(value)] if is_symbolic(value) else value

        mode = FakeTensorMode(allow_non_fake_inputs=True)
        for source in self._nodes:
            args = fx.node.map_aggregate(source.args, argument)
            kwargs = fx.node.map_aggregate(source.kwargs, argument)
            node = made.create_node(source.op, source.target, args, kwargs, source.name)
            node.meta = dict(source.meta)
            node.meta["val"] = self._fake(source.meta.get("val"), values, mode)
            copies[source] = node
        outputs = (None if o is None else copies[o] for o in outputs_of(self._gm.graph))
        made.output(tuple(outputs))
        return _GraphModule(self._gm, made), tuple(copies.values())

    def _fake(self, value: Any, values: Sequence[Any], mode: FakeTensorMode) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self._fake(v, values, mode) for v in value)
        if not isinstance(value, torch.Tensor):
            return values[self._slot(value)] if is_symbolic(value) else value
        shape, stride = (
            [values[self._slot(n)] if is_symbolic(n) else n for n in numbers]
            for numbers in (value.shape, value.stride())
        )
        # Straight to the constructor: through the mode it costs ten times as much.
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
        return FakeTensor(mode, made, value.device)


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return is_symbolic(value) or isinstance(value, (bool, int, float))


def _is_check(node: fx.Node) -> bool:
    """Whether the node only looks at numbers, which are known to be right."""
    inputs = node.all_input_nodes
    return (
        node.op == "call_function"
        and not node.users
        and all(map(_is_number, inputs))
        and bool(inputs)
    )


def _places(inputs: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """Where each symbol stands among the inputs: (input, dimension), or (input, -1): it is the
    input itself. Of what is in expressions only, nothing."""
    places: dict[Any, tuple[int, int]] = {}
    for i, value in enumerate(inputs):
        tensor = isinstance(value, torch.Tensor)
        for d, number in enumerate(value.shape) if tensor else [(-1, value)]:
            if isinstance(number, torch.SymInt) and number.node.expr.is_Symbol:
                places.setdefault(number.node.expr, (i, d))
    return places


def _plain(value: Any) -> bool | int | float:
    if value is sympy.true or value is sympy.false:
        return bool(value)
    return int(value) if value.is_Integer else float(value)
