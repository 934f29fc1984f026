"""The immutable SSA graph of ATen operations that every later stage reads.

A `Graph` is data only: it prints, hashes, compares and goes to JSON and back. The device is not
part of it (plans are keyed by device separately), so the same model captured on another device of
the same kind gives the same graph and the same key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from ..memo import by_identity
from .dtypes import itemsize
from .sizes import Amount, Size, plain

INPUT = "input"
ITEM = "operator.getitem"
"""The call that takes one of the several results of another node."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and stride in elements, dtype by its torch name (`"bfloat16"`)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements: an expanded (stride 0) dimension counts once."""
        found = itemsize(self.dtype)
        for n, s in zip(self.shape, self.stride, strict=True):
            if s != 0 or n == 0:
                found *= int(n)
        return found

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier node."""

    node: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A torch constant that JSON has no word for: `Symbol("dtype", "float32")`, a layout, ..."""

    kind: str
    name: str


Numerics: TypeAlias = Literal["fast", "eager"]
"""Which roundings a generated kernel makes (see docs/numerics.md)."""

Arg: TypeAlias = "Ref | Symbol | bool | int | float | str | tuple[Arg, ...] | None"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `op` is an ATen overload (`"aten.add.Tensor"`) or `"input"`, or, for what
    is not an operator, the qualified name of what is called. `type` is None where the value is
    no single tensor (several outputs, a number); such a node is never fused."""

    id: int
    name: str
    op: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    type: TensorType | None = None
    inputs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Ids of the nodes read, in order of first appearance."""

    def __post_init__(self) -> None:
        found: dict[int, None] = {}
        for value in (*self.args, *(v for _, v in self.kwargs)):
            found.update(dict.fromkeys(refs(value)))
        object.__setattr__(self, "inputs", tuple(found))


def refs(value: Arg) -> Iterator[int]:
    """The nodes that an argument refers to."""
    if isinstance(value, Ref):
        yield value.node
    elif isinstance(value, tuple):
        for item in value:
            yield from refs(item)


def map_refs(value: Arg, renumber: Mapping[int, int]) -> Arg:
    """The argument with every reference renumbered."""
    if isinstance(value, Ref):
        return Ref(renumber[value.node])
    if isinstance(value, tuple):
        return tuple(map_refs(item, renumber) for item in value)
    return value


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """Nodes in topological order (`nodes[i].id == i`); `outputs` may repeat and may hold None.

    numerics: "fast" may keep what lies between operations of 16-bit floats in float32; "eager"
    rounds the result of each operation as eager stores it, in its own type."""

    nodes: tuple[Node, ...]
    outputs: tuple[int | None, ...]
    numerics: Numerics = "fast"
    _users: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        users: list[dict[int, None]] = [{} for _ in self.nodes]
        for position, node in enumerate(self.nodes):
            if node.id != position:
                raise ValueError(f"node {node.name} has id {node.id} at position {position}")
            for source in node.inputs:
                if source >= position:
                    raise ValueError(f"node {node.name} reads node {source}, which comes later")
                users[source][position] = None
        object.__setattr__(self, "_users", tuple(tuple(u) for u in users))

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(n.id for n in self.nodes if n.op == INPUT)

    def users(self, node: int) -> tuple[int, ...]:
        """Ids of the nodes that read this one (the graph's outputs are not nodes)."""
        return self._users[node]

    def __repr__(self) -> str:
        return f"<Graph of {len(self.nodes)} nodes>"

    def __str__(self) -> str:
        """Text that `parse.parse` reads: without names, and with a number that varies as the one
        that it is here."""
        lines = [_line(node) for node in self.nodes]
        lines += ["numerics: eager"] * (self.numerics == "eager")
        return "\n".join([*lines, f"return {', '.join(_name(self, o) for o in self.outputs)}"])


def short_names(graph: Graph, nodes: Iterable[int]) -> tuple[str, ...]:
    """The operations of these nodes without name space and overload, inputs left out: "add"."""
    found = (graph.nodes[n].op for n in nodes if n < len(graph.nodes))
    return tuple(_short(op) for op in found if op != INPUT)


def _short(op: str) -> str:
    parts = op.split(".")  # name space, name, overload; or what is called by its qualified name
    return parts[1] if len(parts) == 3 else parts[-1]


def _name(graph: Graph, output: int | None) -> str:
    return "None" if output is None else f"%{output}"


def _line(node: Node) -> str:
    args = [*map(_shown, node.args), *(f"{k}={_shown(v)}" for k, v in node.kwargs)]
    kind = "?" if node.type is None else str(node.type)
    if node.type is not None and node.type.stride != contiguous(node.type.shape):
        kind += f" strides [{', '.join(map(str, node.type.stride))}]"
    return f"%{node.id} = {node.op}({', '.join(args)}) : {kind}"


def _shown(value: Arg) -> str:
    if isinstance(value, Ref):
        return f"%{value.node}"
    if isinstance(value, Symbol):
        known = symbol_kind(value.name) == value.kind
        return value.name if known else f"{value.kind}:{value.name!r}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return repr(value)


_SYMBOLS = {
    "device": re.compile("graph"),
    "layout": re.compile("strided"),
    "memory_format": re.compile("channels_last(_3d)?|(contiguous|preserve)_format"),
    "dtype": re.compile(r"bool|u?int\d+|b?float\d+(_\w+)?|complex\d+"),
}


def symbol_kind(word: str) -> str | None:
    """The kind of symbol that a word stands for by itself; None where that must be said."""
    return next((kind for kind, words in _SYMBOLS.items() if words.fullmatch(word)), None)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose elements lie side by side in row-major order."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(1, n)
    return tuple(strides)


def canonical(graph: Graph) -> Graph:
    """The graph with names that do not depend on the user's: equal work gives equal graphs."""
    nodes = (Node(n.id, f"v{n.id}", n.op, n.args, n.kwargs, n.type) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@by_identity(16)
def key(graph: Graph) -> str:
    """Content digest: operations, arguments, shapes, strides and dtypes, not names, nor which
    sizes vary."""
    return digest(to_json(canonical(graph)))


def kernel_key(graph: Graph) -> str:
    """The key of a group that kernels are tuned for: where sizes vary they take them as
    arguments, and are other kernels than those of the static group."""
    return digest(to_json(canonical(graph), varying_to_json))


def content(node: Node) -> str:
    """Text that is the same for two nodes that do the same, whatever they read and are named."""
    blank = defaultdict[int, int](int)
    args = tuple(map_refs(a, blank) for a in node.args)
    kwargs = tuple((k, map_refs(v, blank)) for k, v in sorted_kwargs(node))
    own = [node.op, *(_arg_to_json(each, varying_to_json) for each in (args, kwargs))]
    return json.dumps([*own, _type_to_json(node.type, varying_to_json)], allow_nan=False)


def sorted_kwargs(node: Node) -> list[tuple[str, Arg]]:
    return sorted(node.kwargs, key=lambda pair: pair[0])


def digest(data: Any) -> str:
    """Of plain JSON data."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


Varying: TypeAlias = Callable[[Size | Amount], Any]
_PLAIN = (int, str, bool, type(None))  # Those that vary have types of their own.


def varying_to_json(number: Size | Amount) -> Any:
    """A number that varies, as `from_json` reads it."""
    if isinstance(number, Size):
        return {"size": [int(number), list(number.probes), number.divisor]}
    return {"amount": [float(number), list(number.probes)]}


def to_json(graph: Graph, varying: Varying = plain) -> dict[str, Any]:
    """Plain JSON data that `from_json` turns back into an equal graph. varying: what a number
    that varies is written as: the number, or `varying_to_json` to keep what it is elsewhere."""
    data: dict[str, Any] = {
        "nodes": [
            {
                "name": n.name,
                "op": n.op,
                "args": [_arg_to_json(a, varying) for a in n.args],
                "kwargs": {k: _arg_to_json(v, varying) for k, v in n.kwargs},
                "type": _type_to_json(n.type, varying),
            }
            for n in graph.nodes
        ],
        "outputs": list(graph.outputs),
    }
    if graph.numerics != "fast":
        data["numerics"] = graph.numerics
    return data


def _type_to_json(of: TensorType | None, varying: Varying) -> Any:
    if of is None:
        return None
    return [_arg_to_json(of.shape, varying), _arg_to_json(of.stride, varying), of.dtype]


def from_json(data: Mapping[str, Any]) -> Graph:
    """Inverse of `to_json`. Raises ValueError or KeyError on data that is no graph. Whoever wrote
    the data, it is no code: names are made identifiers, for they stand in generated text."""
    nodes = []
    for position, item in enumerate(data["nodes"]):
        stored = item["type"]
        tensor = stored and TensorType(_numbers(stored[0]), _numbers(stored[1]), _word(stored[2]))
        kwargs = tuple((_word(k), _arg_from_json(v)) for k, v in item["kwargs"].items())
        args = tuple(_arg_from_json(a) for a in item["args"])
        name = re.sub(r"\W", "_", item["name"])
        nodes.append(Node(position, name, _line_of_text(item["op"]), args, kwargs, tensor))
    numerics = data.get("numerics", "fast")
    if numerics not in get_args(Numerics):
        raise ValueError(f"{numerics!r} is no numerics of a graph")
    outputs = tuple(None if o is None else _integer(o) for o in data["outputs"])
    return Graph(tuple(nodes), outputs, numerics)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_integer(_arg_from_json(v)) for v in values)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _word(text: Any) -> str:
    if not isinstance(text, str) or not text.isidentifier():
        raise ValueError(f"{text!r} is no name")
    return text


def _line_of_text(text: Any) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError(f"{text!r} is no line of text")
    return text


def _arg_to_json(value: Arg, varying: Varying) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (Size, Amount)):
        return varying(value)
    if isinstance(value, Ref):
        return {"ref": value.node}
    if isinstance(value, Symbol):
        return {value.kind: value.name}
    if isinstance(value, tuple):
        return [_arg_to_json(item, varying) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _arg_from_json(value: Any) -> Arg:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "ref":
            return Ref(_integer(content))
        if kind == "float":
            return float(content)
        if kind == "size":
            value, probes, divisor = content
            return Size(_integer(value), tuple(map(_integer, probes)), _integer(divisor))
        if kind == "amount":
            return Amount(float(content[0]), tuple(map(float, content[1])))
        return Symbol(_word(kind), _line_of_text(content))
    if isinstance(value, list):
        return tuple(_arg_from_json(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} is no graph argument")
