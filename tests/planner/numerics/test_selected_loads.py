"""Tensors put together, read by one load whose address says which of them it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.instructions import SelectedLoad
from fusionplan.planner.tiles.tile import Around, tile
from fusionplan.planner.tiles.verify import verify
from oracle import captured, check, data, whole_group

pytestmark = pytest.mark.dynamo

BF16, F32 = torch.bfloat16, torch.float32
Inputs = list[torch.Tensor]


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def norm_and_products(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Every row of the weights times the normed row."""
    x = x.float() * torch.rsqrt(x.float().square().mean() + 1e-5)
    return (torch.cat(weights).float() * x).sum(-1)


def space(function: Callable[..., torch.Tensor], inputs: Inputs) -> Space:
    found = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(found, Space), found
    return found


def config(found: Space, layout: str, grid: int) -> Config:
    """A layout with blocks of this many rows, and of 32 along a loop."""
    own = next(each for each in found.schedules if each.reduction == layout and each.split == 1)
    axes = found.schedules[own].kernels[0].nest.axes
    sizes = {Role.GRID: grid, Role.LOOP: 32}
    blocks = tuple((a.name, sizes[a.role]) for a in axes if a.role in sizes)
    return Config(tuple(sorted(blocks)), num_warps=4, num_stages=1, reduction=own.reduction)


def selected(found: Space, chosen: Config) -> list[SelectedLoad]:
    program = tile(found.schedules[chosen.layout].kernels[0].nest, chosen)
    verify(program)
    return [each for each, _ in program.walk() if isinstance(each, SelectedLoad)]


@pytest.mark.parametrize("grid", [1, 4, 8, 16])
@pytest.mark.parametrize("layout", ["held", "loop"])
def test_each_row_is_read_once_from_the_tensor_that_has_it(layout: str, grid: int) -> None:
    inputs = [normal(96), *(normal(rows, 96) for rows in (24, 7, 10))]
    found = space(norm_and_products, inputs)
    chosen = config(found, layout, grid)
    (load,) = selected(found, chosen)
    assert [piece.input for piece in load.pieces] == [1, 2, 3]
    assert check(norm_and_products, inputs, [chosen]) == 1


def test_rows_of_other_strides_and_offsets() -> None:
    whole = normal(64, 200)
    inputs = [normal(96), whole[:20, 3:99], whole[20:60:2, :96], normal(9, 200)[:, :192:2]]
    found = space(norm_and_products, inputs)
    chosen = config(found, "held", 8)
    assert selected(found, chosen)
    assert check(norm_and_products, inputs, [chosen]) == 1


def side_by_side(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return torch.cat(weights, -1).float() * x.float().square().mean()


def with_a_narrow_one(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return side_by_side(x, *weights, weights[0][:, :4], weights[1][:, :4])


def padded(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    rows = torch.nn.functional.pad(torch.cat(weights), (0, 0, 2, 3))
    return (rows.float() * x.float()).sum(-1)


@pytest.mark.parametrize(
    "function, kept",
    [(norm_and_products, F32), (with_a_narrow_one, BF16), (padded, BF16)],
    ids=["two types", "one of narrower loads", "a border around"],
)
def test_what_is_no_one_load_is_read_as_before(
    function: Callable[..., torch.Tensor], kept: torch.dtype
) -> None:
    inputs = [normal(96), normal(8, 96), normal(8, 96, dtype=kept)]
    found = space(function, inputs)
    ranked = (chosen for chosen, _ in found.ranked(64))
    # In tiles of single columns no load of a piece is wide.
    configs = [c for c in ranked if dict(c.blocks).get("x1", 8) >= 8][:3]
    assert not any(selected(found, chosen) for chosen in configs)
    assert check(function, inputs, configs) == len(configs)


@pytest.mark.parametrize(
    "block, by_tile", [(8, True), (16, True), (32, False), (256, False)], ids=str
)
def test_channels_are_read_once_from_the_image_that_has_them(block: int, by_tile: bool) -> None:
    """By whole vectors. Where the blocks end as the pieces do a tile has one piece."""
    inputs = [normal(96), normal(5, 64), normal(5, 240)[:, :48], normal(5, 48), normal(5, 32)]
    found = space(side_by_side, inputs)
    best = found.ranked(1)[0][0]
    (rows, _), (columns, _) = best.blocks
    chosen = replace(best, blocks=((rows, 4), (columns, block)))
    (load,) = selected(found, chosen)
    assert len(load.pieces) == 4
    assert load.by_tile == by_tile
    assert check(side_by_side, inputs, [chosen]) == 1


def test_it_is_loaded_before_the_wait_if_no_tensor_of_it_is_written() -> None:
    inputs = [normal(96), normal(8, 96), normal(8, 96)]
    found = space(norm_and_products, inputs)
    chosen = config(found, "held", 4)
    nest = found.schedules[chosen.layout].kernels[0].nest

    def early(*unwritten: int) -> bool:
        head = tile(nest, chosen, Around(unwritten=frozenset(unwritten))).head
        return any(isinstance(each, SelectedLoad) for each in head)

    assert early(1, 2)
    assert not early(1)
    assert not early(0, 2)


def test_it_takes_the_registers_of_one_tensor() -> None:
    two = [normal(512), *(normal(64, 512) for _ in range(2))]
    one = [two[0], normal(128, 512)]

    def registers(inputs: Inputs) -> int:
        found = space(norm_and_products, inputs)
        cost = found.judge(config(found, "held", 8))
        assert isinstance(cost, Cost), cost
        return cost.registers

    assert registers(two) <= registers(one) + 4


def test_one_element_for_a_whole_tile() -> None:
    """Of an input that repeats one element a part of the tile is read, the rest masked."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 2, y, x]) + 1

    inputs = [data(1).expand(6), data(5, seed=1)]
    space = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(space, Space)
    assert check(function, inputs, list(space.enumerate())[:2])
