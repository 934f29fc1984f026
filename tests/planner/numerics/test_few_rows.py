"""Products with a few rows: padded to an mma, so that the rows share one read of what they are
multiplied by. The attention of one query, whose heads share keys and values, is made of them."""

from __future__ import annotations

import pytest
import torch
from fusionplan.bench.contractions import DecodeAttention
from fusionplan.planner.config import LOOP, Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.space.points import dot_sides
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.tile import tile
from oracle import captured, check, whole_group

pytestmark = [pytest.mark.dynamo, pytest.mark.usefixtures("few_ranked")]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Inputs = list[torch.Tensor]


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def cache(
    batch: int, heads: int, shared: int, keys: int, width: int, dtype: torch.dtype = BF16
) -> Inputs:
    """q of one query; k and v of `shared` heads."""
    shapes = [(batch, heads, 1, width), *[(batch, shared, keys, width)] * 2]
    return [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


def space(function, inputs: Inputs) -> Space:
    found = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(found, Space), found
    return found


def mmas(found: Space, config: Config) -> int:
    return len(tile(found.schedules[config.layout].kernels[0].nest, config).mmas)


def best(found: Space, by: str) -> Config:
    """The model's best config of a layout."""
    return next(c for c, _ in found.ranked(600) if c.layout.name.startswith(by))


def attention_up_to(q, k, v, lengths):
    """Keys count below the length of their sequence; a sequence of none gives NaN."""
    k, v = (DecodeAttention.repeated(x, q.shape[1]) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * 0.125
    here = torch.arange(k.shape[2])[None, None, None] < lengths[:, None, None, None]
    return torch.softmax(scores.masked_fill(~here, float("-inf")), -1).to(v.dtype) @ v


def by_einsum(q, k, v):
    q = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
    likely = torch.softmax(torch.einsum("bhgd,bhld->bhgl", q, k).float() * 0.125, -1)
    return torch.relu(torch.einsum("bhgl,bhld->bhgd", likely.to(v.dtype), v))


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("heads, shared", [(8, 2), (6, 2), (15, 1), (4, 4)])
def test_one_query_and_many_keys(heads: int, shared: int, dtype: torch.dtype) -> None:
    function, inputs = DecodeAttention(), cache(2, heads, shared, 100, 32, dtype)
    found = space(function, inputs)
    config = best(found, "loop")
    # Of float32 in full precision, padding would be arithmetic for nothing.
    assert mmas(found, config) == (2 if dtype != F32 and heads > shared else 0)
    assert check(function, inputs, [config]) == 1


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 129])
def test_any_number_of_keys(keys: int) -> None:
    function, inputs = DecodeAttention(), cache(1, 8, 2, keys, 16)
    found = space(function, inputs)
    assert check(function, inputs, [c for c, _ in found.ranked(2)])


def test_every_spelling_has_the_same_axes() -> None:
    inputs = cache(2, 8, 2, 64, 32)
    assert axes(by_einsum, inputs) == axes(DecodeAttention(), inputs)
    found = space(by_einsum, inputs)
    config = best(found, "loop")
    assert mmas(found, config) == 2
    assert check(by_einsum, inputs, [config]) == 1


def axes(function, inputs: Inputs) -> list[tuple[Role, tuple[int, ...]]]:
    """Roles and extents in the nest of one loop."""
    nest = space(function, inputs).schedules[LOOP].kernels[0].nest
    return [(axis.role, axis.extents) for axis in nest.axes]


def test_keys_of_a_length_that_lies_in_a_tensor() -> None:
    inputs = [*cache(4, 8, 2, 70, 16), torch.tensor([70, 1, 0, 33])]
    found = space(attention_up_to, inputs)
    config = best(found, "loop")
    assert mmas(found, config) == 2
    assert check(attention_up_to, inputs, [config]) == 1


def test_keys_are_split_where_sequences_are_few() -> None:
    function, inputs = DecodeAttention(), cache(1, 8, 2, 4096, 16)
    found = space(function, inputs)
    config = best(found, "loop/")
    assert found.ranked(1)[0][0].split > 1
    # No part has fewer keys than an mma.
    assert max(layout.split for layout in found.schedules) == 256
    assert mmas(found, config) == 2
    assert check(function, inputs, [config]) == 2


def test_a_few_rows_of_a_linear_layer_are_padded() -> None:
    def linear(x, w):
        return torch.relu(x @ w.t())

    inputs = [normal(3, 64, dtype=BF16, seed=0), normal(80, 64, dtype=BF16, seed=1)]
    found = space(linear, inputs)
    config = best(found, "loop")
    assert dict(config.blocks)["x0"] == 8
    assert mmas(found, config) == 1
    assert check(linear, inputs, [config]) == 1


def gated(x, gate, up, residual):
    return torch.nn.functional.silu(x @ gate.t()) * (x @ up.t()) + residual


def added(x, w, _, residual):
    return x @ w.t() + residual


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 32])
@pytest.mark.parametrize("function", [gated, added])
def test_few_rows_by_matrices_in_slices_and_whole(function, rows: int) -> None:
    """Of a matrix whose sizes no block divides, with one warp and several."""
    inputs = [normal(rows, 200, dtype=BF16, seed=0)]
    inputs += [normal(72, 200, dtype=BF16, seed=seed) for seed in (1, 2)]
    inputs.append(normal(rows, 72, dtype=BF16, seed=3))
    found = space(function, inputs)
    high = max(8, 1 << (rows - 1).bit_length())
    for wide, long, warps, slices in ((16, 128, 4, 4), (16, 64, 1, 1), (64, 64, 4, 1)):
        kernel = found.schedules[LOOP].kernels[0].nest
        few = next(a.name for a in kernel.axes if a.extent == rows)
        (other,) = (a.name for a in kernel.axes if a.role is Role.GRID and a.name != few)
        blocks = tuple(sorted(((few, high), (other, wide), ("r0", long))))
        config = Config(blocks, warps, 3, reduction="loop")
        each = tile(kernel, config).mmas.values()
        assert {(mma.few, mma.slices) for mma in each} == {(True, slices)}
        assert check(function, inputs, [config]) == 1


def test_a_matrix_times_a_few_columns_is_sliced_as_well() -> None:
    """The rows are the last axis of the result: nothing is to be swapped."""
    inputs = [normal(72, 200, dtype=BF16, seed=1), normal(5, 200, dtype=BF16, seed=0)]

    def function(w, x):
        return torch.relu(w @ x.t())

    found = space(function, inputs)
    config = Config((("r0", 128), ("x0", 16), ("x1", 8)), 4, 3, reduction="loop")
    (mma,) = tile(found.schedules[LOOP].kernels[0].nest, config).mmas.values()
    assert (mma.few, mma.swapped, mma.slices) == (True, False, 4)
    assert check(function, inputs, [config]) == 1


def test_what_has_few_of_everything_is_no_product_of_tiles() -> None:
    inputs = [normal(300, 3, 40, dtype=BF16, seed=0), normal(300, 40, 3, dtype=BF16, seed=1)]
    found = space(lambda x, y: torch.relu(x @ y), inputs)
    assert all(not dot_sides(each.kernels[0].nest) for each in found.schedules.values())
