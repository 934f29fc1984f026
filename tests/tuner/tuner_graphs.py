"""Small groups to tune."""

from dataclasses import replace

from fusionplan.planner.graph.graph import Graph, Node, Ref, Symbol, TensorType


def dense(*shape: int, dtype: str = "float32") -> TensorType:
    stride, step = [], 1
    for n in reversed(shape):
        stride.insert(0, step)
        step *= n
    return TensorType(shape, tuple(stride), dtype)


def pointwise(rows: int = 8, columns: int = 24, dtype: str = "float32") -> Graph:
    """exp(x + y)."""
    t = dense(rows, columns, dtype=dtype)
    return Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "y", "input", type=t),
            Node(2, "sum", "aten.add.Tensor", (Ref(0), Ref(1)), type=t),
            Node(3, "exp", "aten.exp.default", (Ref(2),), type=t),
        ),
        (3,),
    )


def softmax(rows: int = 6, columns: int = 40, dtype: str = "float32") -> Graph:
    """Softmax of the rows."""
    t, r = dense(rows, columns, dtype=dtype), dense(rows, 1, dtype=dtype)
    return Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "top", "aten.amax.default", (Ref(0), (1,), True), type=r),
            Node(2, "low", "aten.sub.Tensor", (Ref(0), Ref(1)), type=t),
            Node(3, "exp", "aten.exp.default", (Ref(2),), type=t),
            Node(4, "all", "aten.sum.dim_IntList", (Ref(3), (1,), True), type=r),
            Node(5, "out", "aten.div.Tensor", (Ref(3), Ref(4)), type=t),
        ),
        (5,),
    )


def chain(count: int = 3, rows: int = 8) -> Graph:
    """relu, relu, ... of x: `count` operations, any of which can stand apart."""
    t = dense(rows, 16)
    nodes = [Node(0, "x", "input", type=t)]
    for i in range(count):
        nodes.append(Node(i + 1, f"r{i}", "aten.relu.default", (Ref(i),), type=t))
    return Graph(tuple(nodes), (count,))


def layers(count: int) -> Graph:
    """Rows summed, and what is made of the sums, layer after layer: five operations, and one that
    no kernel of ours computes."""
    t, r = dense(64, 512), dense(64, 1)
    nodes = [Node(0, "x", "input", type=t)]
    for _ in range(count):
        at = len(nodes)
        x = Ref(at - 1)
        nodes += [
            Node(at, f"exp{at}", "aten.exp.default", (x,), type=t),
            Node(at + 1, f"sum{at}", "aten.sum.dim_IntList", (Ref(at), (1,), True), type=r),
            Node(at + 2, f"add{at}", "aten.add.Tensor", (x, Ref(at + 1)), type=t),
            Node(at + 3, f"tanh{at}", "aten.tanh.default", (x,), type=t),
            Node(at + 4, f"mul{at}", "aten.mul.Tensor", (Ref(at + 2), Ref(at + 3)), type=t),
            Node(at + 5, f"digamma{at}", "aten.digamma.default", (Ref(at + 4),), type=t),
        ]
    return Graph(tuple(nodes), (len(nodes) - 1,))


def attention(heads: int = 4, length: int = 32, dtype: str = "float32") -> Graph:
    """softmax(q @ k^T / 4) @ v over heads of 16."""
    t, turned = dense(heads, length, 16, dtype=dtype), dense(heads, 16, length, dtype=dtype)
    turned = TensorType(turned.shape, (length * 16, 1, 16), dtype)
    s, r = dense(heads, length, length, dtype=dtype), dense(heads, length, 1, dtype=dtype)
    return Graph(
        (
            Node(0, "q", "input", type=t),
            Node(1, "k", "input", type=t),
            Node(2, "v", "input", type=t),
            Node(3, "kt", "aten.permute.default", (Ref(1), (0, 2, 1)), type=turned),
            Node(4, "dots", "aten.bmm.default", (Ref(0), Ref(3)), type=s),
            Node(5, "scores", "aten.mul.Tensor", (Ref(4), 0.25), type=s),
            Node(6, "top", "aten.amax.default", (Ref(5), (-1,), True), type=r),
            Node(7, "low", "aten.sub.Tensor", (Ref(5), Ref(6)), type=s),
            Node(8, "exp", "aten.exp.default", (Ref(7),), type=s),
            Node(9, "all", "aten.sum.dim_IntList", (Ref(8), (-1,), True), type=r),
            Node(10, "weights", "aten.div.Tensor", (Ref(8), Ref(9)), type=s),
            Node(11, "out", "aten.bmm.default", (Ref(10), Ref(2)), type=t),
        ),
        (11,),
    )


def looked_up(op: str, kind: TensorType) -> Graph:
    """Rows of a table of 40 at `op` of an input, as integers."""
    places = dense(6, dtype="int64")
    return Graph(
        (
            Node(0, "w", "input", type=dense(40, 8)),
            Node(1, "x", "input", type=kind),
            Node(2, "y", op, (Ref(1),), type=replace(places, dtype=kind.dtype)),
            Node(
                3,
                "i",
                "aten._to_copy.default",
                (Ref(2),),
                (("dtype", Symbol("dtype", "int64")),),
                type=places,
            ),
            Node(4, "rows", "aten.embedding.default", (Ref(0), Ref(3)), type=dense(6, 8)),
        ),
        (4,),
    )
