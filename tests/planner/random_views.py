"""Steps of random programs that move elements: views, joins, reads and writes by slices and by
index."""

from __future__ import annotations

from random_programs import SIZES, Value, Writer


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
