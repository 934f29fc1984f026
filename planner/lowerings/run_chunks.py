"""Running a group in chunks: the executors of its bodies, called for one part after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..regions.chunks import Chunk, ChunkInput, ChunkOutput, Cut, Walk
from .base import Boxed

Slices = tuple[tuple[int, int, int], ...]
"""Of a tensor: (dimension, first index, length)."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One chunk: the body that computes it, where its inputs lie, and where its results go."""

    run: Boxed
    taken: tuple[Slices, ...]
    given: tuple[Slices, ...]


def run_chunks(walk: Walk, bodies: Sequence[Boxed], device: torch.device) -> Boxed:
    """A call that walks a group; `bodies` run the graphs of `walk.bodies`."""
    counted = [_counted(g, device) if g.kind == "iota" else None for g in walk.given]
    steps = [
        _Step(
            bodies[chunk.body],
            tuple(_parts(g.cuts, chunk) for g in walk.given),
            tuple(_parts(r.cuts, chunk) for r in walk.results),
        )
        for chunk in walk.chunks()
    ]

    def run(args: list[Any]) -> Sequence[Any]:
        # What one chunk gives as a whole takes the place of what stands here.
        results: list[Any] = [
            _empty(r, device) if r.cuts or r.summed else None for r in walk.results
        ]
        inputs = [
            args[g.index] if g.kind == "input" else made
            for g, made in zip(walk.given, counted, strict=True)
        ]
        args.clear()
        for step in steps:
            sources = [
                results[g.index] if g.kind == "sum" else x
                for g, x in zip(walk.given, inputs, strict=True)
            ]
            parts = step.run([_part(x, p) for x, p in zip(sources, step.taken, strict=True)])
            del sources
            for i, part in enumerate(parts):
                if step.given[i]:
                    _part(results[i], step.given[i]).copy_(part)
                else:
                    results[i] = part
            del parts, part
        return [_rounded(w, r) for w, r in zip(results, walk.results, strict=True)]

    return run


def _counted(given: ChunkInput, device: torch.device) -> torch.Tensor:
    start, step = given.iota
    stop = start + step * given.type.shape[0]
    return torch.arange(start, stop, step, dtype=getattr(torch, given.type.dtype), device=device)


def _parts(cuts: Sequence[Cut], chunk: Chunk) -> Slices:
    """What a chunk takes of a tensor: one range of each dimension that is cut."""
    found = []
    for cut in cuts:
        first = sum(chunk.starts[axis] * scale for axis, scale in cut.axes)
        # The innermost of the walked axes runs on; those outside of it stand still.
        inner, scale = cut.axes[0]
        found.append((cut.dim, first, chunk.sizes[inner] * scale))
    return tuple(found)


def _part(tensor: Any, parts: Slices) -> Any:
    for dim, first, length in parts:
        tensor = tensor.narrow(dim, first, length)
    return tensor


def _empty(result: ChunkOutput, device: torch.device) -> torch.Tensor:
    """Sums are kept in float32 until the last chunk is done."""
    shape, stride = result.type.shape, result.type.stride
    dtype: torch.dtype = getattr(torch, result.type.dtype)
    if not result.summed:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()


def _rounded(tensor: torch.Tensor, result: ChunkOutput) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, result.type.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)
