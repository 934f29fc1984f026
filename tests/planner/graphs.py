"""Graphs written by hand: `build("x = input 4x6", ...)` is not needed, a builder is enough."""

from __future__ import annotations

from fusionplan.planner.graph.graph import INPUT, Arg, Graph, Node, Ref, TensorType


def dense(*shape: int, dtype: str = "float32") -> TensorType:
    """A contiguous tensor."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(1, n)
    return TensorType(shape, tuple(strides), dtype)


class Builder:
    """Nodes one after another; every method returns the reference to what it added."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def input(self, *shape: int, dtype: str = "float32", stride: tuple[int, ...] = ()) -> Ref:
        tensor = dense(*shape, dtype=dtype)
        return self.node(INPUT, (), TensorType(shape, stride or tensor.stride, dtype))

    def op(self, name: str, *args: Arg, shape: tuple[int, ...] | None = None, **kwargs: Arg) -> Ref:
        """`aten.<name>` of these arguments; the shape is the first reference's unless given."""
        first = next((self.nodes[a.node].type for a in args if isinstance(a, Ref)), None)
        if shape is None:
            assert first is not None
            shape = first.shape
        dtype = first.dtype if first else "float32"
        return self.node(f"aten.{name}", args, dense(*shape, dtype=dtype), tuple(kwargs.items()))

    def opaque(self, *args: Ref) -> Ref:
        """An operation with no row in the table and no single tensor as its value."""
        return self.node("aten.sort.default", args, None)

    def graph(self, *outputs: Ref | None) -> Graph:
        return Graph(tuple(self.nodes), tuple(o and o.node for o in outputs))

    def node(self, op: str, args: tuple, type_: TensorType | None, kwargs: tuple = ()) -> Ref:
        self.nodes.append(Node(len(self.nodes), f"n{len(self.nodes)}", op, args, kwargs, type_))
        return Ref(len(self.nodes) - 1)


def product(
    rows: int,
    summed: int,
    columns: int,
    dtype: str = "bfloat16",
    turned: tuple[bool, bool] = (False, False),
    bias: bool = False,
) -> Graph:
    """x @ w. turned: whether either lies in memory with its rows and columns exchanged."""
    b = Builder()
    x = b.input(rows, summed, dtype=dtype, stride=(1, rows) if turned[0] else ())
    w = b.input(summed, columns, dtype=dtype, stride=(1, summed) if turned[1] else ())
    if bias:
        row = b.input(columns, dtype=dtype)
        return b.graph(b.op("addmm.default", row, x, w, shape=(rows, columns)))
    return b.graph(b.op("mm.default", x, w, shape=(rows, columns)))
