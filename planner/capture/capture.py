"""From the FX graph that AOTAutograd hands to a compiler to a `Graph`, and back to what runs.

`capture` first tidies a copy of the FX graph (aliases, dead code, duplicates), so that the same
work gives the same graph. `specialise` gives a static graph for one set of sizes.
"""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import PlanError
from ..graph.graph import INPUT, Arg, Graph, Node, Numerics, Ref, Symbol, TensorType
from .rewrites.common_subexpressions import drop_duplicates
from .rewrites.join_collectives import join_added_collectives
from .writes_in_place import Update, written_in_place

__all__ = [
    "Captured",
    "Specialised",
    "Stage",
    "capture",
    "decompositions",
    "device_of",
    "hint",
    "is_dynamic",
    "is_symbolic",
    "literal",
    "node_of",
    "outputs_of",
    "specialise",
    "tidied",
]

Stage = Literal["inference", "forward", "backward"]

CONSTANT = "constant"

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Captured:
    """`graph.nodes[i]` is `fx_nodes[i]`, the i-th node of `gm.graph` that is not its output.
    `device` is where most of its tensors live. Each output of `gm` is a node or None."""

    gm: fx.GraphModule = field(repr=False)
    graph: Graph
    device: torch.device
    fx_nodes: tuple[fx.Node, ...] = field(repr=False)
    updates: tuple[Update, ...] = field(default=(), repr=False)
    """What the graph leaves in its inputs: the last of the graph's outputs, one for each. They are
    not the caller's."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Formulas for torch's operations; see `decompose`, which a process that opens no graph need
    not import."""
    from .decompositions.decompose import decompositions as ours

    return ours()


def literal(value: Any) -> Any:
    """Stands in a graph for an output that is a plain number: every output is a node or None."""
    return value


def capture(gm: fx.GraphModule, numerics: Numerics = "fast") -> Captured:
    """The graph of a static, functional FX graph with fake values in its metadata.

    `gm` is left as it is. Raises PlanError when the graph holds symbolic sizes (`specialise` it
    first) or does not return one flat list.
    """
    if is_dynamic(gm):
        raise PlanError("the graph has symbolic sizes; specialise it before it is captured")
    tidy, updates = _with_updates(tidied(gm, numerics))
    fx_nodes = tuple(n for n in tidy.graph.nodes if n.op != "output")
    device = device_of(fx_nodes)
    number = {node: i for i, node in enumerate(fx_nodes)}
    refs: dict[fx.Node, Arg] = {node: Ref(i) for node, i in number.items()}
    nodes = tuple(node_of(tidy, i, n, refs, device) for n, i in number.items())
    outputs = tuple(None if o is None else number[o] for o in outputs_of(tidy.graph))
    return Captured(tidy, Graph(nodes, outputs, numerics), device, fx_nodes, updates)


def _with_updates(tidy: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Update, ...]]:
    """The graph with what it leaves in its inputs as outputs."""
    updates = written_in_place(tidy.graph)
    if updates:
        output = next(n for n in reversed(tidy.graph.nodes) if n.op == "output")
        output.args = ((*outputs_of(tidy.graph), *(update.value for update in updates)),)
        tidy.recompile()
    return tidy, updates


def is_dynamic(gm: fx.GraphModule) -> bool:
    """Whether some value of the graph is, or has, a size known only at run time. Raises PlanError
    for the size of a nested tensor, which is no number."""
    values = [n.meta.get("val") for n in gm.graph.nodes]
    for number in values:
        if isinstance(number, torch.SymInt) and number.node.is_nested_int():
            raise PlanError("a nested tensor has sizes that are no numbers: only torch runs it")
    return any(map(_is_symbolic, values))


@dataclass(frozen=True, slots=True)
class Specialised:
    """A static graph that takes the tensors among the inputs, in order, and returns the tensors
    among the outputs: `numbers` are the other outputs, by position. So it is the very graph that
    a static capture would have given."""

    gm: fx.GraphModule
    numbers: tuple[tuple[int, Any], ...]


def specialise(gm: fx.GraphModule, inputs: Sequence[Any]) -> Specialised:
    """The graph for the sizes of these inputs (tensors, real or fake, and numbers), traced again.
    A symbolic size counts with its hint. Raises PlanError when a size depends on the data."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    with torch.no_grad(), mode:
        concrete = [_concrete(x) for x in inputs]
        traced = make_fx(fx.Interpreter(gm).run, tracing_mode="real")(*concrete)
    for node, value in zip(list(traced.graph.nodes), concrete, strict=False):
        if not isinstance(value, torch.Tensor):
            traced.graph.erase_node(node)
    if is_dynamic(traced):
        raise PlanError("the graph has sizes that depend on its data")
    output = next(n for n in reversed(traced.graph.nodes) if n.op == "output")
    results = list(enumerate(outputs_of(traced.graph)))
    numbers = tuple((i, v) for i, v in results if v is not None and not isinstance(v, fx.Node))
    dropped = {i for i, _ in numbers}
    output.args = (tuple(v for i, v in results if i not in dropped),)
    traced.recompile()
    return Specialised(traced, numbers)


def _concrete(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape, stride = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return hint(value)


def hint(value: Any) -> Any:
    """A symbolic number's value in the inputs it was captured with; any other value itself."""
    # int() of a symbolic size would add a guard to a graph that is already guarded.
    return value.node.hint if is_symbolic(value) else value


def is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_symbolic, value))
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in value.shape)
    return is_symbolic(value)


def tidied(gm: fx.GraphModule, numerics: Numerics = "fast") -> fx.GraphModule:
    """A copy without aliases, duplicates and dead code."""
    graph = fx.Graph()
    output = graph.graph_copy(gm.graph, {})
    graph.output(output)
    copy = fx.GraphModule(gm, graph)
    _name_numbers(copy.graph)
    _inline_constants(copy)
    _move_numbers(copy.graph)
    for node in list(copy.graph.nodes):
        _drop_alias(node)
    copy.graph.eliminate_dead_code()
    drop_duplicates(copy.graph)
    if numerics == "fast":  # Else sums are rounded where eager rounds them.
        join_added_collectives(copy.graph)
    copy.graph.eliminate_dead_code()
    copy.recompile()
    return copy


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    result = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    if not isinstance(result, (tuple, list)):
        raise PlanError("the graph returns one value, not a flat list of values")
    return result


def _name_numbers(graph: fx.Graph) -> None:
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    values: list[Any] = []
    for value in outputs_of(graph):
        if value is not None and not isinstance(value, fx.Node):
            if not isinstance(value, (bool, int, float, str)):
                raise PlanError(f"the graph returns {value!r}, which is no tensor and no number")
            with graph.inserting_before(output):
                number = graph.call_function(literal, (value,))
            number.meta["val"] = value
            value = number
        values.append(value)
    output.args = (tuple(values),)


def _inline_constants(gm: fx.GraphModule) -> None:
    """A copy of a number that the model's code holds as a tensor, `torch.tensor(0)`, is made of
    that number: a tensor on the CPU keeps a graph from being a kernel, or a CUDA graph."""
    for node in list(gm.graph.nodes):
        if node.target is not aten.lift_fresh_copy.default or node.args[0].op != "get_attr":
            continue
        value = operator.attrgetter(str(node.args[0].target))(gm)
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            continue
        if not _is_cpu_number(value) or value.dtype.is_complex:
            continue
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        with _disable_current_modes():  # under a fake mode nothing has a value
            held = value.item()
        with gm.graph.inserting_before(node):
            number = gm.graph.call_function(aten.scalar_tensor.default, (held,), options)
        number.meta.update(node.meta)
        node.replace_all_uses_with(number)


def _move_numbers(graph: fx.Graph) -> None:
    """Tensors without dimensions that come of numbers alone are made where the graph is. PyTorch
    makes them on the CPU, for they may stand beside tensors of any device; not so in a kernel."""
    device = device_of(graph.nodes)
    moved: dict[fx.Node, FakeTensor] = {}
    for node in graph.nodes:
        value, named = node.meta.get("val"), node.kwargs.get("device")
        read = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        made = node.target in _OF_NUMBERS or (read and named is None and moved.keys() >= set(read))
        if made and isinstance(value, FakeTensor) and _is_cpu_number(value):
            moved[node] = value
    for node in moved:
        for user in node.users:
            there = user.meta.get("val")
            if user not in moved and getattr(there, "device", None) != device:
                return  # One of them is wanted on the CPU.
    for node, value in moved.items():
        if node.target in _OF_NUMBERS:
            node.update_kwarg("device", device)
        with value.fake_mode:
            node.meta["val"] = torch.empty((), dtype=value.dtype, device=device)


_OF_NUMBERS = (aten.scalar_tensor.default, aten.full.default)


def _is_cpu_number(value: torch.Tensor) -> bool:
    return value.device.type == "cpu" and value.dim() == 0


def _drop_alias(node: fx.Node) -> None:
    """Readers of an alias read what is behind it. An output stays what the caller expects."""
    if node.target in (aten.alias.default, aten.detach.default):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")


def device_of(nodes: Iterable[fx.Node]) -> torch.device:
    """Where most tensors are; the first named one, of equals. One without dimensions may be on
    the CPU for a graph that is not."""
    values = [v for n in nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    found = Counter(v.device for v in values if not _is_cpu_number(v))
    return found.most_common(1)[0][0] if found else torch.device("cpu")


def node_of(
    gm: fx.GraphModule,
    i: int,
    node: fx.Node,
    refs: Mapping[fx.Node, Arg],
    device: torch.device,
    read: Callable[[Any], int] = int,
) -> Node:
    """An FX node as node `i` of a graph. refs: what stands for the nodes it reads; read: gives
    the sizes of its type."""
    type_ = _type(node.meta.get("val"), device, read)
    if node.op == "placeholder":
        return Node(i, node.name, INPUT, type=type_)
    if node.op == "get_attr":
        return Node(i, node.name, CONSTANT, _content(gm, str(node.target)), type=type_)
    if node.op != "call_function":
        raise PlanError(f"{node.op} {node.target} is no operation of a captured graph")
    if node.target is literal:
        return Node(i, node.name, CONSTANT, (_arg(node.args[0], refs, device, read),))
    args = tuple(_arg(a, refs, device, read) for a in node.args)
    kwargs = tuple((k, _arg(v, refs, device, read)) for k, v in node.kwargs.items())
    return Node(i, node.name, _name(node.target), args, kwargs, type_)


def _name(target: Any) -> str:
    kind = type(target)
    if issubclass(kind, torch._ops.OpOverload):
        return str(target)
    if issubclass(kind, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    module = target.__module__.lstrip("_")
    return f"{module}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _content(gm: fx.GraphModule, name: str) -> tuple[Arg, ...]:
    """What tells one constant from another: the operations of a sub-graph; of a tensor nothing
    but its type, for no plan depends on its values."""
    value = operator.attrgetter(name)(gm)
    if isinstance(value, fx.GraphModule):
        text = "\n".join(_operations(value))
        return (Symbol("graph", hashlib.sha256(text.encode()).hexdigest()[:16]),)
    return ()


def _operations(gm: fx.GraphModule) -> Iterator[str]:
    number = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            yield repr(_content(gm, str(node.target)))
            continue
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: f"%{number[n]}")
        target = _name(node.target) if node.op == "call_function" else ""
        yield f"{node.op} {target} {arguments}"


_SYMBOLS: dict[type, tuple[str, Callable[[Any], str]]] = {
    torch.dtype: ("dtype", lambda v: str(v).removeprefix("torch.")),
    torch.layout: ("layout", lambda v: str(v).removeprefix("torch.")),
    torch.memory_format: ("memory_format", lambda v: str(v).removeprefix("torch.")),
    complex: ("complex", repr),
    slice: ("slice", repr),
}


def _arg(
    value: Any, refs: Mapping[fx.Node, Arg], device: torch.device, read: Callable[[Any], int]
) -> Arg:
    if isinstance(value, fx.Node):
        return refs[value]
    if is_symbolic(value):
        return read(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_arg(v, refs, device, read) for v in value)
    if isinstance(value, dict):  # A user's Triton kernel has its operands in one.
        return tuple((str(k), _arg(v, refs, device, read)) for k, v in value.items())
    if isinstance(value, torch.device):
        return Symbol("device", "graph" if value.type == device.type else str(value))
    known = _SYMBOLS.get(type(value))
    if known is not None:
        return Symbol(known[0], known[1](value))
    # Of what is left (an object of the user's) only its type is sure to be stable.
    return Symbol("object", f"{type(value).__module__}.{type(value).__qualname__}")


def _type(value: Any, device: torch.device, read: Callable[[Any], int]) -> TensorType | None:
    """The type of one plain strided tensor on the graph's device, else None."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        return None
    if value.layout is not torch.strided or value.is_quantized or value.device != device:
        return None
    if value.is_conj() or value.is_neg():
        return None
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorType(tuple(map(read, value.shape)), tuple(map(read, value.stride())), dtype)
