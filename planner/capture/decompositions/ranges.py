"""Decompositions of `linspace`, of which torch's own table has other integers than eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._refs

from .losses import to

aten = torch.ops.aten


def _linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """`linspace`, to integers as eager computes it: the ends are cast to integers first, values are
    counted from each end to the middle, and the step is of float64 on the CPU and of float32
    elsewhere, with a fused multiply-add. torch's own formula casts last, and has another middle."""
    named = {"dtype": dtype, "layout": layout, "device": device, "pin_memory": pin_memory}
    is_whole = dtype is not None and dtype in _WHOLE_NUMBERS
    if not is_whole or steps < 2 or layout not in (None, torch.strided) or pin_memory:
        return torch._refs.linspace(start, end, steps, **named)  # type: ignore[arg-type]
    assert dtype is not None
    place = aten.arange.start_step(0, steps, 1, dtype=torch.int64, device=device)
    on_cpu, wide = place.device.type == "cpu", torch.float64

    def kept(x: torch.Tensor) -> torch.Tensor:
        """A number of float64, as it is elsewhere."""
        return x if on_cpu else to(to(x, torch.float32), wide)

    ends = []
    for number in (start, end):
        if not isinstance(number, torch.Tensor):
            if not torch.iinfo(dtype).min <= int(number) <= torch.iinfo(dtype).max:
                return NotImplemented  # Eager refuses it.
            number = aten.full.default([], int(number), dtype=dtype, device=place.device)
        ends.append(to(to(number, dtype), wide))
    first, last = map(kept, ends)
    step = kept(aten.div.Tensor(kept(aten.sub.Tensor(last, first)), steps - 1))
    most = to(to(step, torch.float32), wide)
    rest = aten.sub.Tensor(step, most)
    back = aten.rsub.Scalar(place, steps - 1)

    def moved(end: torch.Tensor, count: torch.Tensor, by: Any) -> torch.Tensor:
        # Products of 24 bits and a count are exact, so that the sum alone is rounded.
        sum_ = by(end, aten.mul.Tensor(most, count))
        return kept(by(sum_, aten.mul.Tensor(rest, count)) if on_cpu else sum_)

    found = aten.where.self(
        aten.lt.Scalar(place, steps // 2),
        moved(first, to(place, wide), aten.add.Tensor),
        moved(last, to(back, wide), aten.sub.Tensor),
    )
    return to(found, dtype)


_WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

RANGES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.linspace.default, aten.linspace.Tensor_Tensor), _linspace),
    **dict.fromkeys((aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor), _linspace),
}
