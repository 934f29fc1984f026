"""Kernels for all lengths of rows: one text and right numbers where 16 divides the length, too."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.config import Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.sizes import size
from fusionplan.planner.lower import lower, schedule_of
from fusionplan.planner.runtime.machine_code.compile import Target, code_key_of
from fusionplan.planner.runtime.machine_code.launch import Launcher
from graphs import Builder
from oracle import DEVICE, whole_group

pytestmark = pytest.mark.interpreter

ROWS = 5
HELD = Config((("r0", 64), ("x0", 1)), num_stages=1, anywhere=True)
SEVERAL = Config((("r0", 64), ("x0", 4)), num_stages=1, anywhere=True)
LOOP = Config((("r0", 16), ("x0", 1)), num_stages=1, reduction="loop", anywhere=True)


def softmax(columns: int) -> Graph:
    b = Builder()
    length = size(columns, (1009, 2027), 16 if columns % 16 == 0 else 1)
    x = b.input(ROWS, length, dtype="bfloat16")
    top = b.op("amax.default", x, (1,), True, shape=(ROWS, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    return b.graph(b.op("div.Tensor", e, b.op("sum.dim_IntList", e, (1,), True, shape=(ROWS, 1))))


def kernel(columns: int, config: Config, interpreted: bool = True):
    part = whole_group(softmax(columns)).graph
    (found,) = lower(part, config, interpreted=interpreted).kernels
    return found


@pytest.mark.parametrize("config", [HELD, SEVERAL, LOOP], ids=["held", "several", "loop"])
def test_one_kernel_is_right_for_all_lengths(config: Config) -> None:
    torch.manual_seed(0)
    known = set()
    for columns in (9, 16, 48, 50, 56, 57, 64):
        found = kernel(columns, config)
        x = torch.randn(ROWS, columns, device=DEVICE, dtype=torch.bfloat16)
        memory = torch.full((ROWS * columns + 64,), 7.0, device=DEVICE, dtype=torch.bfloat16)
        result = memory[32:-32].view(ROWS, columns)
        given = {"in": x, "out": result}
        Launcher(found, torch.device(DEVICE)).aligned(0, *(given[b.kind] for b in found.buffers))
        torch.testing.assert_close(result, x.softmax(-1), rtol=1e-2, atol=1e-3)
        assert (memory[:32] == 7).all()
        assert (memory[-32:] == 7).all()
        known.add(code_key_of(found, Target(), aligned=True))
    assert len(known) == 1


def test_a_kernel_that_knows_a_length_is_another() -> None:
    own = Config(HELD.blocks, num_stages=1)

    def is_same(columns: int) -> bool:
        one, other = (code_key_of(kernel(columns, c), Target(), aligned=True) for c in (own, HELD))
        return one == other

    assert is_same(57)
    assert not is_same(48)


@pytest.mark.parametrize(
    "columns, aligned", [(56, True), (57, True), (58, True), (59, False), (60, True), (64, True)]
)
def test_a_tile_has_room_for_what_lies_before_its_rows(columns: int, aligned: bool) -> None:
    """Of 64 lanes and vectors of 8: none before rows of 56 and 64, up to 7 of 57."""
    found = kernel(columns, HELD, interpreted=False)
    assert ("r0_skip" in found.text) is aligned


def test_what_has_no_kernel_says_so() -> None:
    part = whole_group(softmax(48)).graph
    nested = Config(HELD.blocks, reduction="nested", anywhere=True)
    assert isinstance(schedule_of(part, nested), Refusal)
