"""Limits that masks set to a loop, by what they come to in a tile of a kernel, as Triton text."""

from __future__ import annotations

from ..nests.linear_forms import Term
from ..nests.mask_bounds import Limit
from .scope import Scope


def rest_of(scope: Scope, limit: Limit) -> str:
    """The least value in this tile of what a limit adds to the index."""
    parts = [_least(scope, term) for term in limit.rest.terms]
    parts += [_least_given(scope, value, scale) for value, scale in limit.values]
    base = limit.rest.base
    return " + ".join([*parts, scope.numbers.text(base)] if base else parts or ["0"])


def _least_given(scope: Scope, value: int, scale: int) -> str:
    """The least multiple of a value in this tile."""
    text = f"({scope.names[value]}).to(tl.int64)"
    if scope.dims[value]:
        text = f"tl.max({text})" if scale < 0 else f"tl.min({text})"
    return f"{text} * {scale}" if scale != 1 else text


def _least(scope: Scope, term: Term) -> str:
    """The least value of a term of a linear form in this tile."""
    axis, block = scope.nest.axes[term.axis], scope.blocks.sizes[term.axis]
    start = f"({scope.starts[term.axis]})"
    scale = scope.numbers.text(term.scale) if term.scale != 1 else ""
    if term.scale < 0:
        end = f"tl.minimum({start} + {block - 1}, {scope.numbers.text(axis.extent - 1)})"
        return f"{end} * {scale}" if block > 1 else f"{start} * {scale}"
    return f"{start} * {scale}" if scale else start
