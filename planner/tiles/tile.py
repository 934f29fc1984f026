"""The passes in order: from a nest and a config to the tile program of a kernel.

A pass takes the program and, by name, the numbers of the config that it reads; it cannot read
others. Configs of a nest mostly differ in a few of those numbers: what the first passes make of the
same ones is the same object, and so is what the cost model has counted of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ..config import Config
from ..memo import by_identity
from ..nests.nest import Nest
from .passes.align_rows import align_rows
from .passes.assign_programs import assign_programs
from .passes.choose_access import choose_access
from .passes.choose_correction_accuracy import choose_correction_accuracy
from .passes.choose_mma_unit import choose_mma_unit
from .passes.compensate_long_sums import compensate_long_sums
from .passes.duplicate_raced_loads import duplicate_raced_loads
from .passes.end_empty_programs import end_empty_programs
from .passes.extract_bits import extract_bits
from .passes.fill_beyond_rows import fill_beyond_rows
from .passes.flush_summed_exponentials import flush_summed_exponentials
from .passes.hint_caches import hint_caches
from .passes.join_reductions import join_reductions
from .passes.join_short_rows import join_short_rows
from .passes.keep_operands_shared import keep_operands_shared
from .passes.leave_out_parts import leave_out_parts
from .passes.load_before_meeting import load_before_meeting
from .passes.load_before_wait import load_before_wait
from .passes.load_pairs import load_pairs
from .passes.load_repeated_once import load_repeated_once
from .passes.load_together import load_together
from .passes.multiply_in_pairs import multiply_in_pairs
from .passes.overlap_kernels import overlap_kernels
from .passes.part_ends import part_ends
from .passes.pipeline_loops import pipeline_loops
from .passes.place_blocks import place_blocks
from .passes.repeat_ends import repeat_ends
from .passes.repeat_rows import repeat_rows
from .passes.reverse_second_sweep import reverse_second_sweep
from .passes.round_cancelled_products import round_cancelled_products
from .passes.select_addresses import select_addresses
from .passes.select_mma import select_mma
from .passes.select_ones_mma import select_ones_mma
from .passes.share_states import share_states
from .passes.shift_squares import shift_squares
from .passes.slice_mmas import slice_mmas
from .passes.split_ends import split_ends
from .passes.split_epilogue import split_epilogue
from .passes.sum_in_quads import sum_in_quads
from .passes.swap_mmas import swap_mmas
from .passes.unpack_pairs import unpack_pairs
from .passes.unroll_loops import unroll_loops
from .passes.widen_storing_loops import widen_storing_loops
from .program import TileProgram

Pass = Callable[..., TileProgram]

PASSES: tuple[Pass, ...] = (
    place_blocks,
    select_mma,
    select_ones_mma,
    align_rows,
    select_addresses,
    extract_bits,
    share_states,
    keep_operands_shared,
    swap_mmas,
    slice_mmas,
    choose_mma_unit,
    pipeline_loops,
    duplicate_raced_loads,
    split_epilogue,
    widen_storing_loops,
    assign_programs,
    round_cancelled_products,
    multiply_in_pairs,
    choose_correction_accuracy,
    flush_summed_exponentials,
    compensate_long_sums,
    shift_squares,
    sum_in_quads,
    join_reductions,
    choose_access,
    join_short_rows,
    load_pairs,
    unpack_pairs,
    load_repeated_once,
    repeat_rows,
    reverse_second_sweep,
    split_ends,
    fill_beyond_rows,
    part_ends,
    repeat_ends,
    hint_caches,
    leave_out_parts,
    overlap_kernels,
    load_before_wait,
    load_before_meeting,
    load_together,
    end_empty_programs,
    unroll_loops,
)
"""Each is given what those before it have decided."""


@dataclass(frozen=True, slots=True)
class Around:
    """The kernels around one of several."""

    later: bool = False
    """It is not the first: another kernel runs before it."""
    again: frozenset[int] = frozenset()
    """Inputs that a later one reads."""
    unwritten: frozenset[int] = frozenset()
    """Inputs that no kernel writes that may still run when this one begins."""


ALONE = Around()
BY_NAME = {one.__name__: one for one in PASSES}
_MOST = 1 << 12
_AROUND = frozenset(("later", "again", "unwritten"))


def _named(one: Pass) -> tuple[str, ...]:
    """The numbers that a pass reads."""
    return tuple(inspect.signature(one).parameters)[1:]


_READS = {one: _named(one) for one in PASSES}
_READ_TILL = {
    one: tuple({name: None for each in PASSES[: place + 1] for name in _READS[each]})
    for place, one in enumerate(PASSES)
}
_BEFORE = dict(zip(PASSES[1:], PASSES, strict=False))
_KEYS = {one: attrgetter(*names) for one, names in _READ_TILL.items() if _AROUND.isdisjoint(names)}
"""Of the passes up to one of them, the numbers of a config that they read."""


def tile(
    nest: Nest, config: Config, around: Around = ALONE, without: Collection[Pass] = ()
) -> TileProgram:
    """The tile program of a kernel by all passes but those left out. Raises Refused when the config
    does not fit the nest."""
    *_, (_, program) = passed(nest, config, around, without)
    return program


def passed(
    nest: Nest, config: Config, around: Around = ALONE, without: Collection[Pass] = ()
) -> Iterator[tuple[Pass, TileProgram]]:
    """Every pass with the program that it leaves. Raises Refused as `tile` does."""
    given: Nest | TileProgram = nest
    for one in PASSES:
        if one not in without:
            given = program = _run(one, given, config, around)
            yield one, program


def tiled(nest: Nest, config: Config, after: Pass) -> TileProgram:
    """The program between passes: the same object for configs that agree in what the passes up to
    this one read. Raises Refused as `tile` does."""
    known, key = _known(nest), (after, _KEYS[after](config))
    found = known.get(key)
    if found is None:
        before = _BEFORE.get(after)
        given = nest if before is None else tiled(nest, config, before)
        if len(known) >= _MOST:
            known.clear()
        found = known[key] = _run(after, given, config, ALONE)
    return found


def _run(one: Pass, given: TileProgram | Nest, config: Config, around: Around) -> TileProgram:
    numbers = {n: getattr(around if n in _AROUND else config, n) for n in _READS[one]}
    return one(given, **numbers)


@by_identity(64)
def _known(nest: Nest) -> dict[Any, TileProgram]:
    """By the pass, and what was read till then."""
    return {}
