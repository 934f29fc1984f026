"""Random programs: the steps they are made of, how often each is taken, and what writes one, see
`random_programs.py`. `graph_sweep.py` runs the programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from random_elementwise import (
    binary,
    cast,
    compare,
    integers,
    mixed,
    several,
    smooth,
    smooth_binary,
    special,
    unary,
    where,
)
from random_layers import layer, loss
from random_programs import FLOATS, Choose, Program, Writer
from random_reductions import (
    extremum,
    fold,
    norm,
    ordered,
    product,
    rows,
    scan,
    smooth_fold,
    truths,
)
from random_views import places, put, view, write

STEPS: tuple[Callable[[Writer], None], ...] = (
    *[unary] * 5,
    *[binary] * 5,
    *[fold] * 4,
    *[view] * 7,
    *[product] * 2,
    *[rows] * 2,
    norm,
    *[cast] * 2,
    compare,
    *[where] * 2,
    *[integers] * 2,
    *[scan] * 2,
    *[places] * 2,
    truths,
    mixed,
    *[write] * 2,
    put,
    *[layer] * 3,
    loss,
    special,
    ordered,
    several,
)
SMOOTH_STEPS: tuple[Callable[[Writer], None], ...] = (
    *[smooth] * 4,
    *[smooth_binary] * 4,
    *[smooth_fold] * 3,
    *[extremum] * 2,
    *[view] * 4,
    *[product] * 2,
    norm,
    cast,
    rows,
    layer,
    write,
    put,
    scan,
    loss,
    where,
)
"""The steps of programs whose gradients are compared."""


def generate(
    choose: Choose,
    seed: int = 0,
    *,
    longest: int = 28,
    steps: Sequence[Callable[[Writer], None]] = STEPS,
) -> Program:
    """A program of 3 to `longest` + 2 lines."""
    writer = Writer(choose, seed)
    for _ in range(1 + choose(2)):
        writer.input(writer.pick(FLOATS), writer.shape())
    wanted, tries = 3 + min(choose(longest), choose(longest)), 0
    while len(writer.lines) < wanted and tries < 8 * wanted:
        tries += 1
        writer.pick(steps)(writer)
    return writer.program()
