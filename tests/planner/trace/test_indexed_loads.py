"""Loads by index: numbers in every layout against eager and float64, and how few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from corpus import graph_of, tensor
from fusionplan import executors
from fusionplan.backend import planner
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import partition
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import interpreted
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.values.values import Load
from oracle import DEVICE, captured, check, run_program, whole_group
from test_losses import verify as both
from test_numerics import configs, data, verify

pytestmark = pytest.mark.dynamo

Function = Callable[..., Any]


def places(*numbers: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def drawn(size: int, *shape: int, dtype: torch.dtype = torch.int64, seed: int = 3) -> torch.Tensor:
    """Places on an axis of that size, its ends among them."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, size, shape, generator=generator)
    found.view(-1)[0], found.view(-1)[-1] = size - 1, 0
    return found.to(DEVICE, dtype)


def parts(graph: Graph) -> list[tuple[int, ...]]:
    """The nodes of each kernel of the largest groups."""
    return [tuple(g) for g in partition(graph, frozenset())]


def alone(function: Function, inputs: list[torch.Tensor]) -> None:
    """One kernel in every layout, right in all, with nothing left to ATen."""
    graph = captured(function, inputs)[0].graph
    left = [n.op for n in graph.nodes if n.inputs and not is_compute(n) and "view" not in n.op]
    assert not [op for op in left if "index" in op or "gather" in op or "embedding" in op]
    verify(function, inputs)


LOOKUPS: dict[str, tuple[Function, Callable[[torch.dtype], list[torch.Tensor]]]] = {
    "embedding": (
        lambda w, i: F.embedding(i, w) * 2,
        lambda t: [data(37, 20), drawn(37, 9, dtype=t)],
    ),
    "padding_idx": (
        lambda w, i: F.embedding(i, w, padding_idx=4) + 1,
        lambda t: [data(37, 12), drawn(37, 5, dtype=t)],
    ),
    "index_select": (
        lambda x, i: torch.relu(x.index_select(1, i)),
        lambda t: [data(5, 37, 3), drawn(37, 11, dtype=t)],
    ),
    "gather": (
        lambda x, i: x.gather(1, i) + 1,
        lambda t: [data(5, 1100), drawn(1100, 4, 9, dtype=torch.int64)],
    ),
    "gather_outer": (
        lambda x, i: x.gather(0, i).exp(),
        lambda t: [data(37, 6), drawn(37, 9, 5, dtype=torch.int64)],
    ),
    "rows_of_a_batch": (
        lambda x, i: x.gather(1, i[:, None, None].expand(-1, 1, 16)).squeeze(1) * 3,
        lambda t: [data(5, 1100, 16), drawn(1100, 5, dtype=torch.int64)],
    ),
    "one_index": (
        lambda x, i: x[:, i] - 1,
        lambda t: [data(5, 37, 3), drawn(37, 6, dtype=t) - 20],
    ),
    "two_side_by_side": (
        lambda x, i, j: x[:, i, j].neg(),
        lambda t: [data(4, 37, 9), drawn(37, 5, 1, dtype=t), drawn(9, 3, dtype=t) - 4],
    ),
    "two_apart": (
        lambda x, i, j: x[i, :, j] * 2,
        lambda t: [data(9, 5, 37), drawn(9, 6, dtype=t), drawn(37, 6, dtype=t, seed=5)],
    ),
    "take": (
        lambda x, i: torch.take(x, i) + 1,
        lambda t: [data(6, 9), drawn(54, 3, 4, dtype=torch.int64) - 20],
    ),
    "transposed": (
        lambda x, i: x.t()[i].relu(),
        lambda t: [data(20, 37), drawn(37, 9, dtype=t)],
    ),
    "part_of_a_tensor": (
        lambda x, i: x[3:30:2, 1:][i].sigmoid(),
        lambda t: [data(37, 12), drawn(14, 9, dtype=t)],
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name: str) -> None:
    function, inputs = LOOKUPS[name]
    alone(function, inputs(torch.int64))


@pytest.mark.parametrize("name", ["padding_idx", "two_apart"])
def test_short_indices_of_bfloat16(name: str) -> None:
    function, inputs = LOOKUPS[name]
    given = [x.bfloat16() if x.is_floating_point() else x for x in inputs(torch.int32)]
    alone(function, given)


# --- what stands before and after ----------------------------------------------------------------

FUSED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "computed_index": (
        lambda w, i, m: F.embedding(torch.where(m, (i + 3).clamp(0, 36), 5), w).relu(),
        [data(37, 20), drawn(60, 4, 5) - 12, data(4, 5, seed=2) > 0],
    ),
    "relative_positions": (
        lambda x, w: torch.softmax(x + w[positions(9).clamp(-3, 3) + 3].permute(2, 0, 1), -1),
        [data(2, 9, 9), data(7, 2)],
    ),
    "joined": (
        lambda w, i, x: torch.cat((F.embedding(i, w), x), 0)[3:] * 2,
        [data(37, 20), drawn(37, 7), data(4, 20, seed=2)],
    ),
    "row_after_its_place": (
        lambda x, w: w[x.argmax(-1)] + x.amax(-1, keepdim=True),
        [data(6, 37), data(37, 9, seed=1)],
    ),
    "sum_of_rows": (
        lambda w, i: F.embedding(i, w).mean(1).tanh(),
        [data(37, 20), drawn(37, 4, 11)],
    ),
    "two_tables": (
        lambda w, i, u: F.rms_norm(F.embedding(i, w) * F.embedding(i, u), (20,)),
        [data(37, 20), drawn(37, 3, 7), data(37, 20, seed=4)],
    ),
}


def positions(n: int) -> torch.Tensor:
    i = torch.arange(n, device=DEVICE)
    return i[:, None] - i[None]


@pytest.mark.parametrize("name", FUSED)
def test_what_stands_around_a_lookup_is_in_its_kernel(name: str) -> None:
    alone(*FUSED[name])


def test_a_lookup_in_a_long_row_is_cut_over_the_grid() -> None:
    # Eighths: the interpreter sums columns one after the other, in which 8192 roundings show.
    table, index = (data(90, 3) * 8).round() / 8, drawn(90, 2, 8192)
    function = lambda w, i: F.embedding(i, w).sum(1)  # noqa: E731
    splits = {c.split for c in configs(function, [table, index])}
    assert max(splits) > 1
    alone(function, [table, index])


def test_rows_by_index_are_multiplied_by_tensor_cores() -> None:
    inputs = [data(90, 48), drawn(90, 40), data(48, 32, seed=1)]
    function = lambda w, i, x: F.embedding(i, w) @ x  # noqa: E731
    blocks = (("x0", 16), ("x1", 16), ("r0", 16))
    chosen = [Config(blocks, 4, 1, reduction=r) for r in ("held", "loop")]
    assert check(function, inputs, chosen) == 2


# --- places outside --------------------------------------------------------------------------


def run(function: Function, table: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
    """By the best config of the whole as one kernel; eager, which raises, sees other places."""
    inside = torch.zeros_like(index)
    found, given = captured(function, [table, inside])
    part = whole_group(found.graph)
    space = space_of(part.graph, H200)
    assert isinstance(space, Space), space
    program = lower(part.graph, space.seeds(50)[0][0], interpreted=interpreted())
    assert not isinstance(program, Refusal)
    assert len(program.kernels) == 1
    inputs = [index if x.data_ptr() == inside.data_ptr() else x for x in given]
    flat = dict(zip(found.graph.inputs, inputs, strict=True))
    return run_program(program, part, [flat[i] for i in part.inputs])


def test_an_index_outside_reads_nothing() -> None:
    table, index = data(37, 20), places(0, 37, 36, -1, 10**12)
    (mine,) = run(lambda w, i: F.embedding(i, w) * 2, table, index)
    assert mine[[1, 3, 4]].isnan().all()
    assert torch.equal(mine[[0, 2]], table[[0, 36]] * 2)
    (mine,) = run(lambda w, i: w[i] * 2, table, index.clamp_min(-38))
    assert torch.equal(mine[3], table[36] * 2)
    assert mine[[1, 4]].isnan().all()
    (mine,) = run(lambda w, i: w[i] + 0, torch.arange(1, 38, device=DEVICE), index)
    assert mine.tolist() == [1, 0, 37, 37, 0]


def test_an_index_that_lies_inside_is_not_checked() -> None:
    def checks(function: Function) -> list[bool]:
        graph = whole_group(graph_of(function, [tensor(37, 20)])).graph
        kinds = [value.kind for value in trace(graph).values]
        return [at.checked for kind in kinds if isinstance(kind, Load) for at in kind.at]

    def counted() -> torch.Tensor:
        return torch.arange(9, device="meta")

    assert checks(lambda w: w[counted() + 28].relu()) == [False]
    assert checks(lambda w: w[counted() - 37].relu()) == [False]
    assert checks(lambda w: w[(counted() * 9).clamp(0, 36)].relu()) == [False]
    assert checks(lambda w: w[counted() + 29].relu()) == [True]


def test_nothing_is_looked_up() -> None:
    table, nothing = data(37, 20), torch.zeros(0, 4, dtype=torch.int64, device=DEVICE)
    options = {"on_miss": "model", "evidence": "any"}
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda w, i: (F.embedding(i, w) * 2, w + 1), backend=planner, options=options
    )
    found, beside = compiled(table, nothing)
    assert found.shape == (0, 4, 20)
    assert torch.equal(beside, table + 1)
    assert sum(r.kernels_per_call * r.calls for r in executors(compiled)) == 1


def test_a_lookup_in_a_constant_is_beside_the_kernels() -> None:
    """It reads no memory, and no kernel holds it; its index is computed wherever it is read."""

    def function(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(6, device=DEVICE) + 1
        return torch.full((8, 4), 2.0, device=DEVICE)[place] * x + x.exp()

    x, options = data(6, 4), {"on_miss": "model", "evidence": "any"}
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=planner, options=options)
    torch.testing.assert_close(compiled(x), function(x))
    assert sum(r.kernels_per_call * r.calls for r in executors(compiled)) == 1


# --- what it costs, and plans --------------------------------------------------------------------


def test_the_bytes_of_a_lookup_are_those_of_its_rows() -> None:
    def cost(rows: int, places_: int) -> int:
        def function(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return F.embedding(i, w) + 1

        given = [tensor(rows, 1024), tensor(places_, dtype=torch.int64)]
        space = space_of(whole_group(graph_of(function, given)).graph, H200)
        assert isinstance(space, Space)
        return space.seeds(50)[0][1].hbm_bytes

    row, few, many = 4096, 512, 8192
    assert cost(100_000, few) == few * (2 * row + 8)
    assert cost(100_000, many) == many * (2 * row + 8)
    assert cost(100, many) == 100 * row + many * (row + 8)


class Embeddings(torch.nn.Module):
    """What a BERT begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.word = torch.nn.Embedding(97, 24, padding_idx=0)
        self.place = torch.nn.Embedding(16, 24)
        self.kind = torch.nn.Embedding(2, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.dense = torch.nn.Linear(24, 8)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        total = self.word(ids) + self.place(place) + self.kind(kinds)
        return self.dense(self.norm(total).relu())


def test_what_a_bert_begins_with_is_one_kernel() -> None:
    torch.manual_seed(0)
    model = Embeddings().to(DEVICE).eval()
    ids, kinds = drawn(97, 3, 11), drawn(2, 3, 11)
    with torch.no_grad():
        graph = captured(model, [ids, kinds])[0].graph
    compute = [[graph.nodes[n].op for n in g if is_compute(graph.nodes[n])] for g in parts(graph)]
    assert [sum("embedding" in op for op in ops) for ops in compute if len(ops) > 1] == [3]


def test_gradients_scatter_by_aten_and_the_rest_fuses() -> None:
    table, index = data(37, 20).requires_grad_(), drawn(37, 7)
    scale = data(20, seed=1).requires_grad_()
    runner = both(
        lambda w, i, s: (w[i] * s).relu().mean(-1),
        [table, index, scale],
        ["aten.index_put.default"],
    )
    assert runner.kernels == sum(len(parts(g.graph)) for g in runner.graphs) * runner.layouts
    assert len(parts(runner.graphs[0].graph)) == 1
