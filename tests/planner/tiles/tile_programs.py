"""Graphs written by hand, each with a config, and their tile programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fusionplan.planner.config import NATURAL, Config, Layout
from fusionplan.planner.graph.graph import Graph, Ref, Symbol
from fusionplan.planner.graph.sizes import size
from fusionplan.planner.nests.nest import Nest, schedule
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import tile
from graphs import Builder, dense

HALF = "bfloat16"


def softmax(b: Builder, x: Ref, rows: int) -> Ref:
    top = b.op("amax.default", x, (1,), True, shape=(rows, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    total = b.op("sum.dim_IntList", e, (1,), True, shape=(rows, 1))
    return b.op("div.Tensor", e, total)


def rows() -> Graph:
    b = Builder()
    return b.graph(softmax(b, b.input(64, 4096), 64))


def odd_rows(length: int = 32771) -> Graph:
    """Rows that begin anywhere, times a weight."""
    b = Builder()
    return b.graph(b.op("mul.Tensor", softmax(b, b.input(4096, length), 4096), b.input(length)))


def any_rows() -> Graph:
    """The same of a length that varies."""
    return odd_rows(size(1001, (1009, 2027)))


def two_sums() -> Graph:
    b = Builder()
    x, y = b.input(64, 1024), b.input(64, 1024)
    first = b.op("sum.dim_IntList", x, (1,), shape=(64,))
    return b.graph(first, b.op("sum.dim_IntList", b.op("mul.Tensor", x, y), (1,), shape=(64,)))


def centred() -> Graph:
    """The sum of a row, and the sum of |x - sum|."""
    b = Builder()
    x = b.input(64, 1024)
    total = b.op("sum.dim_IntList", x, (1,), True, shape=(64, 1))
    apart = b.op("abs.default", b.op("sub.Tensor", x, total))
    return b.graph(b.op("sum.dim_IntList", apart, (1,), shape=(64,)))


def linear() -> Graph:
    b = Builder()
    x, w = b.input(512, 256, dtype=HALF), b.input(256, 512, dtype=HALF)
    y = b.op("mm.default", x, w, shape=(512, 512))
    return b.graph(b.op("relu.default", b.op("add.Tensor", y, b.input(512, dtype=HALF))))


def few_rows() -> Graph:
    """Five rows times a matrix."""
    b = Builder()
    x, w = b.input(5, 1024, dtype=HALF), b.input(512, 1024, dtype=HALF)
    turned = b.op("permute.default", w, (1, 0), shape=(1024, 512))
    return b.graph(b.op("mm.default", x, turned, shape=(5, 512)))


def beside() -> Graph:
    """x.t() @ y, and the sum of x over the same axis."""
    b = Builder()
    x, y = b.input(256, 128, dtype=HALF), b.input(256, 128, dtype=HALF)
    turned = b.op("permute.default", x, (1, 0), shape=(128, 256))
    product = b.op("mm.default", turned, y, shape=(128, 128))
    return b.graph(product, b.op("sum.dim_IntList", x, (0,), shape=(128,)))


def stored_too() -> Graph:
    """x @ w, and twice x."""
    b = Builder()
    x, w = b.input(512, 256, dtype=HALF), b.input(256, 64, dtype=HALF)
    return b.graph(b.op("mm.default", x, w, shape=(512, 64)), b.op("mul.Tensor", x, 2.0))


def cast(b: Builder, x: Ref, dtype: str) -> Ref:
    shape = b.nodes[x.node].type.shape
    kwargs = (("dtype", Symbol("dtype", dtype)),)
    return b.node("aten._to_copy.default", (x,), dense(*shape, dtype=dtype), kwargs)


def unpacked(shift: int = 4, mask: int = 0, between: str = "int8", less: int = 8) -> Graph:
    """The sums of numbers of some bits of a byte."""
    b = Builder()
    x = b.input(64, 1024, dtype="uint8")
    x = b.op("__rshift__.Scalar", x, shift) if shift else x
    x = b.op("bitwise_and.Scalar", x, mask) if mask else x
    x = cast(b, x, between) if between else x
    x = b.op("sub.Tensor", x, less) if less else x
    return b.graph(b.op("sum.dim_IntList", cast(b, x, "float32"), (1,), shape=(64,)))


def by_groups(groups: int = 16, each: int = 64, apart: int = 0) -> Graph:
    """Sums of groups of neighbours, each times its scale, added up. apart: elements between two
    groups."""
    b = Builder()
    row = each + apart
    x = b.input(64, groups, each, stride=(groups * row, row, 1))
    sums = b.op("sum.dim_IntList", x, (2,), shape=(64, groups))
    scaled = b.op("mul.Tensor", sums, b.input(64, groups))
    return b.graph(b.op("sum.dim_IntList", scaled, (1,), shape=(64,)))


def nest_of(graph: Graph, layout: Layout = NATURAL) -> Nest:
    found = schedule(graph, layout)
    assert isinstance(found, Nest), found
    return found


def config_of(warps: int = 4, stages: int = 1, reduction: str = "held", **blocks: int) -> Config:
    named = tuple(sorted(blocks.items()))
    return Config(named, num_warps=warps, num_stages=stages, reduction=reduction)


LOOP = config_of(warps=8, stages=3, reduction="loop", x0=128, x1=128, r0=64)
CASES: dict[str, tuple[Callable[[], Graph], Config]] = {
    "held": (rows, config_of(x0=2)),
    "loop": (rows, config_of(stages=2, reduction="loop", x0=2, r0=512)),
    "odd": (odd_rows, config_of(warps=8, reduction="loop", x0=1, r0=2048)),
    "odd_held": (partial(odd_rows, 1001), config_of(x0=1)),
    "any": (any_rows, config_of(warps=8, reduction="loop", x0=1, r0=2048)),
    "any_held": (any_rows, config_of(x0=1, r0=2048)),
    "two_sums": (two_sums, config_of(x0=4)),
    "centred": (centred, config_of(x0=4)),
    "linear": (linear, LOOP),
    "parts": (linear, replace(LOOP, subtiles=2, access="descriptor", group=8)),
    "persistent": (linear, replace(LOOP, programs=4, eviction="both")),
    "narrow": (linear, config_of(reduction="loop", x0=8, x1=128, r0=64)),
    "few": (few_rows, config_of(stages=4, reduction="loop", x0=32, x1=8, r0=256)),
    "beside": (beside, config_of(stages=2, reduction="loop", x0=64, x1=64, r0=64)),
    "by_groups": (by_groups, config_of(x0=4)),
    "unpacked": (unpacked, config_of(x0=2)),
    "stored_too": (stored_too, config_of(stages=3, reduction="loop", x0=128, x1=64, r0=64)),
}


def program_of(name: str, **changes: object) -> TileProgram:
    graph, config = CASES[name]
    return tile(nest_of(graph(), config.layout), replace(config, **changes))


def only(program: TileProgram, kind: type) -> object:
    (found,) = (each for each, _ in program.walk() if isinstance(each, kind))
    return found
