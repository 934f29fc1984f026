"""Operations of our own, for what ATen has no pure elementwise form of. Run by eager they give the
very bits that generated kernels give."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan

from .graph import Graph, Ref, Symbol
from .overloads import overload
from .parse import parse

_LIBRARY = torch.library.Library("fusionplan", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "bitcast(Tensor self, ScalarType dtype) -> Tensor",
    "exceeds(Tensor self, Tensor other) -> Tensor",
    "uniform(Tensor seed, Tensor index) -> Tensor",
    "associative_scan(Tensor[] xs, str combine, int item) -> Tensor",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]

_WORD = 2**32 - 1


def bitcast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bits read as another type of equal size."""
    result: torch.Tensor = torch.ops.fusionplan.bitcast.default(x, dtype)
    return result


def exceeds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whether x is greater than y, or is NaN, which as a maximum replaces all before it."""
    result: torch.Tensor = torch.ops.fusionplan.exceeds.default(x, y)
    return result


def uniform(seed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Random numbers in [0, 1), multiples of 2**-24: one for each seed (int64, its 64 bits count)
    and index (its low 32 bits count)."""
    result: torch.Tensor = torch.ops.fusionplan.uniform.default(seed, index)
    return result


def associative_scan(xs: Sequence[torch.Tensor], combine: str, item: int) -> torch.Tensor:
    """One result of the inclusive scan of several tensors of one shape along their first dimension.
    combine: the text of a graph that takes an element of each, then a later one of each."""
    result: torch.Tensor = torch.ops.fusionplan.associative_scan.default(list(xs), combine, item)
    return result


def _associative_scan(xs: Sequence[torch.Tensor], combine: str, item: int) -> torch.Tensor:
    graph = parse(combine)
    step = partial(_combined, graph)
    results: Sequence[torch.Tensor] = generic_associative_scan(step, list(xs))  # type: ignore[no-untyped-call]
    return results[item].contiguous()


def _combined(graph: Graph, *given: torch.Tensor) -> list[torch.Tensor]:
    """Elements combined by a graph, the pairs of many places at once."""
    values = dict(zip(graph.inputs, given, strict=True))

    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.node]
        if isinstance(value, Symbol):
            return getattr(torch, value.name) if value.kind == "dtype" else given[0].device
        return [argument(each) for each in value] if isinstance(value, tuple) else value

    for node in graph.nodes:
        if node.id not in values:
            named = {k: argument(v) for k, v in node.kwargs if _is_given(v)}
            values[node.id] = overload(node.op)(*map(argument, node.args), **named)
    results = (values[o] for o in graph.outputs if o is not None)
    return [found.expand(own.shape) for found, own in zip(results, given, strict=False)]


def _is_given(value: Any) -> bool:
    """A layout or an order of memory means nothing to one element."""
    return not isinstance(value, Symbol) or value.kind in ("dtype", "device")


def _bitcast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.view(dtype).clone()


def _exceeds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x > y) | x.isnan()


def _uniform(seed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # The seed's words are mixed too: seeds are often neighbours, as 1 and 2.
    low = _mixed(seed & _WORD)
    high = _mixed((((seed >> 32) & _WORD) + low) & _WORD)
    word = _mixed((_mixed((index & _WORD) ^ low) + high) & _WORD)
    return (word >> 8).to(torch.float32) * 2.0**-24


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit words, kept in int64, whose every bit depends on every bit: the
    finaliser of MurmurHash3 (A. Appleby, public domain)."""
    x = x ^ (x >> 16)
    x = _product(x, 0x85EBCA6B)
    x = x ^ (x >> 13)
    x = _product(x, 0xC2B2AE35)
    return x ^ (x >> 16)


def _product(x: torch.Tensor, factor: int) -> torch.Tensor:
    """The low 32 bits of a product, by halves of the factor: int64 would overflow."""
    high = ((x * (factor >> 16)) & 0xFFFF) << 16
    return (x * (factor & 0xFFFF) + high) & _WORD


for _name, _function in (
    ("bitcast", _bitcast),
    ("exceeds", _exceeds),
    ("uniform", _uniform),
    ("associative_scan", _associative_scan),
):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_LIBRARY.impl("associative_scan", lambda xs, combine, item: torch.empty_like(xs[item]), "Meta")  # type: ignore[no-untyped-call]
