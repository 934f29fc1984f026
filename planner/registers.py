"""Register pressure of a nest under given blocks, estimated before any compiler runs."""

from __future__ import annotations

import math

from .codegen.access import Tiles
from .graph import itemsize
from .nest import Loop, Nest, Step
from .values import Fold, Load

MOST = 255


def pressure(nest: Nest, tiles: Tiles, num_warps: int) -> tuple[int, int]:
    """(registers, spill bytes) per thread, as the compiler would report them."""
    features = count(nest, tiles, num_warps)
    wanted = sum(w * f for w, f in zip(WEIGHTS, features, strict=True))
    limit = min(MOST, 65536 // (32 * num_warps))
    registers = int(min(limit, max(16, wanted)))
    return registers, int(max(0.0, wanted - limit) * 4)


# Least squares against the compiler's own count for the kernels of six workloads.
WEIGHTS = (18.6, 0.51, 0.29, 0.55)


def count(nest: Nest, tiles: Tiles, num_warps: int) -> tuple[float, float, float, float]:
    """What registers are spent on, in 32-bit words per thread: a constant; values that live
    across a reduction or a loop, accumulators among them; loads of one stretch of straight-line
    work, all in flight at once; the widest value, for intermediate results."""

    def words(value: int, size: int) -> float:
        elements = math.prod(tiles.blocks[a] for a in nest.live[value])
        return max(1.0, elements / (32 * num_warps)) * max(0.5, size / 4) if elements > 1 else 0.0

    def size_of(value: int) -> int:
        return itemsize(nest.values[value].dtype)

    stretches = _stretches(nest)
    needed: list[set[int]] = []
    for stretch, _ in stretches:
        read = {r for v in stretch for r in nest.values[v].reads}
        needed.append(read - set(stretch))
    held = in_flight = widest = 0.0
    defined: set[int] = set()
    for number, (stretch, carries) in enumerate(stretches):
        defined |= set(stretch)
        later = set().union(*needed[number + 1 :]) & defined if number + 1 < len(needed) else set()
        sources = [s for c in carries for s in nest.values[c].reads]
        alive = sum(words(v, size_of(v)) for v in later) + sum(words(s, 4) for s in sources)
        held = max(held, alive)
        loads = [(v, nest.values[v].kind) for v in stretch]
        flying = sum(words(v, itemsize(k.dtype)) for v, k in loads if isinstance(k, Load))
        in_flight = max(in_flight, flying)
        widest = max([widest, *(words(v, size_of(v)) for v in stretch)])
    return 1.0, held, in_flight, widest


def _stretches(nest: Nest) -> list[tuple[list[int], tuple[int, ...]]]:
    """The body cut where all threads meet, at every fold and every loop's ends: the values
    evaluated in each stretch, and the folds it carries."""
    stretches: list[tuple[list[int], tuple[int, ...]]] = [([], ())]
    for step in nest.body:
        if isinstance(step, Loop):
            inner = [s.value for s in step.body if isinstance(s, Step)]
            stretches += [(inner, step.carries), (list(step.carries), ())]
        elif isinstance(step, Step):
            stretches[-1][0].append(step.value)
            if isinstance(nest.values[step.value].kind, Fold):
                stretches.append(([], ()))
    return [s for s in stretches if s[0]]
