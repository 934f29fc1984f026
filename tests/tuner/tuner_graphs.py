"""Small groups to tune."""

from fusionplan.planner.graph import Graph, Node, Ref, TensorType


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
