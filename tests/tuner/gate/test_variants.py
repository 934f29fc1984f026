"""The gate of kernels in every way they run: new inputs, odd addresses, the edges of a bucket."""

from types import SimpleNamespace

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.graph import graph as graphs
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, varying_to_json
from fusionplan.planner.graph.sizes import Size
from fusionplan.tuner.gate.bucket_edges import edge, edges
from fusionplan.tuner.measure import measure_role as bench_module
from fusionplan.tuner.measure.measure_role import MeasureRole
from fusionplan.tuner.measure.timing import Timer, stopwatch_for
from fusionplan.tuner.trial.inputs import make, shifted
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.trial.running import Loaded, LoadedKernels
from tuner_graphs import dense

CPU = torch.device("cpu")


def doubled(rows: int = 24, dtype: str = "float32") -> Graph:
    """x + x."""
    t = TensorType((rows, 16), (16, 1), dtype)
    nodes = Node(0, "x", "input", type=t), Node(1, "y", "aten.add.Tensor", (Ref(0), Ref(0)), type=t)
    return Graph(nodes, (1,))


def right(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x + x)


def wrong(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x + x + 1)


class Launcher:
    """Two variants of a kernel of x and its result."""

    takes_tensors = True
    source = SimpleNamespace(
        buffers=[SimpleNamespace(kind="in", index=0), SimpleNamespace(kind="out", index=0)]
    )

    def __init__(self, aligned, unaligned):
        self.aligned = lambda stream, x, out: aligned(x, out)
        self.unaligned = lambda stream, x, out: unaligned(x, out)


def kernels(aligned, unaligned=None) -> Loaded:
    made = LoadedKernels.__new__(LoadedKernels)
    made.program, made.device = (
        SimpleNamespace(temporaries=(), placed=lambda inputs, outputs: outputs),
        CPU,
    )
    made.launchers = [Launcher(aligned, unaligned or aligned)]
    return Loaded(made.bind, made)


@pytest.fixture
def ask(monkeypatch):
    """Sends a request to a bench whose candidates are these kernels, in order."""

    def sent(do: str, group: Graph, *loaded: Loaded):
        candidates = [Candidate("triton", Config((("x0", 2**i),))) for i in range(len(loaded))]
        known = dict(zip(candidates, loaded, strict=True))
        monkeypatch.setattr(bench_module, "load", lambda group, candidate, device: known[candidate])
        timer = Timer(stopwatch_for(CPU), least=2, most=2, overhead_s=0.0)
        request = {"do": do, "group": graphs.to_json(group, varying_to_json), "budget_s": 0.01}
        data = [c.to_json() for c in candidates]
        return MeasureRole(CPU, timer, 1 << 30).handle(
            request | {"candidates": data, "candidate": data[0]}
        )

    return sent


def test_a_kernel_that_is_right_wins(ask):
    found = ask("duel", doubled(), kernels(right))
    assert found["best"] == 0
    assert found["outcomes"][0]["outcome"] == "timed"


def test_a_wrong_variant_for_odd_addresses_is_found(ask):
    found = ask("duel", doubled(), kernels(right, wrong))
    assert found["best"] is None
    assert found["outcomes"][0]["outcome"] == "wrong"
    assert "on unaligned inputs" in found["outcomes"][0]["reason"]


def test_the_next_of_the_finalists_wins_instead(ask):
    def slow(x, out):
        for _ in range(50):
            right(x, out)

    found = ask("duel", doubled(), kernels(right, wrong), kernels(slow))
    assert found["best"] == 1
    assert [o["outcome"] for o in found["outcomes"]] == ["wrong", "timed"]


def test_finalists_meet_inputs_that_the_search_did_not_use(ask):
    group = doubled()
    searched = [make(group, "random", CPU, seed=0)[0]]

    def by_heart(x, out):
        (right if torch.equal(x, searched[0]) else wrong)(x, out)

    found = ask("duel", group, kernels(by_heart))
    assert found["best"] is None
    assert "on fresh inputs" in found["outcomes"][0]["reason"]


def test_integers_that_a_kernel_does_not_write_are_found(ask):
    def most(x, out):
        out.view(-1)[:-2] = (x + x).view(-1)[:-2]

    found = ask("measure", doubled(dtype="int64"), kernels(most))
    assert found["outcome"] == "wrong"
    assert "output 0: 2 of 384 elements were not written" in found["reason"]
    assert ask("measure", doubled(dtype="int64"), kernels(right))["outcome"] == "timed"


def test_minus_one_may_be_written(ask):
    t = dense(4, 8, dtype="int64")
    group = Graph(
        (
            Node(0, "x", "input", type=t),
            Node(1, "zero", "aten.mul.Scalar", (Ref(0), 0), type=t),
            Node(2, "y", "aten.sub.Scalar", (Ref(1), 1), type=t),
        ),
        (2,),
    )
    found = ask("measure", group, kernels(lambda x, out: out.fill_(-1)))
    assert found["outcome"] == "timed"


def varying(rows: int) -> Graph:
    return doubled(Size(rows, (101, 211), 16 if rows % 16 == 0 else 1))


@pytest.mark.parametrize(
    "rows, ends", [(24, (17, 31)), (48, (48, 64)), (33, (33, 63)), (5, (5, 8))]
)
def test_a_bucket_ends_at_its_smallest_and_largest_sizes(rows, ends):
    assert (edge(rows, largest=False), edge(rows, largest=True)) == ends
    assert edges(doubled(rows)) == {}
    shapes = [g.nodes[1].type.shape[0] for g in edges(varying(rows)).values()]
    assert shapes == [n for n in ends if n != rows]


def test_a_number_that_follows_from_no_size_leaves_no_edges():
    t = TensorType((Size(24, (101, 211)), Size(7, (50, 3))), (Size(7, (50, 3)), 1), "float32")
    o = TensorType((Size(25, (9, 4)),), (1,), "float32")
    nodes = Node(0, "x", "input", type=t), Node(1, "y", "aten.mul.Tensor", (Ref(0), Ref(0)), type=o)
    assert edges(Graph(nodes, (1,))) == {}


@pytest.mark.parametrize("at", [17, 31])
def test_a_kernel_that_is_wrong_at_the_edge_of_its_bucket_only(ask, at):
    def edgy(x, out):
        (wrong if len(x) == at else right)(x, out)

    assert ask("duel", varying(24), kernels(right))["best"] == 0
    found = ask("duel", varying(24), kernels(edgy))
    assert found["best"] is None
    end = "smallest" if at == 17 else "largest"
    assert f"on random ({end} sizes of the bucket) inputs" in found["outcomes"][0]["reason"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_shifted_tensors_lie_at_odd_addresses(dtype):
    for tensor in (torch.ones(3, 5).to(dtype), torch.ones(3, 5).to(dtype).t(), torch.ones(0, 2)):
        found = shifted(tensor)
        assert torch.equal(found, tensor)
        assert found.stride() == tensor.stride()
        assert not found.numel() or found.data_ptr() % 16
