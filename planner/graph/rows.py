"""What a row of the operation table says; see `ops.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CostClass = Literal["move", "fma", "sfu", "div", "libdevice"]
Promotion = Literal["default", "float", "bool", "same"]
Law = Literal[
    "",
    "copy",  # the operand itself, perhaps in another dtype
    "add",  # self + other * alpha
    "sub",  # self - other * alpha
    "rsub",  # other - self * alpha
    "mul",  # self * other
    "div",  # self / other
    "neg",
    "exp",
    "exp2",
    "select",  # self where condition, else other
    "lt",
    "le",
    "gt",
    "ge",
    "and",  # of booleans
    "or",
    "not",
    "rising",  # does not fall when an operand rises
    "rising_from_0",  # the same, for operands of at least 0
    "wrap",  # self where it is not negative, else self + size
]
"""What algebra may assume of a pointwise operation (see `online.py`)."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`expr` computes one element. Operands come in the dtype that PyTorch's type promotion
    gives them ("float": integers become float32; "bool": promoted, and the result is bool;
    "same": untouched), 16-bit floats as float32.

    relaxed: used instead where the value is rounded to bfloat16 before anything reads it;
    its relative error must stay under 2**-10. quick: used for float32 where no output of the
    kernel is wider than 16 bits, and for a matrix product that was rounded to 16 bits; relative
    error under 2**-18, of an exponential under 2**-17 at the ends of its range. on_bool: used when
    the operands are bool. wide: used for float64, where a correctly rounded function takes only
    float32. flushing: used instead of either where it is no matter that what is below 2**-126
    becomes 0. summed: used in float32 where only sums of thousands of results are seen, in
    which its rounding errors, small or random, are lost. rounds_numbers: a number beside a 16-bit
    float is rounded to that before it is used. checks_numbers: eager refuses a number that the
    type of the operands has not, where others wrap it.
    """

    expr: str
    cost: CostClass = "fma"
    promotion: Promotion = "default"
    relaxed: str | None = None
    on_bool: str | None = None
    wide: str | None = None
    law: Law = ""
    quick: str | None = None
    quick_cost: CostClass = "sfu"
    flushing: str | None = None
    summed: str | None = None
    rounds_numbers: bool = False
    checks_numbers: bool = False

    def form(self, dtype: str) -> str:
        """The expression for operands of a floating dtype, as exact as it gets."""
        return (self.wide or self.expr) if dtype == "float64" else self.expr


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to the node's own dtype."""


@dataclass(frozen=True, slots=True)
class Monoid:
    """combine is an expression over {a} and {b}; reduce one over {x} and {axis}, dimensions kept.

    identity: by kind of dtype ("float", "int", "bool"), as Triton text; {lowest} and {highest}
    stand for the dtype's own bounds.
    """

    name: str
    identity: Mapping[str, str] = field(hash=False)
    combine: str
    reduce: str


@dataclass(frozen=True, slots=True)
class Reduction:
    """A fold over `dim` (all dimensions when absent). `scale` "mean" divides by the count."""

    monoid: Monoid
    dim: str = "dim"
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Contraction:
    """beta * bias + alpha * left @ right, the names being those of the schema's arguments; leading
    dimensions are batches."""

    left: str
    right: str
    bias: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """An index map: no work. `kind` says which rule in `trace.py` reads its arguments."""

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
    the source's."""

    source: str
    index: str
    wraps: bool = False
    along: bool = False


Row = Pointwise | Cast | Reduction | Contraction | View | Concat | Constant | Iota | Lookup
