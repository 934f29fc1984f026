"""The operation table: one row for every ATen overload a kernel can hold.

No later stage asks for an operation's name: what it must know stands in the row. Rows of pointwise
operations carry a Triton expression whose fields are the argument names of ATen's own schema.
An overload with no row is opaque: it runs as `aten` and is never inside a generated kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .graph import INPUT, Arg, Node, Symbol

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
]
"""What algebra may assume of a pointwise operation (see `online.py`)."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`expr` computes one element. Operands come in the dtype that PyTorch's type promotion
    gives them ("float": integers become float32; "bool": promoted, and the result is bool;
    "same": untouched), 16-bit floats as float32.

    relaxed: used instead where the value is rounded to bfloat16 before anything reads it;
    its relative error must stay under 2**-10. quick: used for float32 where no output of the
    kernel is wider than 16 bits; relative error under 2**-18, of an exponential under 2**-17 at
    the ends of its range. on_bool: used when the operands are bool. wide: used for float64, where
    a correctly rounded function takes only float32.
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
    """An index map: no work. `kind` says which rule in `axes.py` reads its arguments."""

    kind: Literal["reshape", "permute", "expand", "squeeze", "unsqueeze", "slice", "select"]


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


Row = Pointwise | Cast | Reduction | Contraction | View | Concat | Constant | Iota

_LOG2E, _LN2 = "1.4426950408889634", "0.6931471805599453"

SUM = Monoid(
    "sum",
    {"float": "0.0", "int": "0", "bool": "0"},
    "{a} + {b}",
    "tl.sum({x}, {axis})",
)
PROD = Monoid("prod", {"float": "1.0", "int": "1", "bool": "1"}, "{a} * {b}", "prod({x}, {axis})")
MAX = Monoid(
    "max",
    {"float": 'float("-inf")', "int": "{lowest}", "bool": "0"},
    "tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "max_nan({x}, {axis})",
)
MIN = Monoid(
    "min",
    {"float": 'float("inf")', "int": "{highest}", "bool": "1"},
    "tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "min_nan({x}, {axis})",
)
ANY = Monoid("any", {"bool": "0"}, "{a} | {b}", "tl.max({x}, {axis})")
ALL = Monoid("all", {"bool": "1"}, "{a} & {b}", "tl.min({x}, {axis})")


def _float(
    expr: str,
    cost: CostClass = "libdevice",
    relaxed: str | None = None,
    wide: str | None = None,
    law: Law = "",
    quick: str | None = None,
) -> Pointwise:
    return Pointwise(expr, cost, "float", relaxed, wide=wide, law=law, quick=quick)


_LAWS: dict[str, Law] = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _compare(sign: str) -> Pointwise:
    return Pointwise("{self} " + sign + " {other}", promotion="bool", law=_LAWS.get(sign, ""))


_ADD = Pointwise("{self} + {other} * {alpha}", on_bool="{self} | {other}", law="add")
_SUB = Pointwise("{self} - {other} * {alpha}", law="sub")
_RSUB = Pointwise("{other} - {self} * {alpha}", law="rsub")
_MUL = Pointwise("{self} * {other}", on_bool="{self} & {other}", law="mul")
_DIV = _float(
    "tl.div_rn({self}, {other})",
    "div",
    "{self} / {other}",
    "{self} / {other}",
    law="div",
    quick="{self} / {other}",
)
_MAXIMUM = Pointwise("tl.maximum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)", law="rising")
_MINIMUM = Pointwise("tl.minimum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)", law="rising")
_POW = _float("libdevice.pow({self}, {exponent})")
_AND = Pointwise("{self} & {other}", law="and")
_OR = Pointwise("{self} | {other}", law="or")
_XOR = Pointwise("{self} ^ {other}")
_CLAMP = Pointwise("clamp({self}, {min}, {max})", law="rising")
_REMAINDER = Pointwise("remainder({self}, {other})", "div")
_FMOD = Pointwise("libdevice.fmod({self}, {other})", "div")

_POINTWISE: dict[str, Pointwise] = {
    "exp.default": _float(
        "exp({self})", "sfu", "tl.exp({self})", law="exp", quick="tl.exp({self})"
    ),
    "exp2.default": _float("tl.exp2({self})", "sfu", law="exp2"),
    "expm1.default": _float("libdevice.expm1({self})", law="rising", quick="quick_expm1({self})"),
    "log.default": _float(
        "tl.log({self})",
        relaxed="fast_log({self})",
        law="rising_from_0",
        quick="quick_log({self})",
    ),
    "log2.default": _float("tl.log2({self})", law="rising_from_0"),
    "log10.default": _float("libdevice.log10({self})", law="rising_from_0"),
    "log1p.default": _float(
        "libdevice.log1p({self})", law="rising_from_0", quick="quick_log1p({self})"
    ),
    "sqrt.default": _float(
        "tl.sqrt_rn({self})",
        "div",
        "tl.sqrt({self})",
        "tl.sqrt({self})",
        law="rising_from_0",
        quick="tl.sqrt({self})",
    ),
    "rsqrt.default": _float("tl.rsqrt({self})", "sfu"),
    "reciprocal.default": _float(
        "tl.div_rn(1.0, {self})", "div", "1.0 / {self}", "1.0 / {self}", quick="1.0 / {self}"
    ),
    "sigmoid.default": _float(
        "tl.div_rn(1.0, 1.0 + exp(-{self}))",
        "div",
        "tl.sigmoid({self})",
        "1.0 / (1.0 + exp(-{self}))",
        "rising",
        "1.0 / (1.0 + tl.exp(-{self}))",
    ),
    "tanh.default": _float(
        "libdevice.tanh({self})",
        relaxed="fast_tanh({self})",
        law="rising",
        quick="quick_tanh({self})",
    ),
    "erf.default": _float("tl.erf({self})", law="rising", quick="quick_erf({self})"),
    "erfc.default": _float("libdevice.erfc({self})"),
    **{
        f"{name}.default": _float(f"libdevice.{name}({{self}})")
        for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
    },
    "sin.default": _float("tl.sin({self})"),
    "cos.default": _float("tl.cos({self})"),
    "atan2.default": _float("libdevice.atan2({self}, {other})"),
    "neg.default": Pointwise("-{self}", law="neg"),
    "abs.default": Pointwise("tl.abs({self})"),
    "relu.default": Pointwise("tl.where({self} < 0, 0, {self})", law="rising"),
    "sign.default": Pointwise("({self} > 0).to({self}.dtype) - ({self} < 0).to({self}.dtype)"),
    "floor.default": Pointwise("tl.floor({self})", law="rising"),
    "ceil.default": Pointwise("tl.ceil({self})", law="rising"),
    "trunc.default": Pointwise("libdevice.trunc({self})", law="rising"),
    "round.default": Pointwise("libdevice.rint({self})", law="rising"),
    "isnan.default": Pointwise("{self} != {self}", promotion="bool"),
    "isinf.default": Pointwise('tl.abs({self}) == float("inf")', promotion="bool"),
    "logical_not.default": Pointwise("{self} == 0", promotion="bool", law="not"),
    "bitwise_not.default": Pointwise("~{self}", on_bool="{self} == 0", law="not"),
    "add.Tensor": _ADD,
    "add.Scalar": _ADD,
    "sub.Tensor": _SUB,
    "sub.Scalar": _SUB,
    "rsub.Scalar": _RSUB,
    "rsub.Tensor": _RSUB,
    "mul.Tensor": _MUL,
    "mul.Scalar": _MUL,
    "div.Tensor": _DIV,
    "div.Scalar": _DIV,
    "pow.Tensor_Tensor": _POW,
    "pow.Scalar": _POW,
    "remainder.Tensor": _REMAINDER,
    "remainder.Scalar": _REMAINDER,
    "fmod.Tensor": _FMOD,
    "fmod.Scalar": _FMOD,
    "maximum.default": _MAXIMUM,
    "minimum.default": _MINIMUM,
    "clamp.default": _CLAMP,
    "clamp.Tensor": _CLAMP,
    "clamp_min.default": Pointwise("clamp({self}, {min}, None)", law="rising"),
    "clamp_max.default": Pointwise("clamp({self}, None, {max})", law="rising"),
    "clamp_min.Tensor": Pointwise("clamp({self}, {min}, None)", law="rising"),
    "clamp_max.Tensor": Pointwise("clamp({self}, None, {max})", law="rising"),
    **{
        f"{name}.{overload}": _compare(sign)
        for name, sign in {
            "eq": "==",
            "ne": "!=",
            "lt": "<",
            "le": "<=",
            "gt": ">",
            "ge": ">=",
        }.items()
        for overload in ("Tensor", "Scalar")
    },
    "logical_and.default": Pointwise("({self} != 0) & ({other} != 0)", promotion="bool", law="and"),
    "logical_or.default": Pointwise("({self} != 0) | ({other} != 0)", promotion="bool", law="or"),
    "logical_xor.default": Pointwise("({self} != 0) ^ ({other} != 0)", promotion="bool"),
    **{
        f"bitwise_{name}.{overload}": row
        for name, row in {"and": _AND, "or": _OR, "xor": _XOR}.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        op: Pointwise(f"{side}_shift({{self}}, {{other}})")
        for side, sign in (("left", "l"), ("right", "r"))
        for op in (
            f"bitwise_{side}_shift.Tensor",
            f"bitwise_{side}_shift.Tensor_Scalar",
            f"__{sign}shift__.Tensor",
            f"__{sign}shift__.Scalar",
        )
    },
    "where.self": Pointwise("tl.where({condition}, {self}, {other})", law="select"),
    "clone.default": Pointwise("{self}", "move", "same", law="copy"),
}

_DECOMPOSED_POW = {2.0: "{x} * {x}", 3.0: "{x} * {x} * {x}", 0.5: "tl.sqrt_rn({x})"}

_VIEWS: dict[str, View] = {
    "view.default": View("reshape"),
    "_unsafe_view.default": View("reshape"),
    "reshape.default": View("reshape"),
    "permute.default": View("permute"),
    "transpose.int": View("permute"),
    "t.default": View("permute"),
    "expand.default": View("expand"),
    "squeeze.default": View("squeeze"),
    "squeeze.dim": View("squeeze"),
    "squeeze.dims": View("squeeze"),
    "unsqueeze.default": View("unsqueeze"),
    "slice.Tensor": View("slice"),
    "select.int": View("select"),
    "alias.default": View("reshape"),
    "detach.default": View("reshape"),
}

_REDUCTIONS: dict[str, Reduction] = {
    "sum.dim_IntList": Reduction(SUM),
    "sum.default": Reduction(SUM),
    "mean.dim": Reduction(SUM, mean=True),
    "mean.default": Reduction(SUM, mean=True),
    "prod.default": Reduction(PROD),
    "prod.dim_int": Reduction(PROD),
    "amax.default": Reduction(MAX),
    "amin.default": Reduction(MIN),
    "max.default": Reduction(MAX),
    "min.default": Reduction(MIN),
    "any.default": Reduction(ANY),
    "any.dim": Reduction(ANY),
    "any.dims": Reduction(ANY),
    "all.default": Reduction(ALL),
    "all.dim": Reduction(ALL),
    "all.dims": Reduction(ALL),
}

_CONTRACTIONS: dict[str, Contraction] = {
    "mm.default": Contraction("self", "mat2"),
    "bmm.default": Contraction("self", "mat2"),
    "addmm.default": Contraction("mat1", "mat2", "self"),
    "baddbmm.default": Contraction("batch1", "batch2", "self"),
}

# Nothing is promised of what these hold.
_EMPTY = ("empty.memory_format", "empty_permuted.default", "empty_like.default")

_OTHERS: dict[str, Row] = {
    "cat.default": Concat(),
    "_to_copy.default": Cast(),
    "full.default": Constant("fill_value"),
    "full_like.default": Constant("fill_value"),
    "scalar_tensor.default": Constant("s"),
    "zeros_like.default": Constant(value=0.0),
    "ones_like.default": Constant(value=1.0),
    **dict.fromkeys(_EMPTY, Constant(value=0)),
    "arange.start_step": Iota(),
    "arange.start": Iota(),
    "arange.default": Iota(),
}

OPS: dict[str, Row] = {
    **{f"aten.{name}": row for name, row in _POINTWISE.items()},
    **{f"aten.{name}": row for name, row in _VIEWS.items()},
    **{f"aten.{name}": row for name, row in _REDUCTIONS.items()},
    **{f"aten.{name}": row for name, row in _CONTRACTIONS.items()},
    **{f"aten.{name}": row for name, row in _OTHERS.items()},
    "prims.convert_element_type.default": Cast(),
    "prims.iota.default": Iota(),
    "fusionplan.bitcast.default": Pointwise("{self}", "move", "same"),
    "fusionplan.uniform.default": Pointwise("uniform({seed}, {index})", "div", "same"),
}


_SAME_DEVICE = Symbol("device", "graph")


def row(node: Node) -> Row | None:
    """The node's row, or None when it is opaque: unknown, no single tensor, or an argument that
    the row cannot express (a copy to another device, a power that is no small constant ...)."""
    if node.type is None or node.type.dtype not in DTYPES:
        return None
    if node.op == "aten.pow.Tensor_Scalar":
        return _power(node)
    if node.op == "fusionplan.bitcast.default":
        return Pointwise(f"tl.cast({{self}}, tl.{node.type.dtype}, bitcast=True)", "move", "same")
    found = OPS.get(node.op)
    if isinstance(found, Cast) and bound(node).get("device") not in (None, _SAME_DEVICE):
        return None
    if isinstance(found, Contraction) and node.type.dtype not in _FLOATS:
        return None
    return found


_FLOATS = ("float16", "bfloat16", "float32", "float64")


DTYPES = frozenset(
    (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
)


def _power(node: Node) -> Pointwise:
    exponent = node.args[1]
    if isinstance(exponent, (int, float)) and float(exponent) in _DECOMPOSED_POW:
        text = _DECOMPOSED_POW[float(exponent)].replace("{x}", "{self}")
        promotion: Promotion = "default" if float(exponent).is_integer() else "float"
        wide = text.replace("sqrt_rn", "sqrt")
        cost: CostClass = "fma" if promotion == "default" else "div"
        return Pointwise(text, cost, promotion, wide=wide)
    return _POW


def is_free(node: Node) -> bool:
    """Views and constants: they cost nothing, and a group may take in a copy of them."""
    return isinstance(row(node), (View, Constant, Iota))


def is_compute(node: Node) -> bool:
    """Nodes a generated kernel does work for; together with the free ones, all it can hold."""
    return isinstance(row(node), (Pointwise, Cast, Reduction, Contraction, Concat))


@functools.cache
def _schema(op: str) -> Any:
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema


def bound(node: Node) -> dict[str, Arg]:
    """The node's arguments by the names of its schema, defaults filled in."""
    named: dict[str, Arg] = {}
    given = dict(node.kwargs)
    for position, argument in enumerate(_schema(node.op).arguments):
        if position < len(node.args):
            named[argument.name] = node.args[position]
        elif argument.name in given:
            named[argument.name] = given[argument.name]
        else:
            default = argument.default_value if argument.has_default_value() else None
            named[argument.name] = tuple(default) if isinstance(default, list) else default
    return named


def is_input(node: Node) -> bool:
    return node.op == INPUT
