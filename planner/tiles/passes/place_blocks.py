"""Give the axes their block sizes, and write the nest's items as instructions, in their order."""

from __future__ import annotations

from dataclasses import replace

from ...memo import by_identity
from ...nests import placement as place
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...stream.online import Correction
from ...values import values
from ..blocks import Blocks, Sizes
from ..instructions import (
    Body,
    Instruction,
    Reduce,
    Rows,
    TileCompute,
    TileLoad,
    TileLoop,
    TileScan,
    TileStore,
    Welford,
)
from ..program import TileProgram


def place_blocks(nest: Nest, *, blocks: Sizes) -> TileProgram:
    """The program that every other pass changes. Raises Refused when they name no block for
    an axis."""
    return TileProgram(nest, Blocks.of(nest, blocks), _placed(nest))


@by_identity(64)
def _placed(nest: Nest) -> Body:
    return _body(nest, nest.body, None)


def _body(nest: Nest, body: place.NestBody, around: place.NestLoop | None) -> Body:
    return tuple(_instruction(nest, item, around) for item in body)


def _instruction(nest: Nest, item: place.Item, around: place.NestLoop | None) -> Instruction:
    match item:
        case place.NestLoop(axis=axis, carries=carries, body=body, by_lane=by_lane):
            inner = _body(nest, body, item)
            back = any(isinstance(each, TileScan) and each.reverse for each in inner)
            return TileLoop(axis, carries, inner, by_lane, reverse=back)
        case place.WriteOutput(output=output):
            return TileStore(output, nest.stores[output])
        case place.Carry(value=value):
            assert around is not None, "a carried fold stands in the loop that carries it"
            if nest.fold(value).about is not None:
                return Welford(value, carried=True)
            own = {c: _moving(nest, c, around) for c in around.carries}
            followed = any(
                value in each.follows or (each.shift and value == nest.fold(c).weight)
                for c, each in own.items()
                if each
            )
            correction = _moving(nest, value, around)
            return Reduce(value, True, correction=correction, followed=followed)
        case place.Evaluate(value=value):
            kind = nest.values[value].kind
            if isinstance(kind, values.Load):
                rows: Rows = "laid" if kind.input in nest.laid else ""
                return TileLoad(value, kind.input, nest.loads[value], rows=rows)
            if isinstance(kind, values.Fold):
                about = kind.about is not None
                return Welford(value, carried=False) if about else Reduce(value, carried=False)
            if isinstance(kind, values.Scan):
                axis = nest.scanned(value)
                return TileScan(value, axis, nest.axes[axis].role is Role.LOOP, kind.reverse)
            return TileCompute(value)


def _moving(nest: Nest, fold: int, loop: place.NestLoop) -> Correction | None:
    """How a fold follows the extrema that are under way in this loop; those of an earlier one are
    complete and move no more."""
    found = nest.corrections.get(fold)
    if found is None:
        return None
    exponent = tuple((c, x) for c, x in found.exponent if x in loop.carries)
    shift = tuple((k, x) for k, x in found.shift if x in loop.carries)
    return replace(found, exponent=exponent, shift=shift) if exponent or shift else None
