"""Weights of 8 bits or fewer, as the rewrites of products with them recognise them."""

from __future__ import annotations

import torch
from torch import fx

from ..fx_nodes import value_of

SAFE = (torch.bfloat16, torch.float32)
"""Types in which a sum of unscaled weights does not overflow."""

MOST_NODES = 32
"""Operations between packed weights and the product."""


def is_packed(weights: fx.Node) -> bool:
    """Whether weights are computed of numbers of a byte, or less, that the graph is given."""
    seen, left = set[fx.Node](), [weights]
    while left and len(seen) < MOST_NODES:
        node = left.pop()
        if node.op == "placeholder" and value_of(node).dtype.itemsize == 1:
            return True
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    return False
