"""The Python text of an executor's call: one straight line of allocations, launches and calls.

Local variables and literal launches make a call cost about what the launches themselves cost;
`del` after a value's last use keeps no memory longer than eager would.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from ...capture.capture import Captured
from ...capture.writes_in_place import Update
from ...codegen.source import KernelSource, Program
from ...errors import PlanError
from ...graph.graph import INPUT, Arg, Graph, Ref, Symbol, TensorType, refs
from ...graph.ops import View, overload, row
from .renewed import renewed
from .units import ScheduledUnit

_MOST_LINES = 40
"""Lines of a call up to which it is written a second time, for inputs that come one by one. In a
longer one the launches take far longer than the list of the inputs."""

_OF_A_LIST = (", = args", "args.clear()")
"""The ends of the lines that take the inputs from their list."""


@dataclass(frozen=True, slots=True)
class EmittedKernels:
    """A group's program with the names of its launchers, "k0" (aligned) beside "k0u"."""

    program: Program
    launchers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """Calls in place of a group, and what copies their result into the group's strides."""

    calls: Graph
    copy: EmittedKernels


@dataclass(frozen=True, slots=True)
class EmittedAhead:
    """Kernels of several groups, before all others. given: what they give besides the unit's
    outputs, its variable and its type."""

    kernels: EmittedKernels
    given: tuple[tuple[str, TensorType], ...]


@dataclass(frozen=True, slots=True)
class EmittedCalls:
    """Calls in place of a group. reads: the inputs of `calls`, by their place among the unit's and
    behind them `given`, variables that kernels ahead have given."""

    calls: Graph
    reads: tuple[int, ...]
    given: tuple[str, ...]


EmittedGroup: TypeAlias = EmittedKernels | Graph | Ending | EmittedAhead | EmittedCalls | str
"""A group is kernels to launch, a graph of calls to make, that and kernels behind it or before all
others, or the name of a callable."""


@dataclass(frozen=True, slots=True)
class How:
    """pointers: kernels take addresses (else tensors). cuda: memory comes from the CUDA
    allocator's fast path. guard: strides of the inputs may differ from the captured ones. asks: it
    is the text of the first call, which asks whether values are as traced (see `as_traced`)."""

    pointers: bool
    cuda: bool
    guard: bool
    asks: bool = False


@dataclass(slots=True)
class Emitter:
    """Builds the text; `names` are the objects that it mentions."""

    captured: Captured
    how: How
    names: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    kernels: int = 0
    doubtful: set[int] = field(default_factory=set)
    """What a group reads that ATen or another library gives, or that comes from another graph; and
    what is made of it."""
    one_by_one: str = ""
    """The text once more, for inputs that come one by one and that the caller holds; it switches
    gradients off where they are on. Empty where the call is long, or asks what its values are."""
    _defined: set[int] = field(default_factory=set)
    _number: dict[fx.Node, int] = field(init=False)
    _strided: set[int] = field(default_factory=set)
    _renewed: dict[int, int] = field(default_factory=dict)
    """By value, the input that it is written into."""
    _in_place: set[str] = field(default_factory=set)
    """The variables of results that are inputs, written in place."""

    def __post_init__(self) -> None:
        self._number = {node: i for i, node in enumerate(self.captured.fx_nodes)}

    def call(
        self,
        units: Sequence[ScheduledUnit],
        groups: Mapping[int, EmittedGroup],
        updates: Sequence[Update] = (),
    ) -> str:
        """The module text. updates: the last outputs, which go into inputs and not to the
        caller."""
        outputs, inputs = self.captured.graph.outputs, self.captured.graph.inputs
        copied = {inputs[u.place]: self._number[u.value] for u in updates if u.is_copied}
        results = outputs[: len(outputs) - len(updates)]
        programs = {i: how.program for i, how in groups.items() if isinstance(how, EmittedKernels)}
        # Else an input may be a copy by then; and ATen writes into memory of its own.
        if not self.how.guard and not self.how.asks:
            graph = self.captured.graph
            self._renewed = renewed(graph, units, programs, copied, results)
        # A group counts on the captured strides of what it reads.
        self._strided = {i for u in units if u.group is not None for i in u.inputs}
        dead = self._dead_after(units, copied)
        self._inputs(dead[-1])
        if self.how.pointers and any(
            isinstance(how, (EmittedKernels, Ending, EmittedAhead)) for how in groups.values()
        ):
            self.lines.append("stream = current_stream(device_index)")
        for position, unit in enumerate(units):
            if unit.group is None:
                self._aten(unit.outputs[0])
            elif self.doubtful.isdisjoint(unit.inputs):
                self._group(unit, groups[unit.group])
            else:
                self._asked(unit, groups[unit.group])
            self._delete(dead[position])
        self._update({i: v for i, v in copied.items() if self._renewed.get(v) != i})
        apart = self._views_of_results(units, results)
        values = ", ".join(
            "None" if o is None else f"v{o}{'.detach()' * (o in apart)}" for o in results
        )
        if self.how.asks:
            self.lines = ["odd = {}", *self.lines, "ended(odd)"]
        body = "\n".join(f"    {line}" for line in [*self.lines, f"return [{values}]"])
        if self.how.asks:
            return f"def first(args):\n    count[0] += 1\n{body}\n"
        before = "    if is_profiled():\n        return profiled(args)\n"
        if self.doubtful:
            before += "    if unseen:\n        return first(args)\n"
        elif len(self.lines) <= _MOST_LINES:
            self.one_by_one = self._one_by_one(values)
        return f"def call(args):\n{before}    count[0] += 1\n{body}\n"

    def _one_by_one(self, values: str) -> str:
        taken = ", ".join(f"v{i}" for i in self.captured.graph.inputs)
        lines = [
            f"def one_by_one({taken}):",
            "if is_profiled() or is_grad_enabled():",
            f"    return without_gradients([{taken}])",
            "count[0] += 1",
            *(line for line in self.lines if not line.endswith(_OF_A_LIST)),
            f"return [{values}]",
        ]
        return "\n    ".join(lines) + "\n"

    def _views_of_results(
        self, units: Sequence[ScheduledUnit], results: Sequence[int | None]
    ) -> set[int]:
        """Results that are views of another one, as `y.detach()[0]` beside `y`. Handed out as they
        are, they would ask for gradients as soon as that one does."""
        nodes = self.captured.graph.nodes
        views = {u.outputs[0] for u in units if u.group is None}
        found = set()
        for result in results:
            at = result
            while at in views and isinstance(row(nodes[at]), View):
                at = next(iter(refs(nodes[at].args)), None)
                if at in results and result is not None and at != result:
                    found.add(result)
        return found

    def _group(self, unit: ScheduledUnit, how: EmittedGroup) -> None:
        if isinstance(how, str):
            self._callable(unit, how)
        elif isinstance(how, Graph):
            self._calls(unit, how)
        elif isinstance(how, Ending):
            self._calls(unit, how.calls, how.copy)
        elif isinstance(how, EmittedCalls):
            values = [*(f"v{i}" for i in unit.inputs), *how.given]
            self._calls(unit, how.calls, reads=[values[i] for i in how.reads])
            self.lines.append(f"del {', '.join(how.given)}")
        elif isinstance(how, EmittedAhead):
            self._launch([f"v{i}" for i in unit.inputs], unit.outputs, how.kernels, how.given)
        else:
            self._launch([f"v{i}" for i in unit.inputs], unit.outputs, how)

    def _asked(self, unit: ScheduledUnit, how: EmittedGroup) -> None:
        """A group that reads what may not be as traced; in the first call by ATen, if so."""
        self.doubtful.update(unit.outputs)
        if not self.how.asks:
            self._group(unit, how)
            return
        results = "".join(f"{'w' if o in self._defined else 'v'}{o}, " for o in unit.outputs)
        before, self.lines = self.lines, []
        self._group(unit, how)
        as_planned, self.lines = self.lines, before
        values = "".join(f"v{i}, " for i in unit.inputs)
        self.names[f"u{unit.group}"] = unit
        self.lines += [
            f"if odd and not odd.keys().isdisjoint(u{unit.group}.inputs):",
            f"    {results}= by_aten(u{unit.group}, [{values}], odd)",
            "else:",
            *(f"    {line}" for line in as_planned),
        ]

    def _update(self, copied: Mapping[int, int]) -> None:
        """One launch copies all the values of a type."""
        nodes = self.captured.graph.nodes
        by_type: dict[str, list[int]] = {}
        for i in copied:
            tensor = nodes[i].type
            by_type.setdefault("" if tensor is None else tensor.dtype, []).append(i)
        self.names["copy_all"] = torch._foreach_copy_
        for some in by_type.values():
            targets = "".join(f"v{i}, " for i in some)
            values = "".join(f"v{copied[i]}, " for i in some)
            self.lines.append(f"copy_all([{targets}], [{values}])")

    def _dead_after(
        self, units: Sequence[ScheduledUnit], kept: Collection[int]
    ) -> dict[int, list[int]]:
        """By position of a unit, the values that it is the last to read (-1: inputs that nobody
        reads). Outputs of the graph, and what is kept, are never freed."""
        last: dict[int, int] = dict.fromkeys(self.captured.graph.inputs, -1)
        for position, unit in enumerate(units):
            last.update(dict.fromkeys((*unit.outputs, *unit.inputs), position))
        dead: dict[int, list[int]] = {i: [] for i in range(-1, len(units))}
        for node in sorted(last.keys() - {*self.captured.graph.outputs, *kept}):
            dead[last[node]].append(node)
        return dead

    def _inputs(self, unread: Sequence[int]) -> None:
        inputs = self.captured.graph.inputs
        if inputs:
            self.lines.append(f"{', '.join(f'v{i}' for i in inputs)}, = args")
        self.lines.append("args.clear()")
        self._defined.update(inputs)
        self._delete(unread)
        if self.how.guard:
            for i in inputs:
                self._match(i)

    def _delete(self, values: Sequence[int]) -> None:
        # A constant of the graph is no local variable, and stays.
        dead = [i for i in values if i in self._defined]
        if dead:
            self.lines.append(f"del {', '.join(f'v{i}' for i in dead)}")
            self._defined.difference_update(dead)

    def _match(self, node: int) -> None:
        """Kernels have the captured strides as literals; a value that came otherwise is copied."""
        tensor = self.captured.graph.nodes[node].type
        if node not in self._strided or tensor is None:
            return
        self.doubtful.add(node)
        if self.how.asks:
            self.lines.append(f"v{node} = noted({node}, v{node}, odd)")
        else:
            shape, stride = tensor.shape, tensor.stride
            self.lines.append(
                f"if v{node}.stride() != {stride}: v{node} = match(v{node}, {shape}, {stride})"
            )

    def _aten(self, node: int) -> None:
        source = self.captured.fx_nodes[node]
        if source.op == "get_attr":
            self.names[f"v{node}"] = _attribute(self.captured.gm, str(source.target))
            return
        self.names[f"f{node}"] = source.target
        arguments = [self._argument(a) for a in source.args]
        arguments += [f"{k}={self._argument(v)}" for k, v in source.kwargs.items()]
        self.lines.append(f"v{node} = f{node}({', '.join(arguments)})  # {source.target}")
        self._defined.add(node)
        self._match(node)

    def _argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return f"v{self._number[value]}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        if isinstance(value, (list, tuple)):
            inner = "".join(f"{self._argument(v)}, " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, dict):
            return f"{{{''.join(f'{k!r}: {self._argument(v)}, ' for k, v in value.items())}}}"
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def _callable(self, unit: ScheduledUnit, name: str) -> None:
        results = ", ".join(self._result(o) for o in unit.outputs)
        inputs = ", ".join(f"v{i}" for i in unit.inputs)
        self.lines.append(f"{results}, = {name}([{inputs}])")
        for node in unit.outputs:
            self._match(node)

    def _calls(
        self,
        unit: ScheduledUnit,
        graph: Graph,
        copy: EmittedKernels | None = None,
        reads: Sequence[str] = (),
    ) -> None:
        """The calls of a graph that stands for the group. Which strides they give is the library's
        choice: where they are not the captured ones the result is copied. copy: by these kernels,
        where the strides are known to be others. reads: the graph's inputs where they are not the
        unit's."""
        reads = reads or [f"v{i}" for i in unit.inputs]
        names = dict(zip(graph.inputs, reads, strict=True))
        made = [n for n in graph.nodes if n.op != INPUT]
        for call in made:
            names[call.id] = f"g{unit.group}_{call.id}"
            function = f"f_{call.op.replace('.', '_')}"
            self.names[function] = overload(call.op)
            arguments = [self._value(a, names) for a in call.args]
            arguments += [f"{k}={self._value(v, names)}" for k, v in call.kwargs]
            self.lines.append(f"{names[call.id]} = {function}({', '.join(arguments)})")
        for node, source in zip(unit.outputs, graph.outputs, strict=True):
            tensor = self.captured.graph.nodes[node].type
            if source is None or tensor is None:
                raise PlanError("a group gives a value that is no plain tensor")
            if copy is not None:
                self._launch([names[source]], [node], copy)
                continue
            name = self._result(node)
            if node in self._strided:
                self.doubtful.add(node)
            if self.how.asks and node in self._strided:
                self.lines.append(f"{name} = noted({node}, {names[source]}, odd)")
                continue
            shape, stride = tensor.shape, tensor.stride
            self.lines.append(f"{name} = match({names[source]}, {shape}, {stride})")
        if made:
            self.lines.append(f"del {', '.join(names[n.id] for n in made)}")

    def _value(self, value: Arg, names: Mapping[int, str]) -> str:
        """An argument of a graph's node as text."""
        if isinstance(value, Ref):
            return names[value.node]
        if isinstance(value, Symbol):
            return self._argument(getattr(torch, value.name))
        if isinstance(value, tuple):
            return f"[{''.join(f'{self._value(v, names)}, ' for v in value)}]"
        return self._argument(value)

    def _result(self, node: int) -> str:
        """The variable for an output; one that an earlier group gave already goes nowhere."""
        if node in self._defined:
            return f"w{node}"
        self._defined.add(node)
        return f"v{node}"

    def _launch(
        self,
        inputs: list[str],
        outputs: Sequence[int],
        how: EmittedKernels,
        given: Sequence[tuple[str, TensorType]] = (),
    ) -> None:
        """given: outputs behind those, their variables and types."""
        nodes = self.captured.graph.nodes
        variables: dict[str, list[str]] = {"in": inputs, "out": [], "tmp": []}
        written = dict(how.program.written)
        for number, node in enumerate(outputs):
            name = self._result(node)
            target = f"v{self._renewed[node]}" if node in self._renewed else ""
            if number in written or target:
                self.lines.append(f"{name} = {target or inputs[written[number]]}")
                self._in_place.add(name)
            else:
                self._allocate(name, nodes[node].type)
            variables["out"].append(name)
        for name, tensor in given:
            variables["out"].append(name)
            self._allocate(name, tensor)
        for i, tensor in enumerate(how.program.temporaries):
            variables["tmp"].append(f"t{i}")
            self._allocate(f"t{i}", tensor)
        for name, kernel in zip(how.launchers, how.program.kernels, strict=True):
            self._kernel(name, kernel, variables)
        temporary = [*variables["tmp"], *(v for v in variables["out"] if v.startswith("w"))]
        if temporary:
            self.lines.append(f"del {', '.join(temporary)}")

    def _kernel(self, name: str, kernel: KernelSource, variables: dict[str, list[str]]) -> None:
        if kernel.grid == 0:
            return
        self.kernels += 1
        tensors = [variables[b.kind][b.index] for b in kernel.buffers]
        if not self.how.pointers:
            self.lines.append(f"{name}(0, {', '.join(tensors)})")
            return
        # A kernel may take one tensor both by pointer and by descriptor.
        pointers = {t: f"p{i}" for i, t in enumerate(dict.fromkeys(tensors))}
        self.lines += [f"{p} = {t}.data_ptr()" for t, p in pointers.items()]
        # What the allocator gave is aligned; what came from elsewhere may not be.
        both = zip(tensors, kernel.buffers, strict=True)
        read = [t for t, b in both if b.kind == "in" or t in self._in_place]
        doubtful = [pointers[t] for t in dict.fromkeys(read)] or ["0"]
        given = ", ".join(["stream", *(pointers[t] for t in tensors)])
        self.lines.append(f"({name}u if ({' | '.join(doubtful)}) & 15 else {name})({given})")

    def _allocate(self, name: str, tensor: TensorType | None) -> None:
        if tensor is None:
            raise PlanError("a group gives a value that is no plain tensor")
        dtype = f"dtype_{tensor.dtype}"
        self.names[dtype] = getattr(torch, tensor.dtype)
        size = f"{tensor.shape}, {tensor.stride}"
        if self.how.cuda:
            self.lines.append(f"{name} = empty({size}, {dtype})")
        else:
            self.lines.append(f"{name} = empty({size}, dtype={dtype}, device=device)")


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value
