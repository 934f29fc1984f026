"""Steps of random programs that compute each element by itself: arithmetic, comparisons, choices,
conversions, integers, values that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from random_programs import FLOATS, INTEGERS, LARGEST, Value, Writer

SMOOTH = (
    "torch.tanh({})",
    "torch.sigmoid({})",
    "torch.sin({})",
    "torch.cos({})",
    "torch.erf({})",
    "F.gelu({})",
    "F.gelu({}, approximate='tanh')",
    "F.silu({})",
    "F.softplus({})",
    "torch.exp(-{}.abs())",
    "torch.exp({})",
    "torch.log1p({}.abs())",
    "torch.sqrt({}.abs() + 1)",
    "torch.rsqrt({}.square() + 1)",
    "1 / ({}.abs() + 1)",
    "{}.square()",
    "{} * 1.25",
    "{} + 0.5",
    "1 - {}",
    "{} / 3",
    "{}.clamp(-1, 1)",
    "F.leaky_relu({}, 0.1)",
    "torch.expm1({} * 0.5)",
    "torch.atan({})",
    "torch.asinh({})",
    "F.mish({})",
    "F.elu({})",
    "F.hardswish({})",
    "F.logsigmoid({})",
    "{}.clone().mul_(0.75)",
    "torch.pow({}.abs() + 0.5, 1.5)",
    "torch.addcmul({0}, {0}, {0}, value=0.5)",
)
EXACT = ("-{}", "{}.abs()", "torch.relu({})", "{}.clamp_min(0.25)")
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / ({}.abs() + 1)",
    "torch.add({}, {}, alpha=0.5)",
    "torch.hypot({}, {}.abs() + 1)",
)
MIXED = (
    "torch.lerp({}, {}.to({}.dtype), 0.3)",
    "torch.atan2({}, {}.abs() + 1)",
    "torch.logaddexp(cast({}, torch.float32), cast({}, torch.float32))",
    "torch.where({} > 0, {}, 0.25)",
)
EXTREMA = ("torch.maximum({}, {})", "torch.minimum({}, {})")
COMPARED = ("{} > {}", "{} <= {}", "{} == {}", "{} != {}")
INTEGER = ("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})")


def unary(w: Writer) -> None:
    v = w.floating()
    if w.choose(4) == 0:
        w.add(w.pick(EXACT).format(v.name), v, exact=True)
    else:
        w.add(w.pick(SMOOTH).format(v.name), v)


def partner(w: Writer, v: Value, dtypes: Sequence[str]) -> Value:
    """A value that broadcasts with another: one that is there, or a new input."""

    def fits(other: Value) -> bool:
        if other.dtype not in dtypes:
            return False
        try:
            return math.prod(torch.broadcast_shapes(v.shape, other.shape)) <= LARGEST
        except RuntimeError:
            return False

    found = w.value(fits) if w.choose(3) else None
    if found is not None:
        return found
    shape = tuple(n if w.choose(3) else 1 for n in v.shape)
    return w.input(w.pick(dtypes), shape[w.choose(len(shape) + 1) :])


def binary(w: Writer) -> None:
    a = w.floating()
    b = partner(w, a, FLOATS)
    first, second = (a, b) if w.choose(2) else (b, a)
    if w.choose(5) == 0:
        w.add(w.pick(EXTREMA).format(first.name, second.name), first, second, exact=True)
    else:
        w.add(w.pick(BINARY).format(first.name, second.name), first, second)


def compare(w: Writer) -> None:
    a = w.value(lambda v: v.exact and v.dtype != "bool")
    if a is None:
        return
    if w.choose(2):
        w.add(w.pick(COMPARED).format(a.name, w.pick(("0", "0.5", "-1"))), a)
        return
    b = partner(w, a, (*FLOATS, "int64"))
    if b.exact:
        w.add(w.pick(COMPARED).format(a.name, b.name), a, b)


def where(w: Writer) -> None:
    a = w.floating()
    mask, b = partner(w, a, ("bool",)), partner(w, a, FLOATS)
    kind = w.choose(3)
    if kind == 0:
        w.add(f"torch.where({mask.name}, {a.name}, 0.5)", mask, a, exact=True)
    elif kind == 1:
        try:
            torch.broadcast_shapes(mask.shape, a.shape, b.shape)
        except RuntimeError:
            return
        w.add(f"torch.where({mask.name}, {a.name}, {b.name})", mask, a, b, exact=True)
    else:
        w.add(f"{a.name} * {mask.name}", a, mask, exact=True)


SEVERAL = ("{} * 2", "{} + 1", "torch.where({0} > 0, {0}, 1)")


def several(w: Writer) -> None:
    """The same of several inputs, or of one value with several numbers: what is alike becomes one
    launch."""
    v = w.floating() if w.choose(2) else None
    text = w.pick(SEVERAL)
    dtypes = (*FLOATS, *INTEGERS, "bool")
    for _ in range(4 + w.choose(3)):
        if v is None:
            one = w.input(w.pick(dtypes), w.shape())
            w.add(text.format(one.name), one)
        else:
            one = w.input(w.pick(dtypes), ())
            w.add(f"{v.name} * {one.name}", v, one)


def integers(w: Writer) -> None:
    a = w.value(lambda v: v.dtype in (*INTEGERS, "bool")) if w.choose(4) else None
    if a is None:
        a = w.input(w.pick((*INTEGERS, "bool")), w.shape())
    b = partner(w, a, INTEGERS)
    kind = w.choose(6)
    if kind < 2:
        if b.own.abs().max() < 1000 and a.own.long().abs().max() < 1000:
            w.add(w.pick(INTEGER).format(a.name, b.name), a, b)
    elif kind == 2:
        text = w.pick(("{} % 3", "{} // 3", "{} << 2", "-{}", "{} & 6"))
        w.add(text.format(a.name) if a.dtype != "bool" else f"~{a.name}", a)
    elif kind == 3 and a.own.dim():
        w.add(f"{a.name}.{w.pick(('sum', 'sum'))}({w.choose(a.own.dim())})", a)
    elif kind == 4 and a.dtype == "bool":
        c = partner(w, a, ("bool",))
        w.add(f"{a.name} {w.pick('&|^')} {c.name}", a, c)
    else:
        w.add(f"cast({a.name}, torch.{w.pick(FLOATS)})", a, exact=a.own.long().abs().max() < 128)


def cast(w: Writer) -> None:
    v = w.value()
    if v is None or not v.is_float:
        return integers(w)
    dtype = w.pick(FLOATS)
    w.add(f"cast({v.name}, torch.{dtype})", v, exact=dtype == "float32")


def mixed(w: Writer) -> None:
    """Functions of two values of types of their own."""
    a = w.floating()
    b = partner(w, a, FLOATS)
    text = w.pick(MIXED)
    if text.startswith("torch.where"):
        if b.exact:
            w.add(text.format(b.name, a.name), a, b, exact=True)
        return
    names = (a.name, b.name, a.name)[: text.count("{}")]
    w.add(text.format(*names), a, b)


def special(w: Writer) -> None:
    """NaN and infinities on the way, and none at the end."""
    a = w.floating()
    mask = partner(w, a, ("bool",))
    if not a.own.dim():
        return
    dim = w.choose(a.own.dim())
    text = w.pick(
        (
            "torch.nan_to_num(torch.where({1}, nan, {0}), 0.25)",
            f"torch.where({{1}}, nan, {{0}}).nansum({dim})",
            "torch.where({1}, inf, {0}).clamp(max=2)",
            f"torch.where({{1}}, inf, {{0}}).amin({dim}).clamp(max=9)",
            "torch.fmax({0}, torch.where({1}, nan, 0.5))",
            "torch.sigmoid(torch.where({1}, -inf, {0}))",
            "torch.exp(torch.where({1}, -inf, {0}))",
        )
    )
    w.add(text.format(a.name, mask.name), a, mask)


def smooth(w: Writer) -> None:
    """A function without kinks."""
    v = w.floating()
    w.add(w.pick([t for t in SMOOTH if "abs" not in t and "clamp" not in t]).format(v.name), v)


def smooth_binary(w: Writer) -> None:
    a = w.floating()
    b = partner(w, a, FLOATS)
    text = w.pick(("{} + {}", "{} - {}", "{} * {}", "{} / ({}.square() + 1)"))
    w.add(text.format(a.name, b.name), a, b)
