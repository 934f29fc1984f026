"""Concatenations of many pieces of one size, of which each piece is stored for itself.

As one tile, every element would be chosen from all pieces, each of which is loaded, masked, for all
elements. As stores of their own, each piece is loaded and stored once: 26 tables of embeddings, of
which each row of a recommender's features is put together.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import TensorType
from ..values.unread import without_unread
from ..values.values import Choice, Output, Values

MANY = 4
"""Pieces from which each is stored for itself."""

LEAST_RUN = 8
"""Elements from the start of a piece to that of the next, below which they are not: each store
would leave out most of what lies side by side."""


def pieces_stored(values: Values) -> Values:
    """The values, with results that are such a choice stored piece by piece, if nothing else reads
    the choice."""
    read = {r for value in values.values for r in value.reads}
    stores = [_stores(values, o) if o.value not in read else [o] for o in values.outputs]
    if all(len(own) == 1 for own in stores):
        return values
    # The first of each result have the numbers of the results.
    firsts, later = [own[0] for own in stores], [o for own in stores for o in own[1:]]
    outputs = tuple(replace(o, index=i) for i, o in enumerate([*firsts, *later]))
    kept, outputs = without_unread(list(values.values), outputs)
    axes = {f for v in kept for f in v.axes} | {f for o in outputs for d in o.dims for f in d}
    return Values(tuple(kept), outputs, {f: n for f, n in values.extents.items() if f in axes})


def _stores(values: Values, output: Output) -> list[Output]:
    kind = values.values[output.value].kind
    if not isinstance(kind, Choice) or output.part is not None or len(kind.factors) != 1:
        return [output]
    (number,), pieces = kind.factors, kind.pieces
    if [(low, high) for _, low, high in pieces] != [(i, i + 1) for i in range(len(pieces))]:
        return [output]
    depends = values.dependence()
    along = [i for i, dim in enumerate(output.dims) if number in dim]
    if values.extents[number] != len(pieces) or len(along) != 1:
        return [output]
    if any(number in depends[piece] for piece, _, _ in pieces):
        return [output]
    (dim,), type_ = along, output.type
    place = output.dims[dim].index(number)
    outside, inside = output.dims[dim][:place], output.dims[dim][place + 1 :]
    if outside:
        return [output]
    size = values.size(inside)
    shape = (*type_.shape[:dim], size, *type_.shape[dim + 1 :])
    part = replace(
        output,
        dims=(*output.dims[:dim], inside, *output.dims[dim + 1 :]),
        type=TensorType(shape, type_.stride, type_.dtype),
        part=output.result,
    )
    step = size * type_.stride[dim]
    if len(pieces) < MANY or step < LEAST_RUN:
        return [output]
    return [
        replace(part, value=piece, start=output.start + step * i)
        for i, (piece, _, _) in enumerate(pieces)
    ]
