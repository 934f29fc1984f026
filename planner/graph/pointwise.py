"""The pointwise rows of the operation table: Triton expressions over the argument names of ATen's
schemas. What an expression calls beside `tl` is in `codegen/intrinsics.py`."""

from __future__ import annotations

from .rows import CostClass, Law, Pointwise


def _float(
    expr: str,
    cost: CostClass = "libdevice",
    relaxed: str | None = None,
    wide: str | None = None,
    law: Law = "",
    quick: str | None = None,
    flushing: str | None = None,
    summed: str | None = None,
) -> Pointwise:
    return Pointwise(
        expr,
        cost,
        "float",
        relaxed,
        wide=wide,
        law=law,
        quick=quick,
        flushing=flushing,
        summed=summed,
    )


_LAWS: dict[str, Law] = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _compare(sign: str) -> Pointwise:
    return Pointwise(
        "{self} " + sign + " {other}",
        promotion="bool",
        law=_LAWS.get(sign, ""),
        rounds_numbers=True,
    )


_ADD = Pointwise("{self} + {other} * {alpha}", on_bool="{self} | {other} & {alpha}", law="add")
_SUB = Pointwise("{self} - {other} * {alpha}", law="sub")
_RSUB = Pointwise("{other} - {self} * {alpha}", law="rsub")
_MUL = Pointwise("{self} * {other}", on_bool="{self} & {other}", law="mul")
DIVIDE = _float(
    "tl.div_rn({self}, {other})",
    "div",
    "{self} / {other}",
    "{self} / {other}",
    law="div",
    quick="{self} / {other}",
    summed="{self} / {other}",
)
_MAXIMUM = Pointwise("tl.maximum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)", law="rising")
_MINIMUM = Pointwise("tl.minimum({self}, {other}, propagate_nan=tl.PropagateNan.ALL)", law="rising")
POW = _float("libdevice.pow({self}, {exponent})", wide="power({self}, {exponent})")
FLOOR_DIVIDE = Pointwise("floor_divide({self}, {other})", "div")
TRUNC_DIVIDE = Pointwise("trunc_divide({self}, {other})", "div")
_COPYSIGN = _float("copysign({self}, {other})", "fma")
_AND = Pointwise("{self} & {other}", law="and")
_OR = Pointwise("{self} | {other}", law="or")
_XOR = Pointwise("{self} ^ {other}")
_CLAMP = Pointwise("clamp({self}, {min}, {max})", law="rising", checks_numbers=True)
_REMAINDER = Pointwise("remainder({self}, {other})", "div", rounds_numbers=True)
_FMOD = Pointwise("fmod({self}, {other})", "div", rounds_numbers=True)

FLUSHING_EXP = "fast_exp({self})"
INVERSE = "1.0 / {self}"

POINTWISE: dict[str, Pointwise] = {
    "exp.default": _float(
        "exp({self})",
        "sfu",
        "tl.exp({self})",
        law="exp",
        quick="tl.exp({self})",
        flushing=FLUSHING_EXP,
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
        summed="tl.sqrt({self})",
    ),
    "rsqrt.default": _float("tl.rsqrt({self})", "sfu"),
    "reciprocal.default": _float(
        "tl.div_rn(1.0, {self})",
        "div",
        "1.0 / {self}",
        "1.0 / {self}",
        quick="1.0 / {self}",
        summed="1.0 / {self}",
    ),
    "sigmoid.default": _float(
        "tl.div_rn(1.0, 1.0 + exp(-{self}))",
        "div",
        "fast_sigmoid({self})",
        "1.0 / (1.0 + exp(-{self}))",
        "rising",
        "fast_sigmoid({self})",
        summed="fast_sigmoid({self})",
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
    "hypot.default": _float("libdevice.hypot({self}, {other})"),
    "nextafter.default": _float("libdevice.nextafter({self}, {other})", "div"),
    "copysign.Tensor": _COPYSIGN,
    "copysign.Scalar": _COPYSIGN,
    **{
        f"{name}.default": _float(f"libdevice.{function}({{self}})")
        for name, function in {
            "lgamma": "lgamma",
            "erfinv": "erfinv",
            "i0": "cyl_bessel_i0",
            "special_i1": "cyl_bessel_i1",
            "special_bessel_j0": "j0",
            "special_bessel_j1": "j1",
            "special_modified_bessel_i0": "cyl_bessel_i0",
            "special_modified_bessel_i1": "cyl_bessel_i1",
            "special_erfcx": "erfcx",
            "special_ndtri": "normcdfinv",
        }.items()
    },
    "special_bessel_y0.default": _float("libdevice.y0({self})"),
    "special_bessel_y1.default": _float("libdevice.y1({self})"),
    "neg.default": Pointwise("negative({self})", law="neg"),
    "abs.default": Pointwise("tl.abs({self})"),
    "relu.default": Pointwise("tl.where({self} < 0, 0, {self})", law="rising"),
    "sign.default": Pointwise(
        "({self} > 0).to({self}.dtype) - ({self} < 0).to({self}.dtype)", on_bool="{self}"
    ),
    "signbit.default": Pointwise("signbit({self})", promotion="bool"),
    "floor.default": Pointwise("tl.floor({self})", law="rising"),
    "ceil.default": Pointwise("tl.ceil({self})", law="rising"),
    "trunc.default": Pointwise("libdevice.trunc({self})", law="rising"),
    "round.default": Pointwise("libdevice.rint({self})", law="rising"),
    "isnan.default": Pointwise("{self} != {self}", promotion="bool"),
    "isinf.default": Pointwise('tl.abs({self}) == float("inf")', promotion="bool"),
    "logical_not.default": Pointwise("{self} == 0", promotion="bool", law="not"),
    "bitwise_not.default": Pointwise("invert({self})", on_bool="{self} == 0", law="not"),
    "add.Tensor": _ADD,
    "add.Scalar": _ADD,
    "sub.Tensor": _SUB,
    "sub.Scalar": _SUB,
    "rsub.Scalar": _RSUB,
    "rsub.Tensor": _RSUB,
    "mul.Tensor": _MUL,
    "mul.Scalar": _MUL,
    "div.Tensor": DIVIDE,
    "div.Scalar": DIVIDE,
    "pow.Tensor_Tensor": POW,
    "pow.Scalar": POW,
    "remainder.Tensor": _REMAINDER,
    "remainder.Scalar": _REMAINDER,
    "fmod.Tensor": _FMOD,
    "fmod.Scalar": _FMOD,
    "maximum.default": _MAXIMUM,
    "minimum.default": _MINIMUM,
    "remainder.Scalar_Tensor": _REMAINDER,
    "div.Tensor_mode": DIVIDE,  # `row` looks at the mode
    "div.Scalar_mode": DIVIDE,
    "fmax.default": Pointwise("fmax({self}, {other})", on_bool="{self} | {other}"),
    "fmin.default": Pointwise("fmin({self}, {other})", on_bool="{self} & {other}"),
    "clamp.default": _CLAMP,
    "clamp.Tensor": _CLAMP,
    "clamp_min.default": Pointwise("clamp({self}, {min}, None)", law="rising", checks_numbers=True),
    "clamp_max.default": Pointwise("clamp({self}, None, {max})", law="rising", checks_numbers=True),
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
        for overload in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{
        op: Pointwise(f"{side}_shift({{self}}, {{other}})")
        for side, sign in (("left", "l"), ("right", "r"))
        for op in (
            f"bitwise_{side}_shift.Tensor",
            f"bitwise_{side}_shift.Tensor_Scalar",
            f"bitwise_{side}_shift.Scalar_Tensor",
            f"__{sign}shift__.Tensor",
            f"__{sign}shift__.Scalar",
        )
    },
    "where.self": Pointwise("tl.where({condition}, {self}, {other})", law="select"),
    "clone.default": Pointwise("{self}", "move", "same", law="copy"),
}
