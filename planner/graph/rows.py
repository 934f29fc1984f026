"""The kinds of rows of the operation table; see `ops.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .op import Op
from .texts import CostClass, cost_of

Promotion = Literal["default", "float", "bool", "same"]


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`op` of one element of each operand. Operands come in the dtype that PyTorch's type promotion
    gives them ("float": integers become float32; "bool": promoted, and the result is bool;
    "same": untouched), 16-bit floats as float32.

    rounds_numbers: a number beside a 16-bit float is rounded to that before it is used.
    checks_numbers: eager refuses a number that the type of the operands has not, where others wrap
    it.
    """

    op: Op
    promotion: Promotion = "default"
    rounds_numbers: bool = False
    checks_numbers: bool = False

    @property
    def cost(self) -> CostClass:
        """Of its exact form."""
        return cost_of(self.op)


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to the node's own dtype. by_user: the user wrote it, so that it rounds; else a
    decomposition made it."""

    by_user: bool = False


@dataclass(frozen=True, slots=True)
class Monoid:
    """combine is an expression over {a} and {b}; reduce one over {x} and {axis}, dimensions kept.

    identity: by kind of dtype ("float", "int", "bool"), as Triton text; {lowest} and {highest}
    stand for the dtype's own bounds. scan: an expression over {x}, {axis} and {reverse} that
    combines each element with all before it; "" where no operation asks for it. slots: issue slots
    of one combination.
    """

    name: str
    identity: Mapping[str, str] = field(hash=False)
    combine: str
    reduce: str
    scan: str = ""
    slots: float = 1.0


@dataclass(frozen=True, slots=True)
class Reduction:
    """A fold over `dim` (all dimensions when absent). mean: divided by the count."""

    monoid: Monoid
    dim: str = "dim"
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Cumulative:
    """Each element combined with all before it along `dim`, in the node's own dtype. quick: the
    monoid that is exact enough for results of 16 bits, where it is another."""

    monoid: Monoid
    quick: Monoid | None = None


@dataclass(frozen=True, slots=True)
class Contraction:
    """beta * bias + alpha * left @ right, the names being those of the schema's arguments; leading
    dimensions are batches."""

    left: str
    right: str
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A convolution of every channel with a filter of its own, and perhaps a bias for each: by the
    names of `aten.convolution`."""


@dataclass(frozen=True, slots=True)
class View:
    """An index map: no work. `kind` says which rule in `trace/views.py` reads its arguments."""

    kind: Literal[
        "reshape",
        "permute",
        "expand",
        "squeeze",
        "unsqueeze",
        "slice",
        "select",
        "flip",
        "strided",  # other strides over the same memory: only of what lies in memory
    ]


@dataclass(frozen=True, slots=True)
class Concat:
    """Several operands side by side along `dim`: a choice by index, each operand shifted."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number everywhere; `argument` names it in the schema, or it is `value`."""

    argument: str = ""
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Iota:
    """start + step * index along the only dimension."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Elements of `source` at places that the values of `index` name, along one dimension (`dim`,
    else the first), or along several where the index is a list. wraps: a negative index counts
    from the end. along: the index has the dimensions of the result, else they take the place of
    the source's. inside: what gives the index promises that no place lies outside."""

    source: str
    index: str
    wraps: bool = False
    along: bool = False
    inside: bool = False


@dataclass(frozen=True, slots=True)
class IndexedWrite:
    """`values` written into `target`, in place, at places that the tensors of `index` name; a
    negative one counts from the end. The result is the target."""

    target: str
    index: str
    values: str

    @property
    def source(self) -> str:
        """What the index is one of, as of a `Lookup`."""
        return self.target

    @property
    def wraps(self) -> bool:
        """Whether a negative index counts from the end."""
        return True


Row = (
    Pointwise
    | Cast
    | Reduction
    | Cumulative
    | Contraction
    | Depthwise
    | View
    | Concat
    | Constant
    | Iota
    | Lookup
    | IndexedWrite
)
