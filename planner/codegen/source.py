"""What code generation hands to compilation: kernel text, the buffers it touches, its launch."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import TensorType


@dataclass(frozen=True, slots=True)
class Buffer:
    """One pointer argument: `kind` "in" (group input), "out" (group output) or "tmp" (a buffer
    that lives from one kernel of the group to a later one); `index` counts within the kind."""

    kind: str
    index: int
    dtype: str


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One Triton kernel. `text` is a whole module without launch code: imports, helper functions
    and the `@triton.jit` function `name`, whose arguments are the pointers of `buffers` in order
    and nothing else: every size is a literal in the text. The grid is one-dimensional."""

    name: str
    text: str
    buffers: tuple[Buffer, ...]
    grid: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Program:
    """The kernels of one group in launch order, with the temporaries between them."""

    kernels: tuple[KernelSource, ...]
    temporaries: tuple[TensorType, ...] = ()
