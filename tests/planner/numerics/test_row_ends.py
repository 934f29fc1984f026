"""The ends of rows that begin anywhere, computed once more, or apart from the tiles of a held row
whose length varies: the same numbers as where every tile stores its ends itself, bit by bit but for
sums of parts, and nothing beside the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from corpus import graph_of
from fusionplan.planner.codegen.interpreter import InterpreterPrinter
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.sizes import size, varies
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.launch import Launcher
from fusionplan.planner.tiles.passes.part_ends import part_ends
from fusionplan.planner.tiles.passes.repeat_ends import repeat_ends
from graphs import Builder, dense
from oracle import DEVICE, assert_close, whole_group

pytestmark = pytest.mark.interpreter

ROWS = 5
AROUND = 32
"""Elements before and behind the rows of a result."""

DTYPES = ["float32", "bfloat16", "float16", "int8", "uint8", "int16", "int32"]
VECTOR = 8
"""Elements of 16 bits."""


def varying(columns: int) -> int:
    """A length of which a kernel knows nothing, not even whether 16 divides it."""
    return size(columns, (1009, 2027))


def held(columns: int) -> Config:
    """With room for what lies before a row, as configs for lengths that vary name it."""
    return Config((("r0", 1 << (columns + 15).bit_length()), ("x0", 1)), num_stages=1)


def looped(columns: int) -> Config:
    return Config((("r0", 16), ("x0", 1)), num_stages=1, reduction="loop")


def softmax(columns: int, dtype: str = "bfloat16") -> Graph:
    b = Builder()
    x = b.input(ROWS, columns, dtype=dtype)
    top = b.op("amax.default", x, (1,), True, shape=(ROWS, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    return b.graph(b.op("div.Tensor", e, b.op("sum.dim_IntList", e, (1,), True, shape=(ROWS, 1))))


def below_the_largest(columns: int, dtype: str) -> Graph:
    b = Builder()
    x = b.input(ROWS, columns, dtype=dtype)
    return b.graph(b.op("sub.Tensor", x, b.op("amax.default", x, (1,), True, shape=(ROWS, 1))))


def two_results(columns: int) -> Graph:
    """Of one that is stored in 16 bits and one in 32 the vectors differ; a weight begins elsewhere
    than the rows."""
    b = Builder()
    x, y = b.input(ROWS, columns, dtype="bfloat16"), b.input(ROWS, columns)
    low = b.op("sub.Tensor", x, b.op("amax.default", x, (1,), True, shape=(ROWS, 1)))
    high = b.node("aten.mul.Tensor", (y, low), dense(ROWS, columns))
    return b.graph(low, b.op("mul.Tensor", high, b.input(columns)))


def widened(columns: int) -> Graph:
    """Vectors of what is read have more elements than those of what is stored."""
    b = Builder()
    x = b.input(ROWS, columns, dtype="bfloat16")
    low = b.op("sub.Tensor", x, b.op("amax.default", x, (1,), True, shape=(ROWS, 1)))
    return b.graph(b.node("aten.mul.Tensor", (b.input(ROWS, columns), low), dense(ROWS, columns)))


def inputs_of(graph: Graph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    kinds = [graph.nodes[i].type for i in graph.inputs]
    drawn = [(torch.randn(kind.shape) * 20).to(getattr(torch, kind.dtype)) for kind in kinds]
    return [x.to(DEVICE) for x in drawn]


def ran(
    graph: Graph, config: Config, inputs: Sequence[torch.Tensor]
) -> tuple[str, list[torch.Tensor]]:
    """The text of the one kernel, and its results, beside which nothing was written."""
    part = whole_group(graph)
    (kernel,) = lower(part.graph, config, interpreted=True).kernels
    results, memory = [], []
    for output in part.graph.outputs:
        kind = part.graph.nodes[output].type
        dtype = getattr(torch, kind.dtype)
        memory.append(torch.full((kind.numel + 2 * AROUND,), 7, device=DEVICE, dtype=dtype))
        results.append(memory[-1][AROUND : AROUND + kind.numel].view(kind.shape))
    tensors = {"in": inputs, "out": results}
    given = [tensors[b.kind][b.index] for b in kernel.buffers]
    Launcher(kernel, torch.device(DEVICE)).aligned(0, *given)
    for whole in memory:
        assert (whole[:AROUND] == 7).all()
        assert (whole[-AROUND:] == 7).all()
    return kernel.text, results


def compared(
    graph: Graph, config: Config, inputs: Sequence[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """The results, which are the same where every tile stores its ends itself."""
    text, results = ran(graph, config, inputs)
    is_held = config.reduction != "loop"
    is_parted = is_held and any(varies(graph.nodes[i].type.shape[-1]) for i in graph.inputs)
    assert "r0_end_lane" in text
    assert ("the ends once more" in text) != is_parted
    with monkeypatch.context() as patch:
        passes = part_ends, repeat_ends
        patch.setattr(InterpreterPrinter, "left_out", (*InterpreterPrinter.left_out, *passes))
        text, wanted = ran(graph, config, inputs)
    assert "r0_end_lane" not in text
    for mine, other in zip(results, wanted, strict=True):
        if is_parted and "tl.sum" in text:  # Numbers are added in another order.
            torch.testing.assert_close(mine, other, equal_nan=True)
            continue
        assert torch.equal(
            mine.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
        )
    return results


@pytest.mark.parametrize("columns", [*range(2, 2 * VECTOR + 2), 24, 37, 48, 53])
@pytest.mark.parametrize("config", [held, looped])
def test_rows_of_every_length(
    columns: int, config: Callable[[int], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than a vector, ending with one, and of several blocks; the length varies."""
    graph = softmax(varying(columns))
    inputs = inputs_of(graph)
    (mine,) = compared(graph, config(columns), inputs, monkeypatch)
    exact = inputs[0].double().softmax(-1)
    assert_close(mine, exact, exact.to(torch.bfloat16), str(columns))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", [held, looped])
@pytest.mark.parametrize("columns", [11, 37])
def test_every_dtype(
    columns: int, config: Callable[[int], Config], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = below_the_largest(varying(columns), dtype)
    inputs = inputs_of(graph)
    (mine,) = compared(graph, config(columns), inputs, monkeypatch)
    x = inputs[0].double() if inputs[0].is_floating_point() else inputs[0]
    exact = x - x.amax(-1, keepdim=True)
    assert_close(mine, exact.double(), exact.to(mine.dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [9, 37, 65])
def test_a_length_that_is_known(columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = softmax(columns, dtype)
    for config in (looped(columns), Config((("x0", 1),), num_stages=1)):
        compared(graph, config, inputs_of(graph), monkeypatch)


@pytest.mark.parametrize("config", [held, looped])
def test_programs_that_walk_over_rows(
    config: Callable[[int], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = softmax(varying(37))
    walking = replace(config(37), programs=2, num_stages=3)
    compared(graph, walking, inputs_of(graph), monkeypatch)


@pytest.mark.parametrize("config", [held, looped])
@pytest.mark.parametrize("columns", [3, 5, 7, 12, 37, 40])
def test_two_results_whose_vectors_differ(
    columns: int, config: Callable[[int], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = two_results(varying(columns))
    inputs = inputs_of(graph)
    low, high = compared(graph, config(columns), inputs, monkeypatch)
    x, y, w = (each.double() for each in inputs)
    exact = x - x.amax(-1, keepdim=True)
    assert_close(low, exact, exact.to(torch.bfloat16), "low")
    assert_close(high, y * exact * w, (y * exact * w).float(), "high")


@pytest.mark.parametrize("config", [held, looped])
@pytest.mark.parametrize("columns", [7, 12, 13, 37, 39])
def test_a_result_with_shorter_vectors_than_what_is_read(
    columns: int, config: Callable[[int], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tile stores what it has not read."""
    graph = widened(varying(columns))
    inputs = inputs_of(graph)
    (mine,) = compared(graph, config(columns), inputs, monkeypatch)
    x, y = (each.double() for each in inputs)
    exact = y * (x - x.amax(-1, keepdim=True))
    assert_close(mine, exact, exact.float(), str(columns))


def sums(columns: int, dtype: str) -> Graph:
    """Beyond the row the elements of one are 0 as they are read, those of others are not."""
    b = Builder()
    x = b.input(ROWS, columns, dtype=dtype)

    def total(value: object) -> object:
        return b.op("sum.dim_IntList", value, (1,), True, shape=(ROWS, 1))

    low = b.op("sub.Tensor", x, b.op("amin.default", x, (1,), True, shape=(ROWS, 1)))
    parts = [b.op("mul.Tensor", x, x), b.op("mul.Tensor", low, low), b.op("add.Tensor", x, 30.0)]
    first, second, third = map(total, parts)
    both = b.op("add.Tensor", b.op("add.Tensor", first, second), third)
    return b.graph(b.op("div.Tensor", x, both))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [3, 9, 37, 48])
def test_sums_of_what_is_zero_beyond_the_row_and_of_what_is_not(
    columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = sums(varying(columns), dtype)
    inputs = inputs_of(graph)
    (mine,) = compared(graph, held(columns), inputs, monkeypatch)
    x = inputs[0].double()
    low = x - x.amin(-1, keepdim=True)
    exact = x / (x * x + low * low + x + 30.0).sum(-1, keepdim=True)
    assert_close(mine, exact, exact.to(inputs[0].dtype), f"{columns} {dtype}")


@pytest.mark.parametrize("columns", [3, 9, 37, 48])
def test_sums_of_rows_of_which_nothing_is_stored(columns: int) -> None:
    b = Builder()
    x, y = (b.input(ROWS, varying(columns), dtype="bfloat16") for _ in range(2))
    total = b.op("sum.dim_IntList", b.op("mul.Tensor", x, y), (1,), True, shape=(ROWS, 1))
    graph = b.graph(total)
    inputs = inputs_of(graph)
    text, (mine,) = ran(graph, held(columns), inputs)
    assert "r0_end_in" in text
    exact = (inputs[0].double() * inputs[1].double()).sum(-1, keepdim=True)
    assert_close(mine, exact, exact.to(torch.bfloat16), str(columns))


@pytest.mark.parametrize("config", [held, looped])
def test_what_is_no_number_stays_in_its_row(
    config: Callable[[int], Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the ends of a row, and in its neighbours."""
    graph = softmax(varying(37))
    (x,) = inputs_of(graph)
    x[0], x[2, 0], x[2, -1], x[4] = float("nan"), float("inf"), float("nan"), float("-inf")
    (mine,) = compared(graph, config(37), [x], monkeypatch)
    assert torch.equal(mine.isnan(), x.softmax(-1).isnan())
    assert mine[1::2].isfinite().all()


def placed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is stored depends on the place, too."""
    place = torch.arange(x.shape[1], device=x.device)
    scaled = x.float() / x.float().amax(-1, keepdim=True) * w
    return torch.where(place % 3 == 0, scaled, place.float()), scaled.to(x.dtype)


def test_a_function_of_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(ROWS, 37, device=DEVICE).bfloat16(), torch.randn(37, device=DEVICE)]
    mine, _ = compared(graph_of(placed, inputs), looped(37), inputs, monkeypatch)
    assert torch.equal(mine[:, 1::3], torch.arange(37.0, device=DEVICE)[1::3].expand(ROWS, -1))


def test_of_running_sums_nothing_is_done_again() -> None:
    """The last one is not known of the last elements alone."""
    b = Builder()
    x = b.input(ROWS, varying(37))
    top = b.op("amax.default", x, (1,), True, shape=(ROWS, 1))
    graph = b.graph(b.op("cumsum.default", b.op("sub.Tensor", x, top), 1))
    inputs = inputs_of(graph)
    for config in (held(37), looped(37)):
        text, (mine,) = ran(graph, config, inputs)
        assert "r0_skip" in text
        assert "r0_end_lane" not in text
        exact = (inputs[0].double() - inputs[0].double().amax(-1, keepdim=True)).cumsum(-1)
        assert_close(mine, exact, exact.float(), str(config))


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


@pytest.mark.parametrize("columns", [12, 16, 40, 64])
def test_of_rows_of_whole_vectors_the_last_block_alone_is_masked(columns: int) -> None:
    """Infinities and NaN in that block, and elements that are large and near each other."""
    x = torch.randn(ROWS, columns)
    x[1, -1], x[2, -1], x[3] = float("inf"), float("nan"), x[3] + 1000.0
    text, (mine,) = ran(graph_of(norm, [x]), looped(columns), [x.to(DEVICE)])
    assert ("r0_in" in text) == (columns % 16 > 0)
    loads = [line for line in text.splitlines() if "tl.load" in line]
    assert any("mask" not in line for line in loads) == (columns >= 16)
    exact = norm(x.double())
    torch.testing.assert_close(mine.cpu().double(), exact, rtol=1e-4, atol=1e-4, equal_nan=True)
