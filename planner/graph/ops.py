"""The operation table: one row for every ATen overload a kernel can hold.

No later stage asks for an overload's name: what it must know stands in the row. Rows of pointwise
operations name an `Op`, whose operands are called as in ATen's own schema.
An overload with no row is opaque: it runs as `aten` and is never inside a generated kernel.
"""

from __future__ import annotations

from functools import lru_cache

from ..memo import by_identity
from . import library  # noqa: F401 - defines the operators of our own
from .dtypes import BOUNDS, DTYPES, FLOAT8, FLOATS, NARROW
from .graph import INPUT, ITEM, Arg, Node, Ref, Symbol, TensorType
from .op import Op
from .overloads import overload
from .pointwise import (
    BITWISE_NOT,
    DIVIDE,
    FLOOR_DIVIDE,
    LOGICAL_NOT,
    POINTWISE,
    POW,
    POWERS,
    TRUNC_DIVIDE,
)
from .rows import (
    Cast,
    Concat,
    Constant,
    Contraction,
    Cumulative,
    Depthwise,
    IndexedWrite,
    Iota,
    Lookup,
    Monoid,
    Pointwise,
    Reduction,
    Row,
    View,
)
from .sizes import varies

__all__ = [
    "ALL",
    "ANY",
    "MAX",
    "MIN",
    "OPS",
    "PROD",
    "SUM",
    "Cast",
    "Concat",
    "Constant",
    "Contraction",
    "Cumulative",
    "Depthwise",
    "IndexedWrite",
    "Iota",
    "Lookup",
    "Monoid",
    "Pointwise",
    "Reduction",
    "Row",
    "View",
    "bound",
    "copy_node",
    "is_compute",
    "is_free",
    "is_input",
    "is_item",
    "op_of",
    "overload",
    "row",
]


SUM = Monoid(
    "sum",
    {"float": "0.0", "int": "0", "bool": "0"},
    "{a} + {b}",
    "tl.sum({x}, {axis})",
    "tl.cumsum({x}, {axis}, reverse={reverse})",
)
PROD = Monoid(
    "prod",
    {"float": "1.0", "int": "1", "bool": "1"},
    "{a} * {b}",
    "prod({x}, {axis})",
    "tl.cumprod({x}, {axis}, reverse={reverse})",
)
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
LOG_SUM_EXP, QUICK_LOG_SUM_EXP = (
    Monoid(
        "logsumexp",
        {"float": 'float("-inf")'},
        f"{quick}log_add_exp({{a}}, {{b}})",
        f"{quick}log_sum_exp({{x}}, {{axis}})",
        f"{quick}log_cumsum_exp({{x}}, {{axis}}, {{reverse}})",
        slots,
    )
    for quick, slots in (("", 160.0), ("fast_", 46.0))
)
"""Slots: 8,192 rows of 4,096 in bfloat16 took 148 us on an H100, nearly all of it arithmetic; the
exact form has more than three times the instructions."""
ASSOCIATIVE = Monoid("associative", {}, "", "")
"""Stands for what a graph of the user's combines: see `library.associative_scan`."""
ANY = Monoid("any", {"bool": "0"}, "{a} | {b}", "tl.max({x}, {axis})")
ALL = Monoid("all", {"bool": "1"}, "{a} & {b}", "tl.min({x}, {axis})")

EXTREMUM_PLACES = frozenset({"aten.argmax.default", "aten.argmin.default"})
"""Operations without a row that give the place of an extremum."""

PLACES = EXTREMUM_PLACES | {
    "aten.max.dim",
    "aten.min.dim",
    "aten.sort.default",
    "aten.sort.stable",
    "aten.topk.default",
}
"""Operations that give places: one place is not the nearer to the right one for its number."""


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
    "flip.default": View("flip"),
    "diagonal.default": View("strided"),
    "unfold.default": View("strided"),
    "as_strided.default": View("strided"),
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

_SCANS: dict[str, Cumulative] = {
    "cumsum.default": Cumulative(SUM),
    "cumprod.default": Cumulative(PROD),
    "logcumsumexp.default": Cumulative(LOG_SUM_EXP, quick=QUICK_LOG_SUM_EXP),
}

_CONTRACTIONS: dict[str, Contraction] = {
    "mm.default": Contraction("self", "mat2"),
    "bmm.default": Contraction("self", "mat2"),
    "addmm.default": Contraction("mat1", "mat2", "self"),
    "baddbmm.default": Contraction("batch1", "batch2", "self"),
}

_LOOKUPS: dict[str, Lookup] = {
    "embedding.default": Lookup("weight", "indices"),
    "index_select.default": Lookup("self", "index"),
    "gather.default": Lookup("self", "index", along=True),
    "index.Tensor": Lookup("self", "indices", wraps=True),
    "_unsafe_index.Tensor": Lookup("self", "indices", wraps=True, inside=True),
}

# Nothing is promised of what these hold.
_EMPTY = ("empty.memory_format", "empty_permuted.default", "empty_like.default")

_OTHERS: dict[str, Row] = {
    "cat.default": Concat(),
    "convolution.default": Depthwise(),
    "index_put_.default": IndexedWrite("self", "indices", "values"),
    "_to_copy.default": Cast(by_user=True),
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
    **{f"aten.{name}": row for name, row in POINTWISE.items()},
    **{f"aten.{name}": row for name, row in _VIEWS.items()},
    **{f"aten.{name}": row for name, row in _REDUCTIONS.items()},
    **{f"aten.{name}": row for name, row in _SCANS.items()},
    **{f"aten.{name}": row for name, row in _CONTRACTIONS.items()},
    **{f"aten.{name}": row for name, row in _LOOKUPS.items()},
    **{f"aten.{name}": row for name, row in _OTHERS.items()},
    "prims.convert_element_type.default": Cast(),
    "prims.iota.default": Iota(),
    "fusionplan.bitcast.default": Pointwise(Op.BITCAST, "same"),
    "fusionplan.exceeds.default": Pointwise(Op.EXCEEDS, "bool"),
    "fusionplan.uniform.default": Pointwise(Op.UNIFORM, "same"),
    "fusionplan.associative_scan.default": Cumulative(ASSOCIATIVE),
}


_COMPUTE = (
    Pointwise,
    Cast,
    Reduction,
    Cumulative,
    Contraction,
    Depthwise,
    Concat,
    Lookup,
    IndexedWrite,
)
_SAME_DEVICE = Symbol("device", "graph")


def row(node: Node) -> Row | None:
    """The node's row, or None when it is opaque: unknown, no single tensor, or an argument that
    the row cannot express (a copy to another device, a power that is no small constant ...)."""
    if node.type is None or node.type.dtype not in DTYPES:
        return None
    return _PLAIN.get(node.op) or _checked(node)


_NO_BOOLS = frozenset(
    f"aten.{name}"
    for name in [
        "abs.default",
        "relu.default",
        "round.default",
        "trunc.default",
        "hypot.default",
        "fmod.Tensor",
        "fmod.Scalar",
        "remainder.Tensor",
        "remainder.Scalar",
    ]
)
"""Operations that eager refuses of booleans."""

_FLOATS_ALONE = frozenset({"aten.hypot.default"})
"""And of integers."""

_BY_TYPE = _NO_BOOLS | {"aten.pow.Tensor_Scalar", "aten.nextafter.default"}
"""Operations that have a row for some element types, or some arguments, alone."""


def _is_plain(name: str, found: Row) -> bool:
    """Whether a row holds whatever the arguments and the element type are."""
    if isinstance(found, Pointwise):
        named = name in _BY_TYPE or "_mode" in name
        return not (named or found.checks_numbers or found is POW or found is BITWISE_NOT)
    if isinstance(found, View):
        return name != "aten.as_strided.default"
    return isinstance(found, (Reduction, Concat, Lookup))


_PLAIN = {name: found for name, found in OPS.items() if _is_plain(name, found)}


@by_identity(1 << 13)
def _checked(node: Node) -> Row | None:
    """The row of a node of which more than the name counts."""
    assert node.type is not None
    if node.op == "aten.pow.Tensor_Scalar":
        power, exponent = _power(node), node.args[1]
        if isinstance(exponent, int) and exponent < 0 and node.type.dtype not in FLOATS:
            return None  # which eager refuses
        return None if power is POW and node.type.dtype not in FLOATS else power
    if node.op in ("aten.div.Tensor_mode", "aten.div.Scalar_mode"):
        return _divided(node)
    found = OPS.get(node.op)
    if found is None:
        return None
    if found is BITWISE_NOT and node.type.dtype == "bool":
        return LOGICAL_NOT
    if isinstance(found, (Constant, Pointwise)) and _is_beyond(node, found):
        return None  # which eager refuses
    if isinstance(found, Cumulative) and node.type.dtype in FLOAT8 | {"bool"}:
        return None
    if isinstance(found, Iota) and not _is_whole(node):
        return None
    if found is POW and node.type.dtype not in FLOATS:
        return None  # libdevice's is of floats, which do not hold every integer
    if node.op == "aten.as_strided.default" and bound(node)["storage_offset"] is not None:
        return None  # counted from the beginning of memory, which only the caller knows
    if node.op in _NO_BOOLS and node.type.dtype == "bool":
        return None
    if node.op in _FLOATS_ALONE and node.type.dtype not in FLOATS:
        return None
    if node.op == "aten.nextafter.default" and node.type.dtype not in FLOATS - NARROW:
        return None  # 16-bit floats are float32 in registers
    if isinstance(found, Contraction) and not node.type.numel:
        return None
    if isinstance(found, Cast) and bound(node).get("device") not in (None, _SAME_DEVICE):
        return None
    if isinstance(found, Contraction) and node.type.dtype not in FLOATS:
        return None
    if isinstance(found, IndexedWrite) and bound(node)["accumulate"]:
        return None
    if isinstance(found, Depthwise) and not _is_depthwise(node):
        return None
    return found


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution of any kind, also one that has no row."""
    return node.type is not None and isinstance(OPS.get(node.op), Depthwise)


def _is_depthwise(node: Node) -> bool:
    """Whether a convolution gives one channel for each of its groups. That a group has one channel,
    too, only the image tells (see `trace.convolutions`)."""
    assert node.type is not None
    named, (_, channels, *sizes) = bound(node), node.type.shape
    if named["transposed"] or named["groups"] != channels or channels == 1:
        return False
    return node.type.dtype in FLOATS and not any(map(varies, (channels, *sizes)))


def _is_beyond(node: Node, found: Constant | Pointwise) -> bool:
    """Whether a number is none of the integer type that it has to be of. A negative one counts
    from the end of an unsigned type."""
    assert node.type is not None
    if node.type.dtype not in BOUNDS:
        return False
    low, high = BOUNDS[node.type.dtype]
    if isinstance(found, Constant):
        numbers = [bound(node)[found.argument]] if found.argument else []
    else:
        numbers = [*bound(node).values()] if found.checks_numbers else []
    least = low or -high
    return any(isinstance(n, (int, float)) and not least <= n <= high for n in numbers)


def _is_whole(node: Node) -> bool:
    """Whether an `arange` counts in integers, be they written as floats; its end may be any."""
    named = bound(node)
    counts = (named.get("start") or 0, named.get("step", 1))
    return all(
        isinstance(n, int) or (isinstance(n, float) and n.is_integer() and abs(n) < 1 << 24)
        for n in counts
    )


def _divided(node: Node) -> Pointwise | None:
    """Division with a rounding mode."""
    mode = bound(node)["rounding_mode"]
    return {None: DIVIDE, "floor": FLOOR_DIVIDE, "trunc": TRUNC_DIVIDE}.get(
        str(mode) if mode else None
    )


def _power(node: Node) -> Pointwise:
    exponent = node.args[1]
    return POWERS.get(exponent, POW) if isinstance(exponent, (int, float)) else POW


def op_of(node: Node) -> Op | None:
    """The pointwise operation of a node; None where it is none that a kernel can hold."""
    found = row(node)
    return found.op if isinstance(found, Pointwise) else None


def is_free(node: Node) -> bool:
    """Views and constants: they cost nothing, and a group may take in a copy of them."""
    return isinstance(row(node), (View, Constant, Iota))


def is_compute(node: Node) -> bool:
    """Nodes a generated kernel does work for; together with the free ones, all it can hold."""
    return isinstance(row(node), _COMPUTE)


def bound(node: Node) -> dict[str, Arg]:
    """The node's arguments by the names of its schema, defaults filled in."""
    parameters = _parameters(node.op)
    named = dict(parameters)
    names = [name for name, _ in parameters]
    named.update((n, v) for n, v in node.kwargs if n in named)
    named.update(zip(names, node.args, strict=False))
    return named


@lru_cache(maxsize=4096)
def _parameters(op: str) -> tuple[tuple[str, Arg], ...]:
    """Names in the schema of an overload, in order, each with its default."""
    found: list[tuple[str, Arg]] = []
    for argument in overload(op)._schema.arguments:
        default = argument.default_value if argument.has_default_value() else None
        found.append((argument.name, tuple(default) if isinstance(default, list) else default))
    return tuple(found)


def is_input(node: Node) -> bool:
    return node.op == INPUT


def copy_node(number: int, source: int, wanted: TensorType) -> Node:
    """A node that copies the value of another into the strides of this type."""
    order = Symbol("memory_format", "preserve_format")
    kept = (("memory_format", order),)
    return Node(number, "copy", "aten.clone.default", (Ref(source),), kept, wanted)


def is_item(node: Node) -> bool:
    """Whether a node takes one of the several results of another."""
    return node.op == ITEM
