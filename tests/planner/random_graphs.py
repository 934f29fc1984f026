"""The steps that random programs are made of, see `random_programs.py`. `graph_sweep.py` runs the
programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from random_programs import FLOATS, INTEGERS, LARGEST, SIZES, Choose, Program, Value, Writer

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
FOLDS = ("sum", "mean", "amax", "amin", "var", "sum", "mean", "amax", "std", "norm")
ROWS = ("torch.softmax({}, {})", "torch.log_softmax({}, {})", "torch.logsumexp({}, {})")
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


def fold(w: Writer) -> None:
    v = w.floating()
    dims = [d for d in range(v.own.dim()) if w.choose(2)] or list(range(v.own.dim()))
    kind = w.pick(FOLDS)
    if not dims or (kind in ("var", "std") and math.prod(v.shape[d] for d in dims) < 2):
        return
    keep = ", keepdim=True" if w.choose(2) else ""
    if kind == "norm":
        w.add(f"torch.linalg.vector_norm({v.name}, {w.pick((2, 1))}, {tuple(dims)}{keep})", v)
        return
    w.add(f"{v.name}.{kind}({tuple(dims)}{keep})", v, exact=kind in ("amax", "amin"))


def scan(w: Writer) -> None:
    """Running sums, forwards and backwards, and products along short dimensions."""
    v = w.floating()
    if not v.own.dim():
        return
    dim = w.choose(v.own.dim())
    kind = w.choose(4)
    if kind == 0:
        w.add(f"{v.name}.flip({dim}).cumsum({dim}).flip({dim})", v)
    elif kind == 1 and v.shape[dim] <= 17:
        w.add(f"(1 + torch.tanh({v.name}) * 0.25).{w.pick(('prod', 'cumprod'))}({dim})", v)
    else:
        w.add(f"{v.name}.cumsum({dim})", v)


def places(w: Writer) -> None:
    """Reads at places that are data, and places of extrema."""
    v = w.value(lambda v: v.own.dim() > 0)
    if v is None:
        return
    dim = w.choose(v.own.dim())
    kind = w.choose(5)
    if kind == 0 and v.exact and v.dtype != "bool":
        w.add(f"{v.name}.{w.pick(('argmax', 'argmin'))}({dim})", v)
        return
    if kind == 1 and v.exact and v.is_float:
        w.add(f"{v.name}.sort({dim})[0]", v, exact=True)
        return
    at = w.input("int64", (w.pick(SIZES[:9]),))
    index = f"({at.name} % {v.shape[dim]})"
    if kind == 2 and v.own.dim() == 1:
        w.add(f"{v.name}.gather(0, {index})", v, at, exact=True)
    elif kind == 3:
        w.add(f"{v.name}[{':, ' * dim}{index}]", v, at, exact=True)
    else:
        w.add(f"{v.name}.index_select({dim}, {index})", v, at, exact=True)


def truths(w: Writer) -> None:
    """Booleans of comparisons, folded."""
    v = w.value(lambda v: v.dtype == "bool" and v.own.dim() > 0)
    if v is None:
        return compare(w)
    dim = w.choose(v.own.dim())
    w.add(f"{v.name}.{w.pick(('any', 'all', 'cumsum', 'sum'))}({dim})", v)


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


def rows(w: Writer) -> None:
    v = w.floating()
    if not v.own.dim():
        return
    if v.own.dim() >= 2 and w.choose(3) == 0:
        rows, columns = v.shape[-2:]
        on = f"device={v.name}.device"
        mask = f"torch.arange({columns}, {on})[None, :] > torch.arange({rows}, {on})[:, None]"
        w.add(f"torch.softmax({v.name}.masked_fill({mask}, -inf), -1)", v)
        return
    w.add(w.pick(ROWS).format(v.name, w.choose(v.own.dim())), v)


def norm(w: Writer) -> None:
    v = w.floating()
    if v.own.dim() and v.shape[-1] > 1:
        kind = w.pick(("F.layer_norm({}, ({},), eps=0.1)", "F.rms_norm({}, ({},), eps=0.1)"))
        w.add(kind.format(v.name, v.shape[-1]), v)


def product(w: Writer) -> None:
    a = w.floating()
    if not a.own.dim():
        return
    inner = a.shape[-1]
    other = w.value(lambda v: v.dtype == a.dtype and v.own.dim() == 2 and v.shape[1] == inner)
    if a.own.dim() == 3 and w.choose(2):
        other = w.value(
            lambda v: (
                v.dtype == a.dtype
                and v.own.dim() == 3
                and (v.shape[0], v.shape[2]) == (a.shape[0], inner)
            )
        ) or w.input(a.dtype, (a.shape[0], w.pick(SIZES[:10]), inner))
    elif other is None or w.choose(3) == 0:
        other = w.input(a.dtype, (w.pick(SIZES), inner))
    scale = inner**-0.5
    kind = w.choose(3) if other.own.dim() == 2 else 0
    if kind == 1:
        w.add(f"F.linear({a.name}, {other.name})", a, other)
    elif kind == 2:
        bias = w.input(a.dtype, (other.shape[0],))
        w.add(f"F.linear({a.name}, {other.name}, {bias.name})", a, other, bias)
    else:
        w.add(f"{a.name} @ {other.name}.transpose(-1, -2) * {scale:.4g}", a, other)


def view(w: Writer) -> None:
    v = w.value()
    if v is None:
        return
    rank = v.own.dim()
    kind = w.pick((reshape, permute, slice_, expand, unsqueeze, cat, cat, reshape, slice_, moved))
    text, reads = kind(w, v, rank)
    if text:
        w.add(text, v, *reads, exact=True)


def reshape(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    """Dimensions merged, and split where they divide."""
    sizes = list(v.shape)
    for _ in range(1 + w.choose(2)):
        if len(sizes) > 1 and w.choose(2):
            at = w.choose(len(sizes) - 1)
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
        elif sizes:
            at = w.choose(len(sizes))
            factors = [f for f in range(2, sizes[at]) if sizes[at] % f == 0]
            if factors and len(sizes) < 5:
                factor = w.pick(factors)
                sizes[at : at + 1] = [factor, sizes[at] // factor]
    return (f"{v.name}.reshape({tuple(sizes)})", ()) if tuple(sizes) != v.shape else ("", ())


def moved(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    """Elements at other places, or again."""
    if not rank:
        return "", ()
    dim, name = w.choose(rank), v.name
    size = v.shape[dim]
    way = w.choose(9)
    if way == 0:
        return f"{name}.flip({dim})", ()
    if way == 1:
        return f"{name}.roll({1 + w.choose(size)}, {dim})", ()
    if way == 2 and v.is_float:
        return f"F.pad({name}, ({w.choose(3)}, {1 + w.choose(2)}), value=0.5)", ()
    if way == 3 and rank >= 2:
        return f"{name}.{w.pick(('tril', 'triu'))}({w.pick((-1, 0, 1))})", ()
    if way == 4 and size >= 3:
        return f"{name}.unfold({dim}, 2, {1 + w.choose(2)})", ()
    if way == 5 and rank >= 2:
        return f"{name}.diagonal({w.pick((0, 1, -1))}, 0, 1)", ()
    if way == 6:
        return f"{name}.repeat_interleave(2, {dim})", ()
    if way == 7 and size >= 2:
        return f"torch.stack({name}.chunk({w.pick((2, size))}, {dim}), 0)", ()
    return f"{name}.narrow({dim}, {size // 3}, {size - size // 3})", ()


def permute(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    order = list(range(rank))
    for i in range(rank - 1):
        j = i + w.choose(rank - i)
        order[i], order[j] = order[j], order[i]
    changed = order != list(range(rank))
    return (f"{v.name}.permute({tuple(order)})", ()) if changed else ("", ())


def slice_(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    if not rank:
        return "", ()
    parts = [":"] * rank
    at = w.choose(rank)
    size = v.shape[at]
    start = w.choose(size)
    end = start + 1 + w.choose(size - start)
    step = w.pick(("", ":2", ":3")) if end - start > 3 else ""
    parts[at] = f"{start}:{end}{step}" if w.choose(5) else str(start)
    return f"{v.name}[{', '.join(parts)}]", ()


def expand(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    sizes = [w.pick(SIZES[1:8]) if n == 1 and w.choose(2) else n for n in v.shape]
    if w.choose(2) or sizes == list(v.shape):
        sizes.insert(0, w.pick(SIZES[1:6]))
    return f"{v.name}.expand({tuple(sizes)})", ()


def unsqueeze(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    ones = [d for d in range(rank) if v.shape[d] == 1]
    if ones and w.choose(2):
        return f"{v.name}.squeeze({w.pick(ones)})", ()
    return (f"{v.name}.unsqueeze({w.choose(rank + 1)})", ()) if rank < 5 else ("", ())


def cat(w: Writer, v: Value, rank: int) -> tuple[str, tuple[Value, ...]]:
    """With another value, or with an input, of the same sizes but one."""
    if not rank:
        return "", ()
    at = w.choose(rank)

    def fits(other: Value) -> bool:
        alike = other.dtype == v.dtype and other.own.dim() == rank
        return alike and all(
            m == n for i, (m, n) in enumerate(zip(other.shape, v.shape, strict=True)) if i != at
        )

    other = w.value(fits) if w.choose(4) else None
    if other is None:
        sizes = [*v.shape]
        sizes[at] = w.pick(SIZES[:8])
        other = w.input(v.dtype, tuple(sizes))
    order = (v, other) if w.choose(2) else (other, v)
    return f"torch.cat(({order[0].name}, {order[1].name}), {at})", (other,)


STEPS: tuple[Callable[[Writer], None], ...] = (
    *[unary] * 5,
    *[binary] * 5,
    *[fold] * 4,
    *[view] * 7,
    *[product] * 2,
    *[rows] * 2,
    norm,
    *[cast] * 2,
    compare,
    *[where] * 2,
    *[integers] * 2,
    *[scan] * 2,
    *[places] * 2,
    truths,
    mixed,
)


def generate(choose: Choose, seed: int = 0) -> Program:
    """A program of 3 to 30 lines."""
    writer = Writer(choose, seed)
    for _ in range(1 + choose(2)):
        writer.input(writer.pick(FLOATS), writer.shape())
    wanted, tries = 3 + min(choose(28), choose(28)), 0
    while len(writer.lines) < wanted and tries < 8 * wanted:
        tries += 1
        writer.pick(STEPS)(writer)
    return writer.program()
