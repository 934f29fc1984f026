"""Store the ends of aligned rows by a few lanes, in place of single elements of whole tiles."""

from __future__ import annotations

from dataclasses import replace

from ...graph.sizes import varies
from ...nests.linear_forms import Role, TileAxis
from ...nests.nest import Nest
from ..blocks import WORD, AlignedRows
from ..instructions import (
    Body,
    EndLanes,
    EndLoads,
    Ends,
    EpilogueSubtiles,
    Instruction,
    Reduce,
    RowEnds,
    TileCompute,
    TileLoad,
    TileLoop,
    TilePlace,
    TileRepeat,
    TileStore,
)
from ..program import TileProgram


def repeat_ends(program: TileProgram) -> TileProgram:
    """An aligned row begins and ends within vectors that are its neighbours', too. A tile has a
    store for each of its elements there, masked but for a few, and in a loop, or where the length
    varies, the compiler can leave none of them out. Here what is stored at the ends is loaded and
    computed once more, by as many lanes as a vector has elements. It is the same both times: of
    running values nothing is repeated, nor is anything where a kernel writes into what it reads."""
    rows, nest = program.blocks.aligned, program.nest
    if rows is None or any(access.at for access in nest.stores.values()):
        return program
    ends = _left(nest.axes[rows.axis])
    if not ends or any(isinstance(each, RowEnds) for each in program.body):
        return program
    return program.remembering(("ends", rows, ends), lambda: _repeated(program, rows, ends))


def _left(axis: TileAxis) -> Ends:
    """The ends that tiles along an axis leave. Of the blocks along a grid few have one. A tile that
    holds the row has its first vector in its first lanes: of a length that varies it stores that
    itself. Of one that is known all has fewer registers without that: of 39 kernels on an H200 the
    time is 0.95 of that of tiles that leave no ends, and 0.98 where they leave the last one."""
    match axis.role:
        case Role.LOOP:
            return "both"
        case Role.HELD:
            return "last" if varies(axis.extent) else "both"
    return ""


def _repeated(program: TileProgram, rows: AlignedRows, ends: Ends) -> Body:
    is_held = program.nest.axes[rows.axis].role is Role.HELD
    found = _Repeated(program.nest, rows.axis, is_held, ends)
    if is_held:
        body = found.less(program.body)
    else:
        body = tuple(
            replace(each, body=_of_vectors(found.less(each.body), ends))
            if isinstance(each, TileLoop) and each.axis == rows.axis
            else each
            for each in program.body
        )
    if not found.stores:
        return program.body
    lanes = EndLanes(rows.axis, max(WORD, rows.vector), ends)
    steps = [found.steps[value] for value in sorted(found.steps)]
    again = RowEnds(lanes, (*steps, *found.stores))
    # Of a length that is known the compiler has few registers too many, and these loads hold some.
    is_early = varies(program.nest.axes[rows.axis].extent)
    loads = [each for each in steps if isinstance(each, TileLoad) and _is_of_rows(each)]
    return (EndLoads(lanes, tuple(loads)), *body, again) if is_early else (*body, again)


class _Repeated:
    """What is stored at the ends of rows along an axis, and what that is computed of, by value."""

    def __init__(self, nest: Nest, axis: int, is_held: bool, ends: Ends) -> None:
        self.nest = nest
        self.axis = axis
        self.is_held = is_held
        self.ends = ends
        self.steps: dict[int, TileLoad | TileCompute] = {}
        self.stores: list[TileStore] = []

    def less(self, body: Body) -> Body:
        """A body whose stores leave these ends to the lanes that repeat them, where that can be."""
        found: list[Instruction] = []
        for each in body:
            steps = None
            if isinstance(each, TileStore) and each.rows == "aligned":
                steps = self._steps(body, self.nest.outputs[each.output].value)
            if isinstance(each, TileStore) and steps is not None:
                self.steps |= steps
                self.stores.append(each)
                each = replace(each, ends=self.ends)
            found.append(each)
        return tuple(found)

    def _steps(self, body: Body, stored: int) -> dict[int, TileLoad | TileCompute] | None:
        """The loads and computations of a body from which a value comes, back to what is there
        behind the body: after a loop what is computed before it, of a held row what does not vary
        along it. None where it comes from anything else."""
        there = {value: each for each in body for value in _given(each)}
        found: dict[int, TileLoad | TileCompute] = {}
        waiting = [stored]
        while waiting:
            value = waiting.pop()
            is_there = not self._varies(value) if self.is_held else value not in there
            if value in found or is_there:
                continue
            each = there.get(value)
            if isinstance(each, TileCompute):
                found[value] = each
                waiting += (
                    self.nest.values[value].reads if each.bits is None else [each.bits.source]
                )
            elif isinstance(each, TileLoad) and _is_plain(each):
                found[value] = replace(each, in_pairs=False)
                waiting += self.nest.values[value].reads
            else:
                return None
        return found

    def _varies(self, value: int) -> bool:
        return self.axis in self.nest.live[value]


def _of_vectors(body: Body, ends: Ends) -> Body:
    """A body whose loads leave the ends out, too, where it does nothing but compute what it
    stores without them."""
    if not all(isinstance(each, (TileLoad, TileCompute, TileStore)) for each in body):
        return body
    if any(isinstance(each, TileStore) and each.ends != ends for each in body):
        return body
    return tuple(
        replace(each, ends=ends) if isinstance(each, TileLoad) and each.rows == "aligned" else each
        for each in body
    )


def _is_plain(load: TileLoad) -> bool:
    """Whether any lanes can load it."""
    return load.place is TilePlace.REGISTERS and load.via is None and load.joined is None


def _is_of_rows(load: TileLoad) -> bool:
    """Whether the lanes alone say where it lies."""
    return load.rows in ("aligned", "apart", "copied") and not (
        load.access.at or load.access.guards
    )


def _given(each: Instruction) -> tuple[int, ...]:
    """The values that an instruction gives to those behind it."""
    match each:
        case TileStore() | EndLoads() | RowEnds() | EpilogueSubtiles():
            return ()
        case TileLoop(carries=carries):
            return carries
        case TileRepeat(sums=sums):
            return tuple(own.last for own in sums)
        case Reduce(value=value, joined=joined):
            return (value, *joined)
        case _:
            return (each.value,)
