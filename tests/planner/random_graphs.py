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


WRITES = (
    "t{at}.mul_(0.75)",
    "t{at}.add_(1)",
    "t{at}.fill_(2)",
    "t{at}.zero_()",
    "t{at}.clamp_(-1, 1)",
    "t{at}.copy_(t{at} * 0.5)",
    "t{at}.neg_()",
)


def write(w: Writer) -> None:
    """Writes into views of a copy, one after the other."""
    v = w.value(lambda v: v.dtype not in ("bool", "uint8") and v.own.dim() > 0)
    if v is None:
        return
    texts = []
    for _ in range(1 + w.choose(2)):
        dim = w.choose(v.own.dim())
        size = v.shape[dim]
        places = [f".narrow({dim}, {size // 2}, {size - size // 2})", f".select({dim}, 0)", ""]
        places += [f".transpose(0, {dim})[0]", f"[{':, ' * dim}::2]"]
        if v.own.dim() == 2:
            places.append(".diagonal()")
        texts.append("lambda t: " + w.pick(WRITES).format(at=w.pick(places)))
    w.add(f"written({v.name}, {', '.join(texts)})", v)


def put(w: Writer) -> None:
    """Values put, or added, at places that are data."""
    v = w.floating()
    if not v.own.dim():
        return
    dim, at = w.choose(v.own.dim()), w.input("int64", (w.pick(SIZES[:7]),))
    sizes = [*v.shape]
    sizes[dim] = at.shape[0]
    other = w.input(v.dtype, tuple(sizes))
    index, name = f"({at.name} % {v.shape[dim]})", other.name
    way = w.choose(4)
    if way == 0:
        w.add(f"{v.name}.index_add({dim}, {index}, {name})", v, at, other)
    elif way == 1:
        w.add(f"{v.name}.index_fill({dim}, {index}, 0.5)", v, at, exact=True)
    elif way == 2 and dim == 0:
        w.add(f"{v.name}.index_put(({index},), {name}, accumulate=True)", v, at, other)
    elif dim == 0 and v.own.dim() == 2:
        w.add(f"F.embedding({index}, {v.name})", v, at, exact=True)


LAYERS: tuple[tuple[str, Callable[[tuple[int, ...]], bool]], ...] = (
    ("F.group_norm({v}, {half}, eps=0.1)", lambda s: len(s) > 1 and s[1] % 2 == 0),
    ("F.batch_norm({v}, None, None, training=True, eps=0.1)", lambda s: len(s) > 1),
    ("F.instance_norm({v}, eps=0.1)", lambda s: len(s) == 3 and s[2] > 1),
    ("F.avg_pool1d({v}, 2)", lambda s: len(s) in (2, 3)),
    ("F.avg_pool2d({v}, 2, 1, padding=1)", lambda s: len(s) in (3, 4)),
    ("F.glu({v}, -1)", bool),
    ("F.normalize({v}, dim=-1, eps=0.1)", bool),
    ("F.interpolate({v}, scale_factor=2)", lambda s: len(s) == 3),
    ("F.interpolate({v}, scale_factor=2, mode='linear')", lambda s: len(s) == 3),
    ("F.pixel_shuffle({v}, 2)", lambda s: len(s) == 4),
    ("F.pad({v}, (1, 1), mode='reflect')", lambda s: len(s) in (2, 3)),
    ("F.pad({v}, (2, 1), mode='circular')", lambda s: len(s) in (2, 3)),
    ("F.pad({v}, (2, 1), mode='replicate')", lambda s: len(s) in (2, 3)),
    ("F.scaled_dot_product_attention({v}, {v} * 0.5, {v})", lambda s: len(s) in (3, 4)),
    (
        "F.scaled_dot_product_attention({v}, {v}, {v}, is_causal=True)",
        lambda s: len(s) in (3, 4),
    ),
    ("F.softmin({v}, -1)", bool),
    ("torch.var_mean({v}, -1)[0]", lambda s: bool(s) and s[-1] > 1),
    ("torch.einsum('...i,...j->...ij', {v}, {v})", bool),
    ("torch.outer({v}, {v})", lambda s: len(s) == 1),
    ("{v}.mT @ {v} * 0.1", lambda s: len(s) > 1),
    ("{v}.logcumsumexp(-1)", bool),
    ("F.local_response_norm({v}, 2)", lambda s: len(s) == 3),
    ("{v}.renorm(2, 0, 1.0)", lambda s: len(s) > 1),
    ("torch.cdist({v}, {v} + 1)", lambda s: len(s) == 2),
    ("F.cross_entropy({v}, {i} % {v}.shape[1])", lambda s: len(s) == 2),
    ("F.nll_loss({v}, {i} % {v}.shape[1], reduction='sum')", lambda s: len(s) == 2),
    (
        "F.cross_entropy({v}, {i} % {v}.shape[1], reduction='none', label_smoothing=0.1)",
        lambda s: len(s) == 2,
    ),
)
"""Functions of one value, {v}, and for which shapes they are. {i}: an integer for each row."""


def layer(w: Writer) -> None:
    v = w.floating()
    fit = [text for text, fits in LAYERS if fits(v.shape)]
    if not fit:
        return
    text, reads = w.pick(fit), [v]
    if "{i}" in text:
        reads.append(w.input("int64", v.shape[:1]))
    half = v.shape[1] // 2 if len(v.shape) > 1 else 0
    w.add(text.format(v=v.name, i=reads[-1].name, half=half), *reads)


LOSSES = (
    "F.mse_loss({}, {}, reduction={})",
    "F.smooth_l1_loss({}, {}, reduction={})",
    "F.huber_loss({}, {}, reduction={}, delta=0.7)",
    "F.l1_loss({}, {}, reduction={})",
    "F.soft_margin_loss({}, {}, reduction={})",
    "F.poisson_nll_loss({}, {}, reduction={})",
    "F.binary_cross_entropy_with_logits({}, {}, reduction={})",
)


def loss(w: Writer) -> None:
    a = w.floating()
    b = w.value(lambda v: v.dtype == a.dtype and v.shape == a.shape) or w.input(a.dtype, a.shape)
    how = w.pick(("'mean'", "'sum'", "'none'"))
    w.add(w.pick(LOSSES).format(a.name, b.name, how), a, b)


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


def ordered(w: Writer) -> None:
    """Largest elements, and running ones."""
    v = w.value(lambda v: v.is_float and v.exact and v.own.dim() > 0)
    if v is None:
        return
    dim = w.choose(v.own.dim())
    few = 1 + w.choose(min(3, v.shape[dim]))
    way = w.pick((f".topk({few}, {dim})[0]", f".cummax({dim})[0]", f".median({dim})[0]"))
    w.add(f"{v.name}{way}", v, exact=True)


def smooth(w: Writer) -> None:
    """A function without kinks."""
    v = w.floating()
    w.add(w.pick([t for t in SMOOTH if "abs" not in t and "clamp" not in t]).format(v.name), v)


def smooth_fold(w: Writer) -> None:
    v = w.floating()
    if not v.own.dim():
        return
    dim, kind = w.choose(v.own.dim()), w.pick(("sum", "mean", "var", "logsumexp", "softmax"))
    if kind != "var" or v.shape[dim] > 1:
        w.add(f"{v.name}.{kind}({dim})", v)


def extremum(w: Writer) -> None:
    """Its gradient goes to the elements that are equal to it."""
    v = w.floating()
    if v.own.dim():
        kind = w.pick(("amax", "amin", "abs().amax", "float().amin"))
        w.add(f"{v.name}.{kind}({w.choose(v.own.dim())})", v)


def smooth_binary(w: Writer) -> None:
    a = w.floating()
    b = partner(w, a, FLOATS)
    text = w.pick(("{} + {}", "{} - {}", "{} * {}", "{} / ({}.square() + 1)"))
    w.add(text.format(a.name, b.name), a, b)


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
    *[write] * 2,
    put,
    *[layer] * 3,
    loss,
    special,
    ordered,
)
SMOOTH_STEPS: tuple[Callable[[Writer], None], ...] = (
    *[smooth] * 4,
    *[smooth_binary] * 4,
    *[smooth_fold] * 3,
    *[extremum] * 2,
    *[view] * 4,
    *[product] * 2,
    norm,
    cast,
    rows,
    layer,
    write,
    put,
    scan,
    loss,
    where,
)
"""The steps of programs whose gradients are compared."""


def generate(
    choose: Choose,
    seed: int = 0,
    *,
    longest: int = 28,
    steps: Sequence[Callable[[Writer], None]] = STEPS,
) -> Program:
    """A program of 3 to `longest` + 2 lines."""
    writer = Writer(choose, seed)
    for _ in range(1 + choose(2)):
        writer.input(writer.pick(FLOATS), writer.shape())
    wanted, tries = 3 + min(choose(longest), choose(longest)), 0
    while len(writer.lines) < wanted and tries < 8 * wanted:
        tries += 1
        writer.pick(steps)(writer)
    return writer.program()
