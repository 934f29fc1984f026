"""The Triton text of each operation, and its cost class.

A text is a Triton expression with the names of the operands as fields. 16-bit floats come as
float32. What it calls beside `tl` is in `codegen/intrinsics.py`.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .op import Accuracy, Op

CostClass = Literal["fma", "sfu", "div", "libdevice"]
"""The unit that computes it: the usual pipes, the special function unit, a division, a function of
a library."""


@dataclass(frozen=True, slots=True)
class OpText:
    """One way to compute an operation.

    scaled: the text with an operand `alpha`, which others leave out. on_bool: for operands that
    are bool. wide: for float64, where a correctly rounded function takes only float32."""

    text: str
    cost: CostClass = "fma"
    scaled: str = ""
    on_bool: str = ""
    on_bool_scaled: str = ""
    wide: str = ""


def _forms(
    exact: str,
    cost: CostClass = "libdevice",
    quick: str = "",
    *,
    wide: str = "",
    relaxed: str = "",
    summed: str = "",
    below_one: str = "",
    flushing: str = "",
) -> Mapping[Accuracy, OpText]:
    """Forms of a function of floats. The quick ones run on the special function unit."""
    found = {
        Accuracy.EXACT: OpText(exact, cost, wide=wide),
        Accuracy.SUMMED: OpText(summed, cost),
        Accuracy.QUICK: OpText(quick, "sfu"),
        Accuracy.RELAXED: OpText(relaxed, "sfu"),
        Accuracy.BELOW_ONE: OpText(below_one, "sfu"),
        Accuracy.FLUSHING: OpText(flushing, "sfu"),
    }
    return {accuracy: form for accuracy, form in found.items() if form.text}


def _only(text: str, on_bool: str = "", *, cost: CostClass = "fma") -> Mapping[Accuracy, OpText]:
    return {Accuracy.EXACT: OpText(text, cost, on_bool=on_bool)}


def _library(function: str, operands: str = "{self}") -> Mapping[Accuracy, OpText]:
    return {Accuracy.EXACT: OpText(f"libdevice.{function}({operands})", "libdevice")}


_MINIMUM = "tl.minimum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)"
_MAXIMUM = "tl.maximum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)"

FORMS: Mapping[Op, Mapping[Accuracy, OpText]] = {
    Op.CONVERT: _only("{self}"),  # converted where it is read, or by what it is stored as
    Op.TRUNCATE: _only("{self}"),
    Op.RECAST: _only("{self}"),
    Op.AS_FLOAT16: _only("as_float16({self})"),
    Op.AS_BFLOAT16: _only("as_bfloat16({self})"),
    Op.AS_FLOAT8_E4M3FN: _only("as_float8_e4m3fn({self})"),
    Op.AS_FLOAT8_E5M2: _only("as_float8_e5m2({self})"),
    Op.BITCAST: _only("tl.cast({self}, {dtype}, bitcast=True)"),
    Op.ADD: {
        Accuracy.EXACT: OpText(
            "{self} + {other}",
            scaled="{self} + {other} * {alpha}",
            on_bool="{self} | {other}",
            on_bool_scaled="{self} | {other} & {alpha}",
        )
    },
    Op.SUB: {Accuracy.EXACT: OpText("{self} - {other}", scaled="{self} - {other} * {alpha}")},
    Op.RSUB: {Accuracy.EXACT: OpText("{other} - {self}", scaled="{other} - {self} * {alpha}")},
    Op.MUL: {
        Accuracy.EXACT: OpText("{self} * {other}", on_bool="{self} & {other}"),
        Accuracy.ROUNDED: OpText("libdevice.mul_rn({self}, {other})"),
    },
    Op.FMA: _only("{self} * {other} + {addend}"),
    Op.DIV: {
        **_forms(
            "tl.div_rn({self}, {other})",
            "div",
            "{self} / {other}",
            wide="{self} / {other}",
            relaxed="{self} / {other}",
            summed="{self} / {other}",
        ),
        # Of the inverse, and rounded before anything is added to it.
        Accuracy.BY_INVERSE: OpText("libdevice.mul_rn({self}, {other})"),
    },
    Op.FLOOR_DIVIDE: _only("floor_divide({self}, {other})", cost="div"),
    Op.TRUNC_DIVIDE: {
        Accuracy.EXACT: OpText("trunc_divide({self}, {other})", "div"),
        Accuracy.BY_INVERSE: OpText("libdevice.trunc({self} * {other})"),
    },
    Op.REMAINDER: _only("remainder({self}, {other})", cost="div"),
    Op.FMOD: _only("fmod({self}, {other})", cost="div"),
    Op.NEG: _only("negative({self})"),
    Op.ABS: _only("tl.abs({self})"),
    Op.RELU: _only("relu({self})"),
    Op.SIGN: _only("({self} > 0).to({self}.dtype) - ({self} < 0).to({self}.dtype)", "{self}"),
    Op.SIGNBIT: _only("signbit({self})"),
    Op.COPYSIGN: _only("copysign({self}, {other})"),
    Op.FLOOR: _only("tl.floor({self})"),
    Op.CEIL: _only("tl.ceil({self})"),
    Op.TRUNC: _only("libdevice.trunc({self})"),
    Op.ROUND: _only("libdevice.rint({self})"),
    Op.MAXIMUM: _only(_MAXIMUM),
    Op.MINIMUM: _only(_MINIMUM),
    Op.FMAX: _only("fmax({self}, {other})", "{self} | {other}"),
    Op.FMIN: _only("fmin({self}, {other})", "{self} & {other}"),
    Op.CLAMP: _only("clamp({self}, {min}, {max})"),
    Op.CLAMP_MIN: _only("clamp({self}, {min}, None)"),
    Op.CLAMP_MAX: _only("clamp({self}, None, {max})"),
    Op.WHERE: _only("tl.where({condition}, {self}, {other})"),
    Op.EXP: _forms(
        "exp({self})",
        "sfu",
        "tl.exp({self})",
        relaxed="tl.exp({self})",
        below_one="exp_below_one({self})",
        flushing="fast_exp({self})",
    ),
    Op.EXP2: _forms("tl.exp2({self})", "sfu"),
    Op.EXPM1: _forms("libdevice.expm1({self})", quick="quick_expm1({self})"),
    Op.LOG: _forms("tl.log({self})", quick="quick_log({self})", relaxed="fast_log({self})"),
    Op.LOG2: _forms("tl.log2({self})"),
    Op.LOG10: _library("log10"),
    Op.LOG1P: _forms("libdevice.log1p({self})", quick="quick_log1p({self})"),
    Op.SQRT: _forms(
        "tl.sqrt_rn({self})",
        "div",
        "tl.sqrt({self})",
        wide="tl.sqrt({self})",
        relaxed="tl.sqrt({self})",
        summed="tl.sqrt({self})",
    ),
    Op.RSQRT: _forms("tl.rsqrt({self})", "sfu"),
    Op.RECIPROCAL: _forms(
        "tl.div_rn(1.0, {self})",
        "div",
        "1.0 / {self}",
        wide="1.0 / {self}",
        relaxed="1.0 / {self}",
        summed="1.0 / {self}",
    ),
    Op.SIGMOID: _forms(
        "tl.div_rn(1.0, 1.0 + exp(-{self}))",
        "div",
        "fast_sigmoid({self})",
        wide="1.0 / (1.0 + exp(-{self}))",
        relaxed="fast_sigmoid({self})",
        summed="fast_sigmoid({self})",
    ),
    Op.TANH: _forms(
        "libdevice.tanh({self})", quick="quick_tanh({self})", relaxed="fast_tanh({self})"
    ),
    Op.ERF: _forms("tl.erf({self})", quick="quick_erf({self})"),
    Op.TANH_PLUS_ONE: _forms(
        "libdevice.tanh({self}) + 1.0", quick="2.0 * logistic({self} * -2.885390081777927)"
    ),
    Op.ERF_PLUS_ONE: {
        Accuracy.EXACT: OpText(
            "tl.erf({self}) + 1.0", "libdevice", scaled="tl.erf({self} * {alpha}) + 1.0"
        ),
        Accuracy.RELAXED: OpText(
            "erf_plus_one({self}, 1.0)", "sfu", scaled="erf_plus_one({self}, {alpha})"
        ),
    },
    Op.ERFC: _library("erfc"),
    Op.ERFCX: _library("erfcx"),
    Op.ERFINV: _library("erfinv"),
    Op.NDTRI: _library("normcdfinv"),
    Op.LGAMMA: _library("lgamma"),
    Op.SIN: _forms("tl.sin({self})"),
    Op.COS: _forms("tl.cos({self})"),
    Op.TAN: _library("tan"),
    Op.ASIN: _library("asin"),
    Op.ACOS: _library("acos"),
    Op.ATAN: _library("atan"),
    Op.ATAN2: _library("atan2", "{self}, {other}"),
    Op.SINH: _library("sinh"),
    Op.COSH: _library("cosh"),
    Op.ASINH: _library("asinh"),
    Op.ACOSH: _library("acosh"),
    Op.ATANH: _library("atanh"),
    Op.HYPOT: _library("hypot", "{self}, {other}"),
    Op.NEXTAFTER: _only("libdevice.nextafter({self}, {other})", cost="div"),
    Op.BESSEL_I0: _library("cyl_bessel_i0"),
    Op.BESSEL_I1: _library("cyl_bessel_i1"),
    Op.BESSEL_J0: _library("j0"),
    Op.BESSEL_J1: _library("j1"),
    Op.BESSEL_Y0: _library("y0"),
    Op.BESSEL_Y1: _library("y1"),
    Op.POW: _forms("libdevice.pow({self}, {exponent})", wide="power({self}, {exponent})"),
    Op.SQUARE: _only("{self} * {self}"),
    Op.CUBE: _only("{self} * {self} * {self}"),
    Op.POW_HALF: _forms("tl.sqrt_rn({self})", "div", wide="tl.sqrt({self})"),
    Op.POW_MINUS_HALF: _forms("tl.rsqrt({self})", "div"),
    Op.POW_MINUS_ONE: _forms("tl.div_rn(1.0, {self})", "div", wide="1.0 / {self}"),
    Op.EQ: _only("{self} == {other}"),
    Op.NE: _only("{self} != {other}"),
    Op.LT: _only("{self} < {other}"),
    Op.LE: _only("{self} <= {other}"),
    Op.GT: _only("{self} > {other}"),
    Op.GE: _only("{self} >= {other}"),
    Op.EXCEEDS: _only("({self} > {other}) | ({self} != {self})"),
    Op.ISNAN: _only("{self} != {self}"),
    Op.ISINF: _only('tl.abs({self}) == float("inf")'),
    Op.LOGICAL_AND: _only("({self} != 0) & ({other} != 0)"),
    Op.LOGICAL_OR: _only("({self} != 0) | ({other} != 0)"),
    Op.LOGICAL_XOR: _only("({self} != 0) ^ ({other} != 0)"),
    Op.LOGICAL_NOT: _only("{self} == 0"),
    Op.BITWISE_AND: _only("{self} & {other}"),
    Op.BITWISE_OR: _only("{self} | {other}"),
    Op.BITWISE_XOR: _only("{self} ^ {other}"),
    Op.BITWISE_NOT: _only("invert({self})"),
    Op.LEFT_SHIFT: _only("left_shift({self}, {other})"),
    Op.RIGHT_SHIFT: _only("right_shift({self}, {other})"),
    Op.UNIFORM: _only("uniform({seed}, {index})", cost="div"),
    Op.WRAP_INDEX: _only("tl.where({self} < 0, {self} + {size}, {self})"),
    Op.PLACE: _only("{self}"),
    Op.CHANGE: _only("tl.where({new} == {old}, 0.0, {new} - {old})"),
}
"""By operation the forms that it has; each has an exact one."""


def has(op: Op, accuracy: Accuracy) -> bool:
    """Whether an operation has a form of its own of an accuracy."""
    return accuracy in FORMS[op]


def settled(op: Op, accuracy: Accuracy) -> Accuracy:
    """The most exact accuracy whose form is that of the given one."""
    forms = FORMS[op]
    return next(a for a in Accuracy if forms.get(a) == forms[accuracy])


def cost_of(op: Op, accuracy: Accuracy = Accuracy.EXACT) -> CostClass:
    return FORMS[op][accuracy].cost


def text_of(op: Op, accuracy: Accuracy, working: str | None, scaled: bool = False) -> str:
    """The expression for operands of a dtype; scaled: with `alpha`."""
    form = FORMS[op][accuracy]
    if working == "bool" and form.on_bool:
        return form.on_bool_scaled if scaled else form.on_bool
    if working == "float64" and form.wide:
        return form.wide
    return form.scaled if scaled else form.text


@functools.cache
def operands_of(op: Op) -> frozenset[str]:
    """The names of its operands, `alpha` included."""
    form = FORMS[op][Accuracy.EXACT]
    fields = string.Formatter().parse(form.scaled or form.text)
    return frozenset(name for _, name, _, _ in fields if name)
