"""Inputs of a model from their types and shapes: `--inputs 'float32[8, 1024], int64[8]'`."""

from __future__ import annotations

import re

import torch

from ..planner.errors import ModelError
from ..planner.graph.dtypes import DTYPES, FLOAT8

_TENSOR = re.compile(r"\s*(\w+)\s*\[([\d,\s]*)\]\s*(?:,|$)")
_NAMES = sorted(DTYPES - FLOAT8)


def are_shapes(text: str) -> bool:
    """Whether it is meant as types and shapes, and not as a file."""
    return "[" in text and ".py" not in text


def made_inputs(text: str, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Contiguous tensors of these types and shapes, the same in every run: floats are normally
    distributed, integers and bools are 0 or 1. Raises ModelError."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    tensors, at = [], 0
    while at < len(text):
        found = _TENSOR.match(text, at)
        if found is None:
            raise ModelError(
                f"--inputs {text!r}: {text[at:].strip()!r} is not a type and a shape; write them "
                "as in 'float32[8, 1024], int64[8]', or name a function: FILE.py:FUNCTION"
            )
        tensors.append(_tensor(found[1], found[2], generator).to(device))
        at = found.end()
    return tuple(tensors)


def _tensor(name: str, sizes: str, generator: torch.Generator) -> torch.Tensor:
    if name not in _NAMES:
        raise ModelError(f"--inputs: there is no type {name!r}; there are {', '.join(_NAMES)}")
    shape = [int(size) for size in sizes.split(",") if size.strip()]
    dtype: torch.dtype = getattr(torch, name)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
