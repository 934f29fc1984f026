"""Steps of random programs along dimensions: sums and extrema, scans, softmax and norms, products
of matrices."""

from __future__ import annotations

import math

from random_elementwise import compare
from random_programs import SIZES, Writer

FOLDS = ("sum", "mean", "amax", "amin", "var", "sum", "mean", "amax", "std", "norm")
ROWS = ("torch.softmax({}, {})", "torch.log_softmax({}, {})", "torch.logsumexp({}, {})")


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


def truths(w: Writer) -> None:
    """Booleans of comparisons, folded."""
    v = w.value(lambda v: v.dtype == "bool" and v.own.dim() > 0)
    if v is None:
        return compare(w)
    dim = w.choose(v.own.dim())
    w.add(f"{v.name}.{w.pick(('any', 'all', 'cumsum', 'sum'))}({dim})", v)


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


def ordered(w: Writer) -> None:
    """Largest elements, and running ones."""
    v = w.value(lambda v: v.is_float and v.exact and v.own.dim() > 0)
    if v is None:
        return
    dim = w.choose(v.own.dim())
    few = 1 + w.choose(min(3, v.shape[dim]))
    way = w.pick((f".topk({few}, {dim})[0]", f".cummax({dim})[0]", f".median({dim})[0]"))
    w.add(f"{v.name}{way}", v, exact=True)


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
        text = w.pick(("{}.amax", "{}.amin", "{}.abs().amax", "cast({}, torch.float32).amin"))
        w.add(f"{text.format(v.name)}({w.choose(v.own.dim())})", v)
