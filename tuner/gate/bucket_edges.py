"""Checks a group at the smallest and the largest sizes of its bucket; it is used at all between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import torch

from ...planner.errors import PlanError
from ...planner.graph.graph import INPUT, Graph
from ...planner.graph.sizes import ALIGNED, Amount, Size, bases, factored, rounded_up
from ...planner.graph.varying import mapped
from ..trial.evaluate import Evaluator
from ..trial.inputs import empty


def edges(graph: Graph) -> dict[str, Graph]:
    """By name; without those at which it is already. Empty where nothing varies, or where it is
    not known how all numbers follow from the sizes of the inputs."""
    kinds = [graph.nodes[i].type for i in graph.inputs]
    own = bases(n for kind in kinds if kind is not None for n in kind.shape)
    if not own or _has_amounts(graph):
        return {}
    found: dict[str, Graph] = {}
    for name, largest in (("smallest", False), ("largest", True)):
        chosen = {base.probes: edge(int(base), largest) for base in own}
        if all(chosen[base.probes] == base for base in own):
            continue
        made = _at(graph, own, chosen)
        if made is not None:
            found[f"{name} sizes of the bucket"] = made
    return found


def at_sizes(graph: Graph, sizes: Sequence[int]) -> Graph | None:
    """The graph at these sizes (see `varying.sizes_of`), of whatever bucket; None where its numbers
    do not follow, as where a float varies."""
    kinds = [graph.nodes[i].type for i in graph.inputs]
    own = bases(n for kind in kinds if kind is not None for n in kind.shape)
    if len(own) != len(sizes) or _has_amounts(graph):
        return None
    chosen = {base.probes: size for base, size in zip(own, sizes, strict=True)}
    return _at(graph, own, chosen, same_bucket=False)


def edge(size: int, largest: bool) -> int:
    """The smallest or the largest size of the bucket of a size (see `sizes.bucket`)."""
    most = rounded_up(size)
    if size % ALIGNED == 0:
        return most if largest else min(most, most // 2 + ALIGNED)
    least = most // 2 + 1
    last = most - (most % ALIGNED == 0)
    return max(least, last) if largest else least


def _at(
    graph: Graph,
    own: tuple[Size, ...],
    chosen: Mapping[tuple[int, ...], int],
    same_bucket: bool = True,
) -> Graph | None:
    """The graph at other sizes; None where its numbers do not follow."""
    try:
        made = mapped(graph, lambda number: _moved(number, own, chosen, same_bucket))
        meta = torch.device("meta")
        inputs = [empty(kind, meta) for i in made.inputs if (kind := made.nodes[i].type)]
        values = Evaluator(made, meta).values(inputs)
    except (RuntimeError, IndexError, ValueError, NotImplementedError, PlanError):
        return None
    shapes = (
        tuple(value.shape) == tuple(node.type.shape)
        for node, value in zip(made.nodes, values, strict=True)
        if node.op != INPUT and node.type is not None
    )
    return made if all(shapes) else None


def _moved(
    number: Size, own: tuple[Size, ...], chosen: Mapping[tuple[int, ...], int], same_bucket: bool
) -> Size:
    """What a number is at other sizes: a multiple of a product of sizes, or so much more or less
    than a multiple of one. Raises ValueError where it is neither."""
    known = factored(number.probes, own)
    if known is not None:
        scale, factors = known
        now = value = scale
        for factor in factors:
            now, value = now * int(factor), value * chosen[factor.probes]
        if now == number and same_bucket:
            return _size(value, number)
        if now == number:
            aligned = [chosen[factor.probes] % ALIGNED == 0 for factor in factors]
            divisor = gcd(scale * ALIGNED ** sum(aligned), value, ALIGNED)
            return Size(value, number.probes, divisor)
    for base in own:
        step = base.probes[1] - base.probes[0]
        times, left = divmod(number.probes[1] - number.probes[0], step or 1)
        more = number.probes[0] - times * base.probes[0]
        if step and not left and times * int(base) + more == number:
            moved = times * chosen[base.probes] + more
            return _size(moved, number) if same_bucket else Size(moved, number.probes)
    raise ValueError(f"{int(number)} does not follow from the sizes of the inputs")


def _size(value: int, like: Size) -> Size:
    if value % like.divisor or value < 0:
        raise ValueError(f"{value} is not of the bucket of {int(like)}")
    return Size(value, like.probes, like.divisor)


def _has_amounts(graph: Graph) -> bool:
    """Whether a float varies: what it is at other sizes is not known."""
    stack = [v for n in graph.nodes for v in (*n.args, *(value for _, value in n.kwargs))]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack += value
        elif isinstance(value, Amount):
            return True
    return False
