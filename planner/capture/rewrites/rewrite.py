"""The rewrites of an FX graph before it is captured, in the order in which they are made.

Each gives another graph that computes the same, or the graph itself where it has nothing to do. One
that needs what an earlier one made stands after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx

from ...graph.graph import Numerics
from ..masks.simplify_masks import simplify_masks
from .associative_scans import associative_scans
from .channels_last import channels_last
from .convolution_bias import split_biases
from .factor_differences import factor_differences
from .known_lookups import known_lookups
from .lines_as_images import lines_as_images
from .lookups_first import lookups_first
from .move_weight_scales import move_weight_scales
from .narrow_broadcasts import narrow_broadcasts
from .nest_reductions import nest_reductions
from .open_complex import open_complex
from .open_masked_attention import open_masked_attention
from .reassociate import reassociate
from .reduce_pieces import reduce_pieces
from .selected_element_sums import drop_picked_sums
from .shared_heads import shared_heads
from .split_packed_sums import split_packed_sums
from .stack_products import stack_products
from .turn_broadcasts import turn_broadcasts

Rewrite = Callable[[fx.GraphModule], fx.GraphModule]

REWRITES: tuple[Rewrite, ...] = (
    associative_scans,
    open_complex,
    simplify_masks,
    known_lookups,
    lookups_first,
    nest_reductions,
    lines_as_images,
    channels_last,
    split_biases,
)
"""Of every graph. A graph of training is rewritten before it is cut into a forward and a backward
graph (see `saving.partition`), as what one saves must lie as the other expects it."""

INFERENCE_REWRITES: tuple[Rewrite, ...] = (
    open_masked_attention,
    shared_heads,
    reduce_pieces,
    factor_differences,
    move_weight_scales,
    stack_products,
    split_packed_sums,
    narrow_broadcasts,
    turn_broadcasts,
)
"""Of a graph without a backward pass, after the others."""

GRADIENT_REWRITES: tuple[Callable[[fx.Graph], object], ...] = (drop_picked_sums, reassociate)
"""Of the graph of a training step, in place, before what it saves is chosen."""

FAST_REWRITES = frozenset(
    {open_masked_attention, factor_differences, move_weight_scales, split_packed_sums}
)
"""Those that give other roundings than eager's: only with the numerics "fast"."""


def rewritten(gm: fx.GraphModule, stage: str, numerics: Numerics = "fast") -> fx.GraphModule:
    """The graph as it is to be captured. Graphs of training were rewritten when they were one."""
    if stage != "inference":
        return gm
    return _each(rewritten_joint(gm), INFERENCE_REWRITES, numerics)


def rewritten_joint(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph of a training step, to be cut in two; or any graph by what all graphs have."""
    return _each(gm, REWRITES, "fast")


def _each(gm: fx.GraphModule, rewrites: Iterable[Rewrite], numerics: Numerics) -> fx.GraphModule:
    for rewrite in rewrites:
        if numerics == "fast" or rewrite not in FAST_REWRITES:
            gm = rewrite(gm)
    return gm
