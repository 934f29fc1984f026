"""Inputs that a graph is compiled with: as AOTAutograd has them, and as the call has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from ...capture.capture import Stage, hint
from ..cuda_graphs.graph_memory import SharedPools


@dataclass(frozen=True, slots=True)
class Given:
    """The inputs with which a graph is compiled. fakes: its inputs as AOTAutograd has them. real:
    those of the call that led to it, where they are at hand; of a backward graph they never are.
    eager: runs the user's code behind the graph on such tensors. results: of a forward graph, how
    many outputs are the user's; the others are saved for its backward graph. pools: what the CUDA
    graphs of all sizes share, where sizes vary."""

    fakes: Sequence[Any]
    stage: Stage
    real: Sequence[torch.Tensor] | None = None
    eager: Callable[[Sequence[Any]], Any] | None = None
    results: int = 0
    pools: SharedPools | None = None


def matching(inputs: Sequence[Any], fakes: Sequence[Any]) -> list[torch.Tensor] | None:
    """The tensors among Dynamo's inputs when they are those of the graph, one for one: it may
    take fewer, or views of one in place of several. None when they are not."""
    tensors, wanted = [
        [x for x in given if isinstance(x, torch.Tensor)] for given in (inputs, fakes)
    ]
    if len(tensors) != len(wanted) or any(isinstance(x, FakeTensor) for x in tensors):
        return None
    same = all(
        a.dtype == b.dtype and a.device == b.device and sizes_of([a]) == sizes_of([b])
        for a, b in zip(tensors, wanted, strict=True)
    )
    return tensors if same else None


def with_tensors(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Runs the user's graph on other tensors in the place of its own."""
    numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]
    places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]

    def run(tensors: Sequence[Any]) -> Any:
        given = list(numbers)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return gm(*given)

    return run


def device_of(inputs: Sequence[Any]) -> torch.device:
    """Where the tensors are; CUDA where one of them is there."""
    found = [x.device for x in inputs if isinstance(x, torch.Tensor)]
    return next((d for d in found if d.type == "cuda"), torch.device("cpu"))


def has_no_numbers(inputs: Sequence[Any]) -> bool:
    """Whether the tensors, of which there is one at least, are all on the meta device."""
    found = [x for x in inputs if isinstance(x, torch.Tensor)]
    return bool(found) and all(x.is_meta for x in found)


def sizes_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (*map(hint, a.shape), *map(hint, a.stride())) if isinstance(a, torch.Tensor) else hint(a)
        for a in inputs
    )
