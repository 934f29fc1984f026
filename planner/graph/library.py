"""Operations of our own, for what ATen has no pure elementwise form of. Run by eager they give the
very bits that generated kernels give."""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("fusionplan", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "bitcast(Tensor self, ScalarType dtype) -> Tensor",
    "exceeds(Tensor self, Tensor other) -> Tensor",
    "uniform(Tensor seed, Tensor index) -> Tensor",
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


for _name, _function in (("bitcast", _bitcast), ("exceeds", _exceeds), ("uniform", _uniform)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
