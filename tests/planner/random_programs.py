"""Random programs of tensor operations that float64 tells the true results of.

A program is text: a function whose annotations name the inputs, so that a failure is a file that
runs. Every step is evaluated while it is written: in float64, in its own types, and in float64
with every result disturbed. A step stays only where eager's result is finite, of usual size, and
where the disturbance does not grow: so the accuracy rule needs no loosening for the functions that
no arithmetic computes well. Comparisons, and what else jumps, only read values that are exact.
`random_graphs.py` has the steps.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

Choose = Callable[[int], int]
"""A number from 0 to n - 1."""

FLOATS = (*["float32", "bfloat16", "float16"] * 3, "float64")
"""Types to pick of, some more often."""
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 70, 130)
LARGEST_INPUT, LARGEST = 600, 4000
SMALL, GREAT = 1e-2, 1e3
"""The largest element of every float value lies between them."""
DISTURBANCE, GROWTH = 1e-9, 6.0
"""Every float64 result is moved by at most so much of its size; of the sum of all these, no result
may see more than so many times its own."""


@dataclass(frozen=True, slots=True)
class Program:
    """inputs: name, dtype and shape of each. lines: name and expression of each value, in order;
    expressions read inputs and earlier values."""

    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    lines: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        given = ", ".join(f'{name}: "{dtype}{list(shape)}"' for name, dtype, shape in self.inputs)
        body = "".join(f"    {name} = {text}\n" for name, text in self.lines)
        return f"def graph({given}):\n{body}    return ({', '.join(self.outputs)},)\n"

    def function(self, *, wide: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """What runs it. wide: casts to floating-point types are casts to float64."""
        names = dict(scope(wide=wide))
        exec(compile(str(self), "<random graph>", "exec"), names)
        return names["graph"]

    def data(self, seed: int) -> list[torch.Tensor]:
        """Inputs: normal deviates, small integers, coin tosses. Each has its own by its name, also
        in a smaller program."""
        return [drawn(*given, seed) for given in self.inputs]


def parsed(text: str) -> Program:
    """The program of a text; inverse of `str`."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    inputs = []
    for argument in function.args.args:
        dtype, _, shape = ast.literal_eval(argument.annotation).partition("[")
        sizes = tuple(int(n) for n in shape.rstrip("]").split(",") if n.strip())
        inputs.append((argument.arg, dtype, sizes))
    *lines, result = function.body
    assert all(isinstance(line, ast.Assign) for line in lines)
    assert isinstance(result, ast.Return)
    return Program(
        tuple(inputs),
        tuple((line.targets[0].id, ast.unparse(line.value)) for line in lines),
        tuple(name.id for name in result.value.elts),
    )


def scope(*, wide: bool = False) -> dict[str, object]:
    """The names that an expression may use."""

    def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(torch.float64 if wide and dtype.is_floating_point else dtype)

    def written(value: torch.Tensor, *writes: Callable[[torch.Tensor], object]) -> torch.Tensor:
        """A copy that these wrote into, one after the other."""
        copy = value.clone()
        for write in writes:
            write(copy)
        return copy

    numbers = {"inf": math.inf, "nan": math.nan}
    return {"torch": torch, "F": F, "cast": cast, "written": written, **numbers}


def drawn(name: str, dtype: str, shape: Sequence[int], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + int(name[1:]))
    if dtype in INTEGERS:
        least = 0 if dtype == "uint8" else -4
        found = torch.randint(least, 5, tuple(shape), generator=generator)
    elif dtype == "bool":
        found = torch.randint(0, 2, tuple(shape), generator=generator)
    else:
        found = torch.randn(tuple(shape), generator=generator)
    return _laid(found.to(getattr(torch, dtype)), int(name[1:]))


def _laid(values: torch.Tensor, number: int) -> torch.Tensor:
    """Some inputs lie in memory with dimensions in reversed order, with gaps, or do not begin where
    their memory does."""
    way = number % 11
    if way == 3:
        order = tuple(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    if way == 5:
        wide = values.new_zeros((*values.shape, 2))
        wide[..., 0] = values
        return wide[..., 0]
    if way == 8:
        flat = values.new_zeros(values.numel() + 1)
        flat[1:] = values.reshape(-1)
        return flat[1:].view(values.shape)
    return values


def is_smooth(program: Program, seed: int) -> bool:
    """Whether gradients see no more of a rounding of every result than a part of their size: else
    the accuracy rule says nothing of them. Roundings are of the coarsest type of the program."""
    text = str(program)
    size = 2.0**-8 if "bfloat16" in text else 2.0**-11 if "float16" in text else 1e-6
    data = [x.double() if x.is_floating_point() else x for x in program.data(seed)]

    def gradients(noise: float) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def rounded(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point():
                return value
            drawn = torch.rand(value.shape, generator=generator, dtype=value.dtype) * 2 - 1
            return value * (1 + noise * drawn)

        lines = tuple((name, f"rounded({line})") for name, line in program.lines)
        names = {**scope(wide=True), "rounded": rounded}
        exec(compile(str(replace(program, lines=lines)), "<random graph>", "exec"), names)
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in data]
        reached = [o for o in names["graph"](*given) if o.requires_grad]  # type: ignore[operator]
        wanted = [x for x in given if x.requires_grad]
        if not reached or not wanted:
            return []
        ones = [torch.ones_like(o) for o in reached]
        found = torch.autograd.grad(reached, wanted, ones, allow_unused=True)
        return [g for g in found if g is not None]

    try:
        exact, moved = gradients(0.0), gradients(size)
    except RuntimeError:  # not differentiable by one of its inputs
        return False
    return bool(exact) and all(
        bool(torch.isfinite(a).all())
        and SMALL <= a.abs().max().item() <= GREAT
        and (a - b).abs().max().item() <= GROWTH * size * a.abs().max().item()
        for a, b in zip(exact, moved, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Value:
    """A value in the three ways. exact: no arithmetic rounds it, so it may be compared."""

    name: str
    own: torch.Tensor
    wide: torch.Tensor
    moved: torch.Tensor
    exact: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.own.shape)

    @property
    def dtype(self) -> str:
        return str(self.own.dtype).removeprefix("torch.")

    @property
    def is_float(self) -> bool:
        return self.own.is_floating_point()


@dataclass(slots=True)
class Writer:
    """Writes a program, step by step."""

    choose: Choose
    seed: int
    values: dict[str, Value] = field(default_factory=dict)
    inputs: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def pick(self, items: Sequence):
        return items[self.choose(len(items))]

    def value(self, want: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """One of the values that are as wanted, the latest ones more often."""
        found = [v for v in self.values.values() if want(v)]
        if not found:
            return None
        first = self.choose(len(found))
        return found[max(first, self.choose(len(found)))]

    def floating(self) -> Value:
        return self.value(lambda v: v.is_float) or self.input(self.pick(FLOATS), self.shape())

    def shape(self) -> tuple[int, ...]:
        sizes: list[int] = []
        for _ in range(self.pick((2, 3, 2, 1, 4, 0))):
            size = self.pick(SIZES[1:] if self.choose(6) else SIZES)
            if math.prod(sizes) * size <= LARGEST_INPUT:
                sizes.append(size)
        return tuple(sizes)

    def input(self, dtype: str, shape: tuple[int, ...]) -> Value:
        """A new input."""
        name = f"a{len(self.inputs)}"
        self.inputs.append((name, dtype, shape))
        own = drawn(*self.inputs[-1], self.seed)
        wide = own.double() if own.is_floating_point() else own
        self.values[name] = Value(name, own, wide, wide, True)
        return self.values[name]

    def add(self, text: str, *reads: Value, exact: bool = False) -> Value | None:
        """The value of an expression over these values, or None where the step must not be."""
        exact = exact and all(v.exact for v in reads)
        try:
            own, wide, moved = (
                eval(text, scope(wide=i > 0) | {v.name: each[i] for v, each in ways(reads)})
                for i in range(3)
            )
        except (RuntimeError, ValueError, IndexError):  # not for these types or shapes
            return None
        if own.numel() > LARGEST or own.numel() == 0:
            return None
        if own.is_floating_point():
            size = wide.abs().max().item()
            if not (torch.isfinite(own).all() and SMALL <= size <= GREAT):
                return None
            if not exact:
                generator = torch.Generator().manual_seed(self.seed + len(self.lines))
                noise = torch.randint(0, 2, wide.shape, generator=generator) * 2 - 1
                moved = moved + DISTURBANCE * size * noise
            if (moved - wide).abs().max().item() > GROWTH * DISTURBANCE * size:
                return None
        elif not torch.equal(own, wide):
            return None
        name = f"v{len(self.lines)}"
        self.lines.append((name, text))
        self.read |= {v.name for v in reads}
        exact = exact or not own.is_floating_point()
        self.values[name] = Value(name, own, wide, moved, exact)
        return self.values[name]

    def program(self) -> Program:
        ends = [name for name, _ in self.lines if name not in self.read]
        more = [name for name, _ in self.lines if name in self.read]
        ends += [name for name in more if self.choose(8) == 0]
        inputs = (given for given in self.inputs if given[0] in self.read)
        return Program(tuple(inputs), tuple(self.lines), tuple(ends))


def ways(values: Sequence[Value]) -> list[tuple[Value, tuple[torch.Tensor, ...]]]:
    return [(v, (v.own, v.wide, v.moved)) for v in values]
