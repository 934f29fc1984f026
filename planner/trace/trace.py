"""From a group's graph to its values: views move to the loads, dimensions become factors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import Refused
from ..graph.dtypes import DTYPES, FLOAT8, NARROW, is_float, register_dtype
from ..graph.graph import Arg, Graph, Node, Ref, TensorType
from ..graph.numbers import converted, stored
from ..graph.op import Accuracy, Op
from ..graph.ops import (
    Cast,
    Concat,
    Constant,
    Contraction,
    Cumulative,
    Depthwise,
    IndexedWrite,
    Iota,
    Lookup,
    Pointwise,
    Reduction,
    View,
    bound,
    is_compute,
    is_input,
    row,
)
from ..graph.sizes import varies
from ..graph.texts import operands_of
from ..memo import by_identity
from ..stream.one_hot_sums import read_by_index
from ..stream.store_pieces import pieces_stored
from ..stream.unroll import unrolled
from ..values.axes import Factors, FactorSpace
from ..values.unread import without_unread
from ..values.values import (
    Compute,
    Dims,
    Fold,
    Index,
    Literal,
    Load,
    Output,
    Value,
    ValueKind,
    Values,
    Window,
    Windows,
    compute,
    conversion,
    mapped,
    written,
)
from .concats import concat
from .convolutions import depthwise, runs
from .exactness import Forms
from .indexed_loads import lookup
from .indexed_writes import after_write, indexed_write, refuse_readers
from .integer_ranges import narrowed
from .matmuls import matmul
from .precision import compared_dtype, dtype_of, number_of, rounds, working_dtype
from .reductions import reduced
from .scans import scan
from .softmax_logarithms import logarithm_of_softmax
from .views import Request, TracedValue, TraceSteps, load_dims, view

MOST_VALUES = 384
"""Values that a group may have in any case, and"""

MOST_EACH = 4
"""those that it may have for each of its nodes. Operations on what is read through different
windows are computed for each of them: two steps of a stencil of nine points make 81 reads, three
steps 729. Beyond this neither planning nor compilation ends in time."""


ROUNDED_TO = {
    "float16": Op.AS_FLOAT16,
    "bfloat16": Op.AS_BFLOAT16,
    "float8_e4m3fn": Op.AS_FLOAT8_E4M3FN,
    "float8_e5m2": Op.AS_FLOAT8_E5M2,
}
"""By float dtype of 16 or 8 bits what rounds to it."""


@by_identity(16)
def trace(group: Graph) -> Values:
    """The values of a group in topological order. Raises Refused where an axis does not factor
    or a view cannot be moved to the loads, or the values are too many.

    An input is loaded once for all its readers; only where a reader needs it transposed against
    another (`x + x.T`) does every reader load it for itself.
    """
    try:
        return _trace(group, shared=True)
    except Refused as refused:
        if refused.refusal.rule != "transposed":
            raise
        return _trace(group, shared=False)


def _trace(group: Graph, shared: bool) -> Values:
    tracer = Tracer(group, shared)
    outputs = []
    for each in group.nodes:
        if is_compute(each) and each.type is not None and each.type.numel == 0:
            raise Refused("empty", f"{each.name} has no elements")
    refuse_readers(group)
    for index, node in enumerate(group.outputs):
        if node is None:
            raise Refused("output", "a group's output is no tensor")
        value, dims, kind = tracer.output(node)
        outputs.append(Output(index, value, dims, kind))
    return tracer.finish(outputs)


@dataclass(slots=True)
class _Begun:
    """A node that is being read. near: what its operands, and theirs, are at the same place: all
    that pointwise operations alone lead to, through the same windows. Without it `h ^ (h >> 1)` of
    indices, each time of the last, would be read twice as often with every step."""

    request: Request
    reading: TraceSteps
    near: dict[Request, TracedValue]


class Tracer:
    """Reads the nodes of a group, each once for every window that it is read through."""

    in_order = False

    def __init__(self, group: Graph, shared: bool) -> None:
        self.group = group
        self.again = _read_again(group, shared)
        self.level = frozenset(n.id for n in group.nodes if isinstance(row(n), (Pointwise, Cast)))
        self.space = FactorSpace()
        self.forms = Forms(group)
        self.values: list[Value] = []
        self.most = max(MOST_VALUES, MOST_EACH * len(group.nodes))
        self.seen: dict[tuple[int, Windows], TracedValue] = {}
        self.convolved: list[tuple[Node, Dims]] = []

    def output(self, node_id: int) -> tuple[int, Dims, TensorType]:
        """An output's value, its dimensions, and what is stored of it."""
        kind = _type(self.group.nodes[node_id])
        write = row(self.group.nodes[node_id])
        if isinstance(write, IndexedWrite):
            writing, found = indexed_write(self, self.group.nodes[node_id], write), None
            while True:
                try:
                    request = writing.send(found)  # type: ignore[arg-type]
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                found = self.read(*request)
        value, dims = self.read(node_id, (None,) * len(kind.shape))
        return value, dims, kind

    def read(self, node_id: int, windows: Windows) -> TracedValue:
        """The value of a node read through windows, and the dimensions it is read at."""
        begun = _Begun((node_id, windows), self._reading(node_id, windows), {})
        under_way = [begun]
        found: TracedValue | None = None
        while under_way:
            one = under_way[-1]
            try:
                # What is None is sent to one that begins.
                request = one.reading.send(found)  # type: ignore[arg-type]
            except StopIteration as end:
                under_way.pop()
                found = end.value
                if under_way and one.request[0] in self.again:
                    under_way[-1].near[one.request] = end.value
                continue
            level = one.request[0] in self.level
            found = one.near.get(request) if level else None
            if found is None:
                near = one.near if level and request[0] in self.level else {}
                under_way.append(_Begun(request, self._reading(*request), near))
        assert found is not None
        return found

    def _reading(self, node_id: int, windows: Windows) -> TraceSteps:
        node = self.group.nodes[node_id]
        shape = _type(node).shape
        windows = tuple(
            None if w is None or w.is_whole(n) else w for w, n in zip(windows, shape, strict=True)
        )
        if node_id in self.again:
            return (yield from self._trace(node, windows))
        found = self.seen.get((node_id, windows))
        if found is None:
            found = self.seen[node_id, windows] = yield from self._trace(node, windows)
        return found

    def _trace(self, node: Node, windows: Windows) -> TraceSteps:
        value, dims = yield from self._evaluated(node, windows)
        if rounds(self.group, node) and not self._has(value, _type(node).dtype):
            value = self.rounded(value, node)
        return value, dims

    def _evaluated(self, node: Node, windows: Windows) -> TraceSteps:
        if is_input(node):
            return self._load(node, windows)
        match row(node):
            case Pointwise(op=Op.CONVERT):
                return (yield _source(node), windows)
            case Pointwise() as operation:
                return (yield from self._pointwise(node, operation, windows))
            case Cast():
                return (yield from self._cast(node, windows))
            case Reduction() as reduction:
                return (yield from reduced(self, node, reduction, windows))
            case Cumulative() as scanned:
                return (yield from scan(self, node, scanned, windows))
            case Contraction() as contraction:
                return (yield from matmul(self, node, contraction, windows))
            case Depthwise():
                found = yield from depthwise(self, node, windows)
                self.convolved.append((node, found[1]))
                return found
            case View(kind=kind):
                return (yield from view(self, node, kind, windows))
            case IndexedWrite() as write:
                return (yield from after_write(self, node, write, windows))
            case Lookup() as named:
                return (yield from self._lookup(node, named, windows))
            case Concat():
                return (yield from concat(self, node, windows))
            case Constant() as constant:
                return self._constant(node, constant, windows)
            case Iota():
                return self._iota(node, windows)
        raise Refused("opaque", f"{node.op} has no row in the operation table")

    def dims(self, value: int) -> Dims:
        return self.values[value].dims

    def shape(self, node_id: int) -> tuple[int, ...]:
        return _type(self.group.nodes[node_id]).shape

    def type(self, node_id: int) -> TensorType:
        return _type(self.group.nodes[node_id])

    def add(self, kind: ValueKind, dims: Dims, dtype: str, node: Node) -> TracedValue:
        if len(self.values) == self.most:
            raise Refused("size", f"more than {self.most} values, up to {node.name}")
        value = Value(len(self.values), kind, dims, register_dtype(dtype), node.name)
        self.values.append(value)
        return value.id, dims

    def fresh(self, shape: tuple[int, ...], windows: Windows) -> Dims:
        sizes = (n if w is None else w.size for n, w in zip(shape, windows, strict=True))
        return tuple(self.space.fresh(size) for size in sizes)

    def _load(self, node: Node, windows: Windows) -> TracedValue:
        tensor = _type(node)
        if tensor.dtype not in DTYPES:
            raise Refused("dtype", f"no kernel reads {node.name}, which is {tensor.dtype}")
        dims = self.fresh(tensor.shape, windows)
        parts = load_dims(dims, tensor.shape, tensor.stride, windows)
        return self.add(Load(node.id, parts, tensor.dtype), dims, tensor.dtype, node)

    def operand(self, node_id: int, shape: tuple[int, ...], windows: Windows) -> TraceSteps:
        """An operand broadcast to `shape`, aligned at the last dimension."""
        own = _type(self.group.nodes[node_id]).shape
        lead = len(shape) - len(own)
        inner = tuple(None if n == 1 else w for n, w in zip(own, windows[lead:], strict=True))
        value, dims = yield node_id, inner
        return value, ((),) * lead + dims

    def _pointwise(self, node: Node, operation: Pointwise, windows: Windows) -> TraceSteps:
        shape = _type(node).shape
        operands: list[tuple[str, Arg]] = []
        dims: list[Factors] = [()] * len(shape)
        arguments = bound(node)
        working = working_dtype(self.group, node, operation)
        common = compared_dtype(self.group, node, operation)
        compares = operation.op in (Op.EQ, Op.NE) and isinstance(arguments["other"], Ref)
        for name, argument in arguments.items():
            if name not in operands_of(operation.op) or (name == "alpha" and argument == 1):
                continue
            if not isinstance(argument, Ref):
                operands.append((name, number_of(self.group, node, operation, argument)))
                continue
            value, own = yield from self.operand(argument.node, shape, windows)
            if compares:
                value = self._as_stored(value, self.group.nodes[argument.node])
            if common is not None and common != _type(self.group.nodes[argument.node]).dtype:
                value = self._rounded_to(value, common, node)
            operands.append((name, Ref(value)))
            for position, factors in enumerate(own):
                if factors and dims[position]:
                    self.space.unify(dims[position], factors)
                elif factors:
                    dims[position] = factors
        if self.forms.is_of_softmax(node):
            found = self._logarithm(dict(operands)["self"], node)
            if found is not None:
                return found
        form = self.forms.of(node, operation, operands, working)
        form = self.forms.joined(node, form, self.values)
        given = dict(form.operands)
        if form.inverts:
            given["other"] = self._inverse(given["other"], node)
        result = register_dtype(dtype_of(node))
        kind = compute(form.op, working, form.accuracy, result, **given)
        return self.add(kind, tuple(dims), _type(node).dtype, node)

    def _inverse(self, divisor: Arg, node: Node) -> Ref:
        """1 / divisor, computed once for all that it divides."""
        assert isinstance(divisor, Ref)
        own = self.values[divisor.node]
        kind = compute(Op.RECIPROCAL, own.dtype, Accuracy.SUMMED, self=divisor)
        return Ref(self.add(kind, own.dims, own.dtype, node)[0])

    def _logarithm(self, argument: Arg, node: Node) -> TracedValue | None:
        """The logarithm of a softmax; None where the argument is none."""
        found = None
        for like, kind in logarithm_of_softmax(self.values, argument):
            found = self.add(kind, self.values[like].dims, kind.result, node)
        return found

    def _as_stored(self, value: int, node: Node) -> int:
        """A 16-bit float at the precision of its dtype: registers keep more, and a maximum would
        no longer equal the element it came of, or what was stored of it."""
        if _type(node).dtype not in NARROW or isinstance(self.values[value].kind, Load):
            return value
        return self.rounded(value, node)

    def rounded(self, value: int, node: Node) -> int:
        """A value at the precision of a node's 16-bit dtype."""
        return self._rounded_to(value, _type(node).dtype, node)

    def _rounded_to(self, value: int, dtype: str, node: Node) -> int:
        kept, op = self.values[value], ROUNDED_TO[dtype]
        if isinstance(kept.kind, Compute) and kept.kind.op is op:
            return value
        return self.add(compute(op, "float32", self=Ref(value)), kept.dims, dtype, node)[0]

    def _cast(self, node: Node, windows: Windows) -> TraceSteps:
        value, dims = yield _source(node), windows
        match self.values[value].kind:
            case Literal(number=number) if not varies(number):
                source = _type(self.group.nodes[_source(node)]).dtype
                own = converted(number, source, _type(node).dtype)
                return self.add(Literal(own), dims, _type(node).dtype, node)
        target = _type(node).dtype
        if not is_float(target) or target in FLOAT8:
            # It shows what registers keep beyond 16 bits: an integer, or whether it is 0.
            value = self._as_stored(value, self.group.nodes[_source(node)])
        kind = conversion(self.values[value], register_dtype(target))
        return self.add(kind, dims, target, node)

    def _has(self, value: int, dtype: str) -> bool:
        """Whether a dtype of 16 or 8 bits has every number that a value can be."""
        match self.values[value].kind:
            case Load(dtype=stored):
                pass
            case Literal():
                return True
            case Compute(op=Op.CONVERT, operands=(("self", Ref(node=source)),)):
                return self._has(source, dtype)
            case _:
                stored = self.values[value].dtype
        small = stored in ("uint8", "int8", *FLOAT8)
        return stored in (dtype, "bool") or (small and dtype not in FLOAT8)

    def _lookup(self, node: Node, row: Lookup, windows: Windows) -> TraceSteps:
        """A read by index. Who only surveys a graph reads it in another way (`survey`)."""
        return lookup(self, node, row, windows)

    def _constant(self, node: Node, constant: Constant, windows: Windows) -> TracedValue:
        number = bound(node)[constant.argument] if constant.argument else constant.value
        if not isinstance(number, (bool, int, float)):
            raise Refused("constant", f"{node.name} is filled with {number!r}")
        dims = self.fresh(_type(node).shape, windows)
        number = stored(number, _type(node).dtype)
        return self.add(Literal(number), dims, _type(node).dtype, node)

    def _iota(self, node: Node, windows: Windows) -> TracedValue:
        named = bound(node)
        start, step = named.get("start") or 0, named.get("step", 1)
        assert isinstance(start, (int, float))
        assert isinstance(step, (int, float))
        start, step = (n if isinstance(n, int) else int(n) for n in (start, step))
        (window,) = windows
        dims = self.fresh(_type(node).shape, windows)
        whole = Window(start, step, _type(node).shape[0]).inside(window)
        return self.add(Index(dims[0], whole.start, whole.step), dims, _type(node).dtype, node)

    def finish(self, outputs: list[Output]) -> Values:
        """Resolve every factor, check that no value meets itself transposed, merge equal loads."""
        resolve = self.space.resolve
        same: dict[object, int] = {}
        renamed: dict[int, int] = {}
        kept: list[Value] = []
        for value in self.values:
            dims = tuple(resolve(dim) for dim in value.dims)
            kind = mapped(value.kind, renamed.__getitem__, resolve)
            flat = [f for dim in dims for f in dim]
            # A vector that both operands of a product repeat: summed by one, kept by the other.
            flat += dict.fromkeys(kind.reduced) if isinstance(kind, Fold) else ()
            if len(flat) != len(set(flat)):
                raise Refused("transposed", f"{value.origin} is used together with its transpose")
            identity = (kind, written(kind), value.dtype, dims)
            if identity in same:
                renamed[value.id] = same[identity]
                continue
            renamed[value.id] = same[identity] = len(kept)
            kept.append(Value(len(kept), kind, dims, value.dtype, value.origin))
        stores = tuple(
            replace(o, value=renamed[o.value], dims=tuple(resolve(d) for d in o.dims))
            for o in outputs
        )
        kept, stores = without_unread(kept, stores)
        factors = {f for v in kept for f in v.axes} | {f for o in stores for d in o.dims for f in d}
        # A sum over a broadcast dimension counts it, though no value varies along it.
        factors |= {f for v in kept if isinstance(v.kind, Fold) for f in v.kind.reduced}
        extents = {f: self.space.extent(f) for f in sorted(factors)}
        found = narrowed(read_by_index(Values(tuple(kept), stores, extents)))
        return pieces_stored(self._unrolled(found))

    def _unrolled(self, values: Values) -> Values:
        """With neighbouring pixels of a convolution apart. Raises Refused where they cannot be,
        though the convolution alone has such: to be summed there, pixels are better stored."""
        for node, dims in self.convolved[:1]:
            refused: Refused | None = None
            for factor, parts in runs(self, node, dims):
                try:
                    return unrolled(values, factor, parts)
                except Refused as why:
                    refused = refused or why
            if refused is not None:
                raise refused
        return values


def _read_again(group: Graph, shared: bool) -> frozenset[int]:
    """Nodes that each reader evaluates for itself, over axes of its own: views, and what is made
    of indices and constants alone (`i[:, None] >= i[None, :]`); unless shared, inputs too."""
    again: set[int] = set()
    indices: set[int] = set()
    for node in group.nodes:
        kind = row(node)
        if is_input(node):
            again.update(() if shared else (node.id,))
        elif not isinstance(kind, Reduction | Cumulative | Contraction) and indices.issuperset(
            node.inputs
        ):
            indices.add(node.id)
        elif isinstance(kind, View):
            again.add(node.id)
    return frozenset(again | indices)


def _type(node: Node) -> TensorType:
    if node.type is None:
        raise Refused("opaque", f"{node.name} is no single tensor")
    return node.type


def _source(node: Node) -> int:
    """The tensor that a cast or a copy takes."""
    source = bound(node).get("self", node.args[0])
    if not isinstance(source, Ref):
        raise Refused("cast", f"{node.name} casts no tensor")
    return source.node
