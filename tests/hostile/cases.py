"""What a hostile case is, and how its inputs are written down.

An input is a word: a dtype, a shape, then what its numbers are (`!`) and how it lies in memory
(`@`). `f32[5,7]!special@t` is a float32 of 5 by 7, of special values, with the strides of a
transposed tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_WORD = re.compile(r"(\w+)\[([\d,]*)\](?:!([^@]+))?(?:@(\w+))?$")

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -1.5, 2.5, -2.5, 1e-3, 10.0)
LARGE = (100.0, -100.0, 1e4, -1e4)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at which functions are odd, infinities and NaN among them."""
    info = torch.finfo(dtype)
    edges = (info.max, -info.max, info.tiny, -info.tiny, info.eps, 1 + info.eps, 1 - info.eps)
    odd = (float("inf"), -float("inf"), float("nan"))
    return torch.tensor([*odd, *SPECIAL, *LARGE, *edges], dtype=torch.float64).to(dtype)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes inputs: the same numbers for the same seed in every dtype. wide: floats as float64,
    after they were rounded to the dtype that was asked for."""

    seed: int
    device: str
    wide: bool = False
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.generator.manual_seed(self.seed)

    def __call__(self, word: str) -> torch.Tensor:
        found = _WORD.match(word)
        assert found, f"{word} is no input"
        dtype, shape = DTYPES[found[1]], tuple(int(n) for n in found[2].split(",") if n)
        values = self._numbers(dtype, shape, found[3] or "").to(self.device, dtype)
        if self.wide and dtype.is_floating_point:
            values = values.double()
        return _laid(values, found[4] or "")

    def all(self, words: str) -> tuple[torch.Tensor, ...]:
        return tuple(map(self, words.split()))

    def _numbers(self, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> torch.Tensor:
        g = self.generator
        if kind.startswith("<"):
            return torch.randint(0, int(kind[1:]), shape, generator=g)
        if dtype == torch.bool:
            return torch.rand(shape, generator=g) < (float(kind) if kind else 0.5)
        if kind == "zero":
            return torch.zeros(shape)
        if not dtype.is_floating_point:
            return self._integers(dtype, shape, kind)
        drawn = torch.randn(shape, generator=g)
        if kind in ("special", "finite"):
            cycle = special(dtype)[3 * (kind == "finite") :]
            numbers = torch.arange(drawn.numel()) + self.seed
            return cycle[numbers % len(cycle)].reshape(shape)
        if kind == "ties":
            return (drawn * 1.5).round()
        if kind == "steps":
            return (drawn * 8).round() / 8
        if kind == "pos":
            return drawn.abs() + 0.1
        if kind == "unit":
            return torch.rand(shape, generator=g)
        return drawn * (float(kind) if kind else 1.0)

    def _integers(self, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> torch.Tensor:
        info = torch.iinfo(dtype)
        if kind == "full":
            edges = (info.min, info.max, 0, 1, info.min + 1, info.max - 1, info.max // 2, 7)
            values = torch.randint(info.min, info.max, shape, generator=self.generator)
            flat = values.reshape(-1)
            few = min(len(edges), flat.numel())
            flat[:few] = torch.tensor(edges[:few])
            return flat.reshape(shape)
        least = 0 if dtype == torch.uint8 else -9
        if kind == "nonzero":
            values = torch.randint(1, 10, shape, generator=self.generator)
            flip = torch.rand(shape, generator=self.generator) < 0.5
            return torch.where(flip, -values, values) if least else values
        return torch.randint(least, 10, shape, generator=self.generator)


def _laid(values: torch.Tensor, way: str) -> torch.Tensor:
    """The same numbers with other strides, or another offset in their storage."""
    if way == "t":  # the order of a transposed tensor
        return values.mT.contiguous().mT if values.dim() > 1 else values
    if way == "s":  # every second element
        wide = values.new_zeros((*values.shape, 2))
        wide[..., 0] = values
        return wide[..., 0]
    if way == "o":  # not at the start of its storage, and not aligned
        flat = values.new_zeros(values.numel() + 1)
        flat[1:] = values.reshape(-1)
        return flat[1:].view(values.shape)
    if way == "e":  # the first row again and again
        return values[:1].expand_as(values)
    if way == "r":  # dimensions in reversed order in memory
        order = tuple(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    assert not way, f"@{way} is no way to lie in memory"
    return values


Inputs = str | Callable[[Maker], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Case:
    """inputs: of each call, in order; several calls go to one compiled function. grad: floats
    among the inputs ask for gradients. dynamo: captured by torch.compile, else by AOTAutograd
    alone, which is much quicker. dynamic: with sizes that vary. ours: at least one kernel of ours
    has to run. fails: eager refuses it, and so must we. by: errors are relative to each
    "element", or to the largest of the "tensor". cpu: eager has it on the CPU alone; cuda: on a GPU
    alone."""

    family: str
    name: str
    inputs: tuple[Inputs, ...]
    function: Callable[..., Any]
    grad: bool = False
    dynamo: bool = False
    dynamic: bool = False
    ours: bool = True
    fails: bool = False
    by: str = "tensor"
    cpu: bool = False
    cuda: bool = False

    def __str__(self) -> str:
        return f"{self.family}/{self.name}"

    def make(self, call: int, seed: int, device: str, wide: bool = False) -> list[torch.Tensor]:
        maker, given = Maker(seed, device, wide), self.inputs[call]
        made = list(maker.all(given) if isinstance(given, str) else given(maker))
        if self.grad:
            made = [x.requires_grad_() if x.is_floating_point() else x for x in made]
        return made


class Family:
    """Cases of one kind, with what holds for all of them."""

    def __init__(self, name: str, **flags: Any) -> None:
        self.name, self.flags = name, flags
        self.cases: list[Case] = []

    def __call__(
        self,
        name: str,
        inputs: Inputs | Sequence[Inputs],
        function: Callable[..., Any],
        **flags: Any,
    ) -> None:
        given = (inputs,) if isinstance(inputs, str) or callable(inputs) else tuple(inputs)
        flags = {**self.flags, **flags}
        self.cases.append(Case(self.name, name, given, function, **flags))
