"""The result of code generation: the text of a kernel, the buffers it touches, and its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.graph import TensorType
from ..tiles.descriptors import Descriptor

BEGIN_NEXT, AWAIT_LAST = "gdc_launch_dependents", "gdc_wait"
"""Programmatic dependent launch, of compute capability 9.0 and above: what lets the next kernel be
launched, and what waits for the last one. Both do nothing where the launch did not ask for it."""

LOOP, DOT, SCAN = "tl.range(", "tl.dot(", "tl.associative_scan("
REDUCTIONS = "tl.sum(", "tl.max(", "tl.min(", "tl.reduce("
"""A loop, a product of tiles, a scan, and reductions, in a kernel's text."""

TF32 = 'input_precision="tf32"'
"""The option of a product of float32 that may be computed in TF32."""


def loads_early(text: str) -> bool:
    """Whether a kernel, the last function of its text, loads before it waits for the last one."""
    before, waits, _ = text.partition(f".{AWAIT_LAST}()")
    return bool(waits) and "tl.load(" in before[before.rfind("@triton.jit") :]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One argument: `kind` "in" (group input), "out" (group output) or "tmp" (a buffer that lives
    from one kernel of the group to a later one; "row" until it has its place among those: the
    copies of an input's row); `index` counts within the kind. A pointer, or a
    tensor descriptor when `descriptor` is given; one buffer may be several arguments."""

    kind: str
    index: int
    dtype: str
    descriptor: Descriptor | None = None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a kernel takes as an argument because it varies: an integer, which is a
    multiple of 16 if `aligned`, or a float, of 32 bits."""

    value: int | float
    aligned: bool = False

    @property
    def kind(self) -> str:
        """Triton's name for its type."""
        if isinstance(self.value, float):
            return "fp32"
        return "i32" if -(2**31) <= self.value < 2**31 else "i64"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One Triton kernel. `text` is a whole module without launch code: imports, helper functions
    and the `@triton.jit` function `name`, whose arguments are `buffers` and then `scalars`, in
    order: every other number is a literal in the text. The grid is one-dimensional. plain: the
    same kernel by pointers only, for buffers that no descriptor can describe because they are not
    aligned; its buffers are among ours, in an order of its own. dependent: launched while the
    kernel before it ends, for which each waits itself. contracts: a product and a sum may be one
    instruction, which does not round the product."""

    name: str
    text: str
    buffers: tuple[Buffer, ...]
    grid: int
    num_warps: int
    num_stages: int
    plain: KernelSource | None = None
    scalars: tuple[Scalar, ...] = ()
    dependent: bool = False
    contracts: bool = True
    before: KernelSource | None = None
    """What copies rows for it, until both are kernels of a program."""
    copies: bool = False
    """Whether it only copies rows for the kernel after it."""


@dataclass(frozen=True, slots=True)
class Program:
    """The kernels of one group in launch order, with the temporaries between them."""

    kernels: tuple[KernelSource, ...]
    temporaries: tuple[TensorType, ...] = ()
    written: tuple[tuple[int, int], ...] = ()
    """Outputs that are inputs, written in place: the place of each, and that of the input."""
    renews: frozenset[tuple[int, int]] = frozenset()
    """Outputs that may be written into an input, for each of its elements is read only where the
    same element of the output is written then: the place of each, and that of the input."""

    def placed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The outputs, with inputs in place of those that are such."""
        found = list(outputs)
        for output, place in self.written:
            found[output] = inputs[place]
        return found
