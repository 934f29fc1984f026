"""Decompositions of pooling: a window is as many slices of its source, side by side, and one that
overlaps no other is a reshape. Gradients look their windows up.

Sizes that are not known, and windows of very many elements, are left to the vendor's kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_map_only

from ...graph.library import exceeds
from .elementwise import dense
from .losses import accumulator, scalar, to

aten = torch.ops.aten

MOST_SUMMED = 25
"""Slices of an average. A group holds 96 operations, of which each slice is one or two."""
MOST_COMPARED = 9
"""Slices of a maximum, each of which is three operations where its place is asked for."""
MOST_FOUND = 4
"""Windows that one element may be part of, where a gradient is to be summed over them."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Windows over the last dimensions of a tensor, one number for each of them: sizes of the
    source and of the result, and the window's own."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    results: tuple[int, ...]

    @staticmethod
    def of(
        x: torch.Tensor,
        rank: int,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
        ceil: bool = False,
    ) -> _Pool | None:
        """None for what is no float, or of unknown sizes."""
        sizes = tuple(x.shape[-rank:])
        if not x.dtype.is_floating_point or not all(type(n) is int for n in x.shape):
            return None
        if not x.numel():
            return None
        wide = [tuple(a) * (rank if len(a) == 1 else 1) for a in (kernel, padding, dilation)]
        steps = tuple(stride) * (rank if len(stride) == 1 else 1) or wide[0]
        found = tuple(
            map(_results, sizes, wide[0], steps, wide[1], wide[2], itertools.repeat(ceil))
        )
        return _Pool(sizes, wide[0], steps, wide[1], wide[2], found)

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def elements(self) -> int:
        """Of a window."""
        return math.prod(self.kernel)

    @property
    def before_and_after(self) -> list[tuple[int, int]]:
        """The elements by which the windows reach beyond each end of the source."""
        last = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(
                self.results, self.stride, self.dilation, self.kernel, strict=True
            )
        ]
        return [
            (p, max(0, end - p - size))
            for p, end, size in zip(self.padding, last, self.sizes, strict=True)
        ]

    @property
    def is_padded(self) -> bool:
        return any(map(any, self.before_and_after))

    @property
    def is_apart(self) -> bool:
        """Whether the windows lie side by side."""
        return self.kernel == self.stride and set(self.dilation) == {1}

    def steps(self) -> itertools.product[tuple[int, ...]]:
        """The place of every element within a window, in order."""
        return itertools.product(*map(range, self.kernel))

    def slices(self, x: torch.Tensor, fill: float) -> list[torch.Tensor]:
        """For every place within the window the elements that all windows have there."""
        if self.is_padded:
            pad = [n for both in reversed(self.before_and_after) for n in both]
            x = aten.constant_pad_nd.default(x, pad, fill)
        found = []
        for step in self.steps():
            part = x
            for i, place in enumerate(step):
                dim, start = x.dim() - self.rank + i, place * self.dilation[i]
                stop = start + (self.results[i] - 1) * self.stride[i] + 1
                part = aten.slice.Tensor(part, dim, start, stop, self.stride[i])
            found.append(part)
        return found

    def starts(self, dim: int, like: torch.Tensor) -> torch.Tensor:
        """The first index of each window along a dimension, shaped to be broadcast."""
        index = _counted(self.results[dim], like)
        start = aten.sub.Tensor(aten.mul.Tensor(index, self.stride[dim]), self.padding[dim])
        return self.along(start, dim)

    def along(self, vector: torch.Tensor, dim: int) -> torch.Tensor:
        shape = [1] * self.rank
        shape[dim] = vector.shape[0]
        found: torch.Tensor = aten.view.default(vector, shape)
        return found

    def spread(self, y: torch.Tensor) -> torch.Tensor:
        """An element of each window at all places of the window: only of windows side by side."""
        lead = list(y.shape[: y.dim() - self.rank])
        shape, wide = list(lead), list(lead)
        for n, k in zip(self.results, self.kernel, strict=True):
            shape += [n, 1]
            wide += [n, k]
        sizes = [n * k for n, k in zip(self.results, self.kernel, strict=True)]
        y = aten.expand.default(aten.reshape.default(y, shape), wide)
        found: torch.Tensor = aten.reshape.default(y, [*lead, *sizes])
        return found

    def cropped(self, y: torch.Tensor) -> torch.Tensor:
        """The elements that windows side by side cover, in the shape of the source: padding is cut
        off, and zeros are added after it."""
        pad: list[int] = []
        for n, k, p, size in zip(self.results, self.kernel, self.padding, self.sizes, strict=True):
            pad = [-p, size + p - n * k, *pad]
        found: torch.Tensor = aten.constant_pad_nd.default(y, pad) if any(pad) else y
        return found


def _results(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil:
        return room // stride + 1
    found = -(-room // stride) + 1
    # The last window begins inside, or in the padding before.
    return found - 1 if (found - 1) * stride >= size + padding else found


def _counted(size: int, like: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = aten.arange.start_step(0, size, 1, dtype=torch.int64, device=like.device)
    return found


# --- averages ---


def _averaged(rank: int) -> Callable[..., Any]:
    def opened(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        pool = _Pool.of(x, rank, kernel_size, stride, padding, ceil=ceil_mode)
        if pool is None:
            return NotImplemented
        if pool.elements <= MOST_SUMMED:
            wide = accumulator(x.dtype)
            first, *rest = (to(part, wide) for part in pool.slices(x, 0.0))
            total = first
            for part in rest:
                total = aten.add.Tensor(total, part)
        elif pool.is_apart and not pool.is_padded:
            total = _summed(pool, x)
        else:
            return NotImplemented
        count = _count(pool, count_include_pad, divisor_override, x)
        return to(aten.div.Tensor(total, count), x.dtype)

    return opened


def _summed(pool: _Pool, x: torch.Tensor) -> torch.Tensor:
    """Windows side by side as dimensions of their own."""
    lead = list(x.shape[: x.dim() - pool.rank])
    shape, over = list(lead), []
    for i, (n, k) in enumerate(zip(pool.results, pool.kernel, strict=True)):
        x = aten.slice.Tensor(x, len(lead) + i, 0, n * k)
        shape += [n, k]
        over.append(len(shape) - 1)
    wide = accumulator(x.dtype)
    dtype = None if wide == x.dtype else wide
    found: torch.Tensor = aten.sum.dim_IntList(aten.reshape.default(x, shape), over, dtype=dtype)
    return found


def _count(
    pool: _Pool,
    padded: bool,
    override: int | None,
    like: torch.Tensor,
    windows: Sequence[torch.Tensor] | None = None,
) -> Any:
    """What the sum of each window, or of the given ones, is divided by: a number where all windows
    have as many elements."""
    if override is not None:
        return override
    counts: list[Any] = []
    for i, (size, k, s, p) in enumerate(
        zip(pool.sizes, pool.kernel, pool.stride, pool.padding, strict=True)
    ):
        low, high = (-p, size + p) if padded else (0, size)
        each = {
            min(start + k, high) - max(start, low)
            for start in range(-p, pool.results[i] * s - p, s)
        }
        if len(each) == 1:
            counts.append(each.pop())
            continue
        window = pool.along(_counted(pool.results[i], like), i) if windows is None else windows[i]
        start = aten.sub.Tensor(aten.mul.Tensor(window, s), p)
        end = aten.clamp.default(aten.add.Tensor(start, k), None, high)
        counts.append(aten.sub.Tensor(end, aten.clamp.default(start, low)))
    number = math.prod(c for c in counts if isinstance(c, int))
    found: Any = number
    for count in (c for c in counts if isinstance(c, torch.Tensor)):
        found = aten.mul.Tensor(count, found)
    return found


def _averaged_back(rank: int) -> Callable[..., Any]:
    def opened(
        grad: torch.Tensor,
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Any:
        pool = _Pool.of(x, rank, kernel_size, stride, padding, ceil=ceil_mode)
        if pool is None:
            return NotImplemented
        count = _count(pool, count_include_pad, divisor_override, x)
        if pool.is_apart:
            return pool.cropped(pool.spread(aten.div.Tensor(grad, count)))
        wide = accumulator(x.dtype)

        def shared(windows: list[_Around]) -> torch.Tensor:
            at = [w.place for w in windows]
            own = _count(pool, count_include_pad, divisor_override, x, at)
            share = aten.div.Tensor(to(_at(grad, at), wide), own)
            inside = _all([w.inside for w in windows])
            found: torch.Tensor = aten.where.self(inside, share, scalar(0, wide, x))
            return found

        return _over_windows(pool, x, shared)

    return opened


def _adaptive(rank: int, windows: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """Where the results divide the sizes, all windows are alike."""
    pooled = windows(rank)

    def opened(x: torch.Tensor, output_size: Sequence[int]) -> Any:
        kernel = _even(x.shape[-rank:], output_size)
        return NotImplemented if kernel is None else pooled(x, kernel)

    return opened


def _adaptive_back(
    rank: int, windows: Callable[[int], Callable[..., Any]], *how: Any
) -> Callable[..., Any]:
    """how: what the gradient of windows takes after kernel, stride and padding, up to the tensors
    that the forward pass gave."""
    pooled = windows(rank)

    def opened(grad: torch.Tensor, x: torch.Tensor, *given: torch.Tensor) -> Any:
        kernel = _even(x.shape[-rank:], grad.shape[-rank:])
        if kernel is None:
            return NotImplemented
        return pooled(grad, x, kernel, kernel, [0], *how, *given)

    return opened


def _even(sizes: Sequence[int], results: Sequence[int]) -> list[int] | None:
    both = list(zip(sizes, results, strict=True))
    if any(type(n) is not int or not m or n % m for n, m in both):
        return None
    return [n // m for n, m in both]


# --- maxima, with their places in the source ---


def _largest(rank: int) -> Callable[..., Any]:
    def opened(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        """A NaN is the largest, the last one of several; else the first of equals."""
        pool = _Pool.of(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if pool is None or pool.elements > MOST_COMPARED:
            return NotImplemented
        if any(p and d > 1 for p, d in zip(pool.padding, pool.dilation, strict=True)):
            return NotImplemented
        strides = [math.prod(pool.sizes[i + 1 :]) for i in range(rank)]
        steps = [d * s for d, s in zip(pool.dilation, strides, strict=True)]
        parts = pool.slices(x, -math.inf)
        place: torch.Tensor = scalar(0, torch.int64, x)
        if pool.is_padded:
            # A window whose elements are all -inf has its first one inside as its place.
            for i in range(rank):
                outside = aten.clamp.default(aten.neg.default(pool.starts(i, x)), 0)
                place = aten.add.Tensor(place, aten.mul.Tensor(outside, strides[i]))
            best = scalar(-math.inf, x.dtype, x)
        else:
            best, *parts = parts
        places = list(pool.steps())[pool.elements - len(parts) :]
        for step, part in zip(places, parts, strict=True):
            here = sum(a * b for a, b in zip(step, steps, strict=True))
            place = aten.where.self(exceeds(part, best), scalar(here, torch.int64, x), place)
            best = aten.maximum.default(best, part)
        for i in range(rank):
            place = aten.add.Tensor(place, aten.mul.Tensor(pool.starts(i, x), strides[i]))
        if place.shape == best.shape:
            return best, place
        # Windows of one element: the caller may write into each place.
        alike = aten.expand.default(place, list(best.shape))
        return best, aten.clone.default(alike, memory_format=suggest_memory_format(best))

    return opened


def _largest_back(rank: int) -> Callable[..., Any]:
    def opened(
        grad: torch.Tensor,
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: torch.Tensor,
    ) -> Any:
        pool = _Pool.of(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if pool is None or set(pool.dilation) != {1}:
            return NotImplemented
        zero = scalar(0, x.dtype, x)
        if pool.is_apart:
            here = _flat(pool, [n * k for n, k in zip(pool.results, pool.kernel, strict=True)], x)
            hit = aten.eq.Tensor(pool.spread(indices), here)
            return pool.cropped(aten.where.self(hit, pool.spread(grad), zero))
        wide = accumulator(x.dtype)

        def taken(windows: list[_Around]) -> torch.Tensor:
            # Nothing has a place below 0: such a window is none of the element's.
            here = [
                aten.where.self(w.inside, w.index, scalar(-math.prod(pool.sizes), torch.int64, x))
                for w in windows
            ]
            at = [w.place for w in windows]
            hit = aten.eq.Tensor(_at(indices, at), _total(here))
            share = to(_at(grad, at), wide)
            found: torch.Tensor = aten.where.self(hit, share, scalar(0, wide, x))
            return found

        return _over_windows(pool, x, taken)

    return opened


def _flat(pool: _Pool, sizes: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """The place in the source of every element, counted from the beginning of the padding."""
    own = []
    for i, size in enumerate(sizes):
        index = aten.sub.Tensor(_counted(size, like), pool.padding[i])
        own.append(pool.along(aten.mul.Tensor(index, math.prod(pool.sizes[i + 1 :])), i))
    return _total(own)


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    first, *rest = parts
    for part in rest:
        first = aten.add.Tensor(first, part)
    return first


def _all(tests: Sequence[torch.Tensor]) -> torch.Tensor:
    first, *rest = tests
    for test in rest:
        first = aten.logical_and.default(first, test)
    return first


# --- gradients where windows overlap ---


def _at(x: torch.Tensor, at: list[torch.Tensor]) -> torch.Tensor:
    """The elements of x at places along its last dimensions."""
    found: torch.Tensor = aten.index.Tensor(x, [*[None] * (x.dim() - len(at)), *at])
    return found


@dataclass(frozen=True, slots=True)
class _Around:
    """Along one dimension of the source, one of the windows around every element: its place,
    whether there is such a window, and the element's own index, times its stride."""

    place: torch.Tensor
    inside: torch.Tensor
    index: torch.Tensor


def _around(pool: _Pool, dim: int, steps: int, like: torch.Tensor) -> _Around:
    """The window that begins `steps` windows before the last one around each element."""
    stride, count = pool.stride[dim], pool.results[dim]
    index = _counted(pool.sizes[dim], like)
    place = aten.add.Tensor(index, pool.padding[dim])
    window = aten.sub.Tensor(_divided(place, stride), steps)
    clamped = aten.clamp.default(window, 0, count - 1)
    inside = aten.eq.Tensor(window, clamped)
    if (steps + 1) * stride > pool.kernel[dim]:
        within = aten.sub.Tensor(place, aten.mul.Tensor(window, stride))
        inside = aten.logical_and.default(inside, aten.lt.Scalar(within, pool.kernel[dim]))
    flat = aten.mul.Tensor(index, math.prod(pool.sizes[dim + 1 :]))
    return _Around(*(pool.along(v, dim) for v in (clamped, inside, flat)))


def _divided(index: torch.Tensor, by: int) -> torch.Tensor:
    """Of numbers that are not negative; a shift is cheap enough for every reader to repeat it."""
    found: torch.Tensor = index
    if by & (by - 1):
        found = aten.div.Tensor_mode(index, by, rounding_mode="floor")
    elif by > 1:
        found = aten.bitwise_right_shift.Tensor_Scalar(index, by.bit_length() - 1)
    return found


def _over_windows(
    pool: _Pool, x: torch.Tensor, share: Callable[[list[_Around]], torch.Tensor]
) -> Any:
    """The sum, over all windows that an element is in, of its share of each."""
    several = [-(-k // s) for k, s in zip(pool.kernel, pool.stride, strict=True)]
    if math.prod(several) > MOST_FOUND:
        return NotImplemented
    around = [[_around(pool, i, n, x) for n in range(most)] for i, most in enumerate(several)]
    parts = [share(list(windows)) for windows in itertools.product(*around)]
    return to(_total(parts), x.dtype)


def _laid(opened: Callable[..., Any]) -> Callable[..., Any]:
    """With results in the order in memory that the vendor's kernels give: contiguous, or channels
    last where x is so. What is opened would follow any strides of x."""

    def pooled(x: torch.Tensor, *how: Any) -> Any:
        found = opened(x, *how)
        if found is NotImplemented or x.is_contiguous():
            return found
        order = suggest_memory_format(x)
        return tree_map_only(torch.Tensor, lambda result: dense(result, order), found)

    return pooled


POOLS: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d.default: _laid(_averaged(2)),
    aten.avg_pool3d.default: _laid(_averaged(3)),
    aten.avg_pool2d_backward.default: _averaged_back(2),
    aten.avg_pool3d_backward.default: _averaged_back(3),
    aten._adaptive_avg_pool2d.default: _laid(_adaptive(2, _averaged)),
    aten._adaptive_avg_pool3d.default: _laid(_adaptive(3, _averaged)),
    aten._adaptive_avg_pool2d_backward.default: _adaptive_back(
        2, _averaged_back, False, True, None
    ),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_back(
        3, _averaged_back, False, True, None
    ),
    aten.max_pool2d_with_indices.default: _laid(_largest(2)),
    aten.max_pool3d_with_indices.default: _laid(_largest(3)),
    aten.max_pool2d_with_indices_backward.default: _largest_back(2),
    aten.max_pool3d_with_indices_backward.default: _largest_back(3),
    aten.adaptive_max_pool2d.default: _laid(_adaptive(2, _largest)),
    aten.adaptive_max_pool3d.default: _laid(_adaptive(3, _largest)),
    aten.adaptive_max_pool2d_backward.default: _adaptive_back(2, _largest_back, [1], False),
    aten.adaptive_max_pool3d_backward.default: _adaptive_back(3, _largest_back, [1], False),
}
