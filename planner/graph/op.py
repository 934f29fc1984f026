"""The names of pointwise operations, how exactly each may be computed, and what algebra may assume
of them.

The table of operations (`pointwise.py`) gives every ATen overload its `Op`; `texts.py` says what a
kernel writes for it, and what that costs. All other code asks for names, and for these laws.
"""

from __future__ import annotations

from enum import Enum


class Op(Enum):
    """A pointwise operation. Operands are called as in ATen's schema: self, other, alpha, ..."""

    __hash__ = object.__hash__  # that of Enum is no faster than Python

    CONVERT = "convert"  # to another dtype that has the number, or its nearest
    TRUNCATE = "truncate"  # of a float to an integer
    RECAST = "recast"  # to a dtype that has other numbers: wrapped around, or whether it is 0
    AS_FLOAT16 = "as_float16"  # rounded to 16 bits, kept in 32
    AS_BFLOAT16 = "as_bfloat16"
    AS_FLOAT8_E4M3FN = "as_float8_e4m3fn"  # rounded to 8 bits, kept in 32
    AS_FLOAT8_E5M2 = "as_float8_e5m2"
    BITCAST = "bitcast"  # the same bits, as another dtype of equal size

    ADD = "add"  # self + other * alpha
    SUB = "sub"  # self - other * alpha
    RSUB = "rsub"  # other - self * alpha
    MUL = "mul"
    FMA = "fma"  # self * other + addend, rounded once where the device can
    DIV = "div"
    FLOOR_DIVIDE = "floor_divide"
    TRUNC_DIVIDE = "trunc_divide"
    REMAINDER = "remainder"  # of the sign of the divisor
    FMOD = "fmod"  # of the sign of the dividend
    NEG = "neg"
    ABS = "abs"
    RELU = "relu"
    SIGN = "sign"
    SIGNBIT = "signbit"
    COPYSIGN = "copysign"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    ROUND = "round"
    MAXIMUM = "maximum"  # NaN where either is
    MINIMUM = "minimum"
    FMAX = "fmax"  # the other where one is NaN
    FMIN = "fmin"
    CLAMP = "clamp"
    CLAMP_MIN = "clamp_min"
    CLAMP_MAX = "clamp_max"
    WHERE = "where"  # self where condition, else other

    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    TANH_PLUS_ONE = "tanh_plus_one"
    ERF = "erf"
    ERF_PLUS_ONE = "erf_plus_one"
    ERFC = "erfc"
    ERFCX = "erfcx"
    ERFINV = "erfinv"
    NDTRI = "ndtri"
    LGAMMA = "lgamma"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ATAN2 = "atan2"
    SINH = "sinh"
    COSH = "cosh"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    HYPOT = "hypot"
    NEXTAFTER = "nextafter"
    BESSEL_I0 = "i0"
    BESSEL_I1 = "i1"
    BESSEL_J0 = "j0"
    BESSEL_J1 = "j1"
    BESSEL_Y0 = "y0"
    BESSEL_Y1 = "y1"
    POW = "pow"
    SQUARE = "pow_2"  # powers as eager computes them: a root of -0.0 is -0.0, a power is not
    CUBE = "pow_3"
    POW_HALF = "pow_half"
    POW_MINUS_HALF = "pow_minus_half"
    POW_MINUS_ONE = "pow_minus_1"

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EXCEEDS = "exceeds"  # greater than other, or NaN
    ISNAN = "isnan"
    ISINF = "isinf"
    LOGICAL_AND = "logical_and"
    LOGICAL_OR = "logical_or"
    LOGICAL_XOR = "logical_xor"
    LOGICAL_NOT = "logical_not"
    BITWISE_AND = "bitwise_and"
    BITWISE_OR = "bitwise_or"
    BITWISE_XOR = "bitwise_xor"
    BITWISE_NOT = "bitwise_not"
    LEFT_SHIFT = "left_shift"
    RIGHT_SHIFT = "right_shift"

    UNIFORM = "uniform"  # a random number of [0, 1) by seed and index
    WRAP_INDEX = "wrap_index"  # self where it is not negative, else self + size
    PLACE = "place"  # self, to be stored where at0, at1 ... name places (see `values.places`)
    CHANGE = "change"  # new - old; 0 where they are equal, be they infinite


class Accuracy(Enum):
    """The accuracy to which an operation is computed, the most exact first."""

    __hash__ = object.__hash__

    EXACT = "exact"
    """As exact as eager."""

    ROUNDED = "rounded"
    """As EXACT, and rounded before anything is added to it (no fused multiply-add)."""

    BY_INVERSE = "by inverse"
    """A division by a number as CUDA's own kernels make it: a product with the number's inverse,
    which is rounded."""

    SUMMED = "summed"
    """For float32 of which only sums of thousands are seen, in which rounding errors, small or
    random, are lost."""

    QUICK = "quick"
    """For float32 where no output of the kernel is wider than 16 bits, and for a matrix product
    that was rounded to 16 bits: relative error under 2**-18, of an exponential under 2**-17 at the
    ends of its range."""

    RELAXED = "relaxed"
    """For what is rounded to bfloat16 before anything reads it: relative error under 2**-10."""

    BELOW_ONE = "below one"
    """As QUICK, for an exponential of what is not above 0."""

    FLUSHING = "flushing"
    """As QUICK, and what is below 2**-126 becomes 0: for what is only seen in a sum with 1."""


PLUS_ONE = {Op.TANH: Op.TANH_PLUS_ONE, Op.ERF: Op.ERF_PLUS_ONE}
"""By function the one that is it and 1, which does not cancel where it is near -1."""

PREDICATES = frozenset(
    {Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.EXCEEDS, Op.ISNAN, Op.ISINF, Op.SIGNBIT}
    | {Op.LOGICAL_AND, Op.LOGICAL_OR, Op.LOGICAL_XOR, Op.LOGICAL_NOT}
)
"""The result is bool, whatever the operands are."""

EXPONENTIALS = frozenset({Op.EXP, Op.EXP2})
ANDS = frozenset({Op.LOGICAL_AND, Op.BITWISE_AND})  # of booleans
ORS = frozenset({Op.LOGICAL_OR, Op.BITWISE_OR})
NOTS = frozenset({Op.LOGICAL_NOT, Op.BITWISE_NOT})

NEGATED = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
"""By comparison of integers, the one that holds where it does not."""

RISING = frozenset(
    {
        Op.CONVERT,
        Op.TRUNCATE,
        Op.AS_FLOAT16,
        Op.AS_BFLOAT16,
        Op.EXP,
        Op.EXP2,
        Op.EXPM1,
        Op.SIGMOID,
        Op.TANH,
        Op.TANH_PLUS_ONE,
        Op.ERF,
        Op.ERF_PLUS_ONE,
        Op.RELU,
        Op.FLOOR,
        Op.CEIL,
        Op.TRUNC,
        Op.ROUND,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.CLAMP,
        Op.CLAMP_MIN,
        Op.CLAMP_MAX,
    }
)
"""Does not fall when an operand rises."""

RISING_FROM_0 = frozenset({Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SQRT})
"""The same, for operands of at least 0."""

NEVER_NEGATIVE = frozenset(
    {Op.RELU, Op.ABS, Op.SIGMOID, Op.SQRT, Op.POW_HALF, Op.SQUARE, *EXPONENTIALS}
    | {Op.TANH_PLUS_ONE, Op.ERF_PLUS_ONE}
)
"""At least 0, or NaN, whatever the operand is."""

KEEPS_NONNEGATIVE = frozenset(
    {Op.CONVERT, Op.ADD, Op.MUL, Op.DIV, Op.WHERE}
    | {Op.LOG1P, Op.TANH, Op.ERF, Op.EXPM1, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND}
)
"""At least 0 where all operands are."""

KEEPS_ZERO_AND_INFINITY = frozenset({Op.CONVERT, Op.NEG, Op.MUL, Op.DIV, Op.LOG1P, Op.SQRT})
"""0 for 0, and infinite for an infinite operand, of one that rises or falls with it."""

KEEPS_ZERO = KEEPS_ZERO_AND_INFINITY | frozenset(
    {Op.RELU, Op.TANH, Op.ERF, Op.EXPM1, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND}
)
"""0 for 0, of one that rises or falls with its operand."""
