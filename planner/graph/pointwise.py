"""The pointwise rows of the operation table: the operation of every ATen overload, and how PyTorch
promotes its operands."""

from __future__ import annotations

from .op import Op
from .rows import Pointwise

_FLOATS = {
    "exp": Op.EXP,
    "exp2": Op.EXP2,
    "expm1": Op.EXPM1,
    "log": Op.LOG,
    "log2": Op.LOG2,
    "log10": Op.LOG10,
    "log1p": Op.LOG1P,
    "sqrt": Op.SQRT,
    "rsqrt": Op.RSQRT,
    "reciprocal": Op.RECIPROCAL,
    "sigmoid": Op.SIGMOID,
    "tanh": Op.TANH,
    "erf": Op.ERF,
    "erfc": Op.ERFC,
    "erfinv": Op.ERFINV,
    "lgamma": Op.LGAMMA,
    "sin": Op.SIN,
    "cos": Op.COS,
    "tan": Op.TAN,
    "asin": Op.ASIN,
    "acos": Op.ACOS,
    "atan": Op.ATAN,
    "atan2": Op.ATAN2,
    "sinh": Op.SINH,
    "cosh": Op.COSH,
    "asinh": Op.ASINH,
    "acosh": Op.ACOSH,
    "atanh": Op.ATANH,
    "hypot": Op.HYPOT,
    "nextafter": Op.NEXTAFTER,
    "i0": Op.BESSEL_I0,
    "special_i1": Op.BESSEL_I1,
    "special_bessel_j0": Op.BESSEL_J0,
    "special_bessel_j1": Op.BESSEL_J1,
    "special_bessel_y0": Op.BESSEL_Y0,
    "special_bessel_y1": Op.BESSEL_Y1,
    "special_modified_bessel_i0": Op.BESSEL_I0,
    "special_modified_bessel_i1": Op.BESSEL_I1,
    "special_erfcx": Op.ERFCX,
    "special_ndtri": Op.NDTRI,
}
"""Functions of floats: integers become float32."""

_COMPARED = {
    "eq": Op.EQ,
    "ne": Op.NE,
    "lt": Op.LT,
    "le": Op.LE,
    "gt": Op.GT,
    "ge": Op.GE,
}

_BITWISE = {"and": Op.BITWISE_AND, "or": Op.BITWISE_OR, "xor": Op.BITWISE_XOR}

_ADD, _SUB, _RSUB, _MUL = map(Pointwise, (Op.ADD, Op.SUB, Op.RSUB, Op.MUL))
_MAXIMUM, _MINIMUM = Pointwise(Op.MAXIMUM), Pointwise(Op.MINIMUM)
DIVIDE, POW, _COPYSIGN = (Pointwise(op, "float") for op in (Op.DIV, Op.POW, Op.COPYSIGN))
FLOOR_DIVIDE, TRUNC_DIVIDE = Pointwise(Op.FLOOR_DIVIDE), Pointwise(Op.TRUNC_DIVIDE)
_CLAMP = Pointwise(Op.CLAMP, checks_numbers=True)
_REMAINDER = Pointwise(Op.REMAINDER, rounds_numbers=True)
_FMOD = Pointwise(Op.FMOD, rounds_numbers=True)
LOGICAL_NOT, BITWISE_NOT = Pointwise(Op.LOGICAL_NOT, "bool"), Pointwise(Op.BITWISE_NOT)

POINTWISE: dict[str, Pointwise] = {
    **{f"{name}.default": Pointwise(op, "float") for name, op in _FLOATS.items()},
    **{
        f"{name}.{overload}": Pointwise(op, "bool", rounds_numbers=True)
        for name, op in _COMPARED.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"bitwise_{name}.{overload}": Pointwise(op)
        for name, op in _BITWISE.items()
        for overload in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{
        name: Pointwise(op)
        for op, side, sign in ((Op.LEFT_SHIFT, "left", "l"), (Op.RIGHT_SHIFT, "right", "r"))
        for name in (
            f"bitwise_{side}_shift.Tensor",
            f"bitwise_{side}_shift.Tensor_Scalar",
            f"bitwise_{side}_shift.Scalar_Tensor",
            f"__{sign}shift__.Tensor",
            f"__{sign}shift__.Scalar",
        )
    },
    "copysign.Tensor": _COPYSIGN,
    "copysign.Scalar": _COPYSIGN,
    "neg.default": Pointwise(Op.NEG),
    "abs.default": Pointwise(Op.ABS),
    "relu.default": Pointwise(Op.RELU),
    "sign.default": Pointwise(Op.SIGN),
    "signbit.default": Pointwise(Op.SIGNBIT, "bool"),
    "floor.default": Pointwise(Op.FLOOR),
    "ceil.default": Pointwise(Op.CEIL),
    "trunc.default": Pointwise(Op.TRUNC),
    "round.default": Pointwise(Op.ROUND),
    "isnan.default": Pointwise(Op.ISNAN, "bool"),
    "isinf.default": Pointwise(Op.ISINF, "bool"),
    "logical_not.default": LOGICAL_NOT,
    "bitwise_not.default": BITWISE_NOT,
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
    "div.Tensor_mode": DIVIDE,  # `row` looks at the mode
    "div.Scalar_mode": DIVIDE,
    "pow.Tensor_Tensor": POW,
    "pow.Scalar": POW,
    "remainder.Tensor": _REMAINDER,
    "remainder.Scalar": _REMAINDER,
    "remainder.Scalar_Tensor": _REMAINDER,
    "fmod.Tensor": _FMOD,
    "fmod.Scalar": _FMOD,
    "maximum.default": _MAXIMUM,
    "minimum.default": _MINIMUM,
    "fmax.default": Pointwise(Op.FMAX),
    "fmin.default": Pointwise(Op.FMIN),
    "clamp.default": _CLAMP,
    "clamp.Tensor": _CLAMP,
    "clamp_min.default": Pointwise(Op.CLAMP_MIN, checks_numbers=True),
    "clamp_max.default": Pointwise(Op.CLAMP_MAX, checks_numbers=True),
    "clamp_min.Tensor": Pointwise(Op.CLAMP_MIN),
    "clamp_max.Tensor": Pointwise(Op.CLAMP_MAX),
    "logical_and.default": Pointwise(Op.LOGICAL_AND, "bool"),
    "logical_or.default": Pointwise(Op.LOGICAL_OR, "bool"),
    "logical_xor.default": Pointwise(Op.LOGICAL_XOR, "bool"),
    "where.self": Pointwise(Op.WHERE),
    "clone.default": Pointwise(Op.CONVERT, "same"),
}

POWERS = {
    2.0: Pointwise(Op.SQUARE),
    3.0: Pointwise(Op.CUBE),
    0.5: Pointwise(Op.POW_HALF, "float"),
    -0.5: Pointwise(Op.POW_MINUS_HALF, "float"),
    -1.0: Pointwise(Op.POW_MINUS_ONE, "float"),
}
"""By exponent, as eager computes them: at -0.0 and infinities the general function differs."""
