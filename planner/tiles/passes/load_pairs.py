"""Load elements at even places and those at odd places of one row together.

A row is multiplied by numbers that lie two in a byte: the low bits of all bytes by the elements at
even places, the high ones by the others. Each of the two loads takes the row's lines of the cache,
two bytes for an instruction. Loaded as it lies, eight elements take one instruction, and are told
apart in the registers of the thread that has them.
"""

from __future__ import annotations

from dataclasses import replace

from ...nests.linear_forms import Affine, Role
from ..alignment import lies_by_steps
from ..instructions import Instruction, TileLoad, TilePlace
from ..program import TileProgram


def load_pairs(program: TileProgram) -> TileProgram:
    """Of tiles that are one row, held whole."""
    loads = [each for each in program.body if isinstance(each, TileLoad)]
    firsts = {_key(each): each for each in loads if _is_half(program, each)}
    pairs: dict[int, TileLoad] = {}
    for each in loads:
        first = firsts.get(_key(each, 1))
        if first is not None and _is_half(program, each) and first.value not in pairs:
            pairs[first.value] = each
    if not pairs:
        return program
    gone = {each.value for each in pairs.values()}
    order = {each.value: place for place, each in enumerate(loads)}
    late = {first for first, each in pairs.items() if order[each.value] < order[first]}
    if late or gone & pairs.keys():
        return program
    found: list[Instruction] = []
    for step in program.body:
        if isinstance(step, TileLoad) and step.value in pairs:
            found.append(replace(step, between=pairs[step.value].value))
        elif not (isinstance(step, TileLoad) and step.value in gone):
            found.append(step)
    return program.having(tuple(found))


def _key(each: TileLoad, less: int = 0) -> tuple[object, ...]:
    """What two loads of a pair have in common but for where they begin, which is `less` later."""
    offset = each.access.offset
    return each.input, Affine(offset.terms, offset.base - less), each.joined, each.hint


def _is_half(program: TileProgram, each: TileLoad) -> bool:
    """Whether it reads every second element of a row."""
    access, blocks = each.access, program.blocks
    plain = each.place is TilePlace.REGISTERS and not (each.via or each.rows or each.twice)
    if not plain or each.chosen is not None or access.at or access.guards:
        return False
    held = {*program.nest.with_role(Role.HELD)}
    dims = blocks.dims(access.axes)
    whole = all(
        axis in held and blocks.sizes[axis] == program.nest.axes[axis].extent for axis in dims
    )
    return bool(dims) and whole and lies_by_steps(access, dims, blocks, 2)
