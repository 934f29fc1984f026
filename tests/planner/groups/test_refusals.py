"""Every refusal of the planner, produced: its rule, and that its reason names the thing.

The last test reads the planner's source: a refusal that no case here produces fails it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from fusionplan.planner import codegen
from fusionplan.planner.bitsets import bitset
from fusionplan.planner.config import FLAT, LOOP, NATURAL, NESTED, Config, Layout
from fusionplan.planner.costs.device import H200
from fusionplan.planner.cures import RULES
from fusionplan.planner.errors import Refusal, Refused
from fusionplan.planner.graph.graph import Graph, Ref
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.legality import (
    LARGEST_GROUP,
    MOST_BUFFERS,
    Dependences,
    may_be_kernel,
    may_join,
)
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.nest import schedule
from fusionplan.planner.space.space import Space, space_of
from graphs import Builder
from refused_regions import CASES as REGIONS
from refused_traces import CASES as TRACES
from refused_traces import Cases, adding

CASES: Cases = TRACES | REGIONS
case = partial(adding, CASES)


def refusal_of(produce: Callable[[], object]) -> Refusal:
    try:
        found = produce()
    except Refused as refused:
        return refused.refusal
    assert isinstance(found, Refusal), f"not refused: {found}"
    return found


def space(group: Graph) -> Space:
    found = space_of(group, H200)
    assert isinstance(found, Space), found
    return found


# --- layouts -----------------------------------------------------------------------------------


def softmax(rows: int = 64, columns: int = 512) -> Graph:
    b = Builder()
    x = b.input(rows, columns)
    top = b.op("amax.default", x, (1,), True, shape=(rows, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    total = b.op("sum.dim_IntList", e, (1,), True, shape=(rows, 1))
    return b.graph(b.op("div.Tensor", e, total))


def chain(*shape: int) -> Graph:
    b = Builder()
    return b.graph(b.op("exp.default", b.op("relu.default", b.input(*shape))))


@case("flat", "flat tiling is for groups without a reduction")
def flat_tiling_of_a_reduction() -> object:
    return schedule(softmax(), FLAT)


@case("flat", "the natural tiling is flat already")
def flat_tiling_of_one_axis() -> object:
    return space(chain(64, 64)).judge(Config((("x0", 64),), tiling="flat"))


@case("loop", "nothing is reduced")
def loop_over_a_pointwise_group() -> object:
    return schedule(chain(64, 64), LOOP)


def over_both_axes(rows: int, columns: int) -> Graph:
    b = Builder()
    x = b.op("exp.default", b.input(rows, columns))
    down = b.op("sum.dim_IntList", x, (0,), shape=(columns,))
    return b.graph(down, b.op("sum.dim_IntList", x, (1,), shape=(rows,)))


@case("loop", "reductions over different axes cannot share one loop")
def loop_over_two_long_axes() -> object:
    return schedule(over_both_axes(8192, 8192), LOOP)


@case("recompute", "folds 131072 elements again for each x0")
def total_of_everything_for_each_row() -> object:
    b = Builder()
    total = b.op("sum.default", b.input(512, 256), shape=())
    return schedule(b.graph(b.op("add.Tensor", b.input(1024), total)), LOOP)


@case("apart", "no value of the group spans all grid axes x0, x1")
def two_groups_with_nothing_in_common() -> object:
    b = Builder()
    x, y = b.input(64), b.input(48)
    return schedule(b.graph(b.op("exp.default", x), b.op("exp.default", y)), NATURAL)


@case("split", "no reduction is large enough to be cut")
def split_of_a_short_row() -> object:
    return schedule_group(softmax(), Layout("natural", "held", 4))


@case("split", "no reduced axis divides into 150 parts")
def split_of_an_odd_row_into_many() -> object:
    b = Builder()
    total = b.op("sum.dim_IntList", b.input(4, 9001), (1,), shape=(4,))
    return schedule_group(b.graph(total), Layout("natural", "held", 150))


@case("split", "n1 has no part that is shorter")
def split_of_an_odd_row_of_integers() -> object:
    b = Builder()
    x = b.input(4, 9001, dtype="int64")
    total = b.op("sum.dim_IntList", x, (1,), shape=(4,), dtype="int64")
    return schedule_group(b.graph(total), Layout("natural", "held", 16))


@case("split", "n0 has no part that is shorter")
def split_of_an_odd_row_inside_another() -> object:
    b = Builder()
    x = b.input(4, 9001 * 3)
    rows = b.op("view.default", x, (4, 3, 9001), shape=(4, 3, 9001))
    total = b.op("sum.dim_IntList", rows, (2,), shape=(4, 3))
    return schedule_group(b.graph(total), Layout("natural", "held", 16))


@case("split", "parts of n1 are not numbered by one axis")
def split_between_axes_in_two_passes() -> object:
    b = Builder()
    x = b.input(4, 28, 41, 6)
    most = b.op("amax.default", x, (0, 1, 2), shape=(6,))
    scaled = b.op("tanh.default", b.op("mul.Tensor", x, most))
    total = b.op("sum.dim_IntList", scaled, (0, 1, 2), shape=(6,))
    return schedule_group(b.graph(total), Layout("natural", "loop", 16))


@case("split", "nothing is reduced")
def split_of_a_pointwise_group() -> object:
    b = Builder()
    return schedule_group(b.graph(b.op("exp.default", b.input(4, 6))), Layout("natural", "held", 4))


# --- contractions ------------------------------------------------------------------------------


def product(b: Builder, left: tuple[int, int], right: tuple[int, int]) -> Ref:
    dtype = "bfloat16"
    x, y = b.input(*left, dtype=dtype), b.input(*right, dtype=dtype)
    return b.op("mm.default", x, y, shape=(left[0], right[1]))


@case("empty", "contracts an axis of length 0")
def product_over_nothing() -> object:
    b = Builder()
    return schedule(b.graph(product(b, (4, 0), (0, 6))), NATURAL)


@case("loop", "there is only one axis to loop over")
def nested_loops_over_one_axis() -> object:
    b = Builder()
    return schedule(b.graph(product(b, (64, 32), (32, 64))), NESTED)


@case("loop", "n1 reduces over two looped axes")
def a_fold_over_two_loops() -> object:
    b = Builder()
    x = b.input(64, 32)
    both = b.op("sum.dim_IntList", x, (0, 1), shape=())
    return schedule(b.graph(both, b.op("amax.default", x, (1,), shape=(64,))), NESTED)


@case("loop", "is needed inside the loop that makes it")
def a_result_along_the_axis_that_feeds_it() -> object:
    b = Builder()
    x, y = b.input(64, 32, dtype="bfloat16"), b.input(32, 128, dtype="bfloat16")
    scores = b.op("mm.default", x, y, shape=(64, 128))
    turned = b.op("permute.default", y, (1, 0), shape=(128, 32))
    return schedule(b.graph(b.op("mm.default", scores, turned, shape=(64, 32))), NESTED)


WEIGHTED = """
%0 = input() : float32[6, 41]
%1 = input() : float32[41]
%2 = aten.amax.default(%0, (1), True) : float32[6, 1]
%3 = aten.sub.Tensor(%0, %2) : float32[6, 41]
%4 = aten.exp.default(%3) : float32[6, 41]
%5 = aten.sum.dim_IntList(%4, (1), True) : float32[6, 1]
%6 = aten.log.default(%5) : float32[6, 1]
%7 = aten.sub.Tensor(%3, %6) : float32[6, 41]
%8 = aten.mul.Tensor(%7, %1) : float32[6, 41]
%9 = aten.sum.dim_IntList(%8, (1)) : float32[6]
%10 = aten.sum.default(%9) : float32[]
return %10
"""
"""The sum over all rows of log-softmax times a weight of each class."""


@case("loop", "the weights of sum_9 are summed in another loop")
def weights_that_no_row_changes() -> object:
    return schedule(parse(WEIGHTED), NESTED)


@case("recompute", "two sweeps would compute n2")
def two_passes_over_a_product() -> object:
    b = Builder()
    scores = product(b, (64, 32), (32, 4096))
    mean = b.op("mean.dim", scores, (1,), True, shape=(64, 1))
    distance = b.op("abs.default", b.op("sub.Tensor", scores, mean))
    return schedule(b.graph(b.op("amax.default", distance, (1,), shape=(64,))), LOOP)


@case("recompute", "a matrix product would be repeated in every block of an axis")
def two_products_with_a_long_result() -> object:
    b = Builder()
    hidden = b.op("relu.default", product(b, (64, 32), (32, 128)))
    wide = b.input(128, 4096, dtype="bfloat16")
    return schedule(b.graph(b.op("mm.default", hidden, wide, shape=(64, 4096))), LOOP)


def large_product() -> Space:
    b = Builder()
    return space(b.graph(product(b, (4096, 1024), (1024, 4096))))


@case("shared", "bytes of shared memory are more than an SM has")
def tiles_that_no_sm_holds() -> object:
    blocks = (("r0", 128), ("x0", 256), ("x1", 128))
    return large_product().judge(Config(blocks, 8, num_stages=5, reduction="loop"))


@case("descriptor", "no access is a block that a descriptor can copy")
def descriptors_for_scalars() -> object:
    b = Builder()
    found = space(b.graph(product(b, (4096, 1023), (1023, 4095))))
    blocks = (("r0", 64), ("x0", 128), ("x1", 128))
    return found.judge(Config(blocks, 8, num_stages=2, reduction="loop", access="descriptor"))


@case("subtiles", "x1 has blocks of 16, too few for 2 parts")
def parts_of_a_narrow_tile() -> object:
    blocks = (("r0", 64), ("x0", 128), ("x1", 16))
    return large_product().judge(Config(blocks, 4, reduction="loop", subtiles=2))


@case("subtiles", "no product of matrices comes before the epilogue")
def parts_without_a_product() -> object:
    b = Builder()
    total = b.op("sum.dim_IntList", b.input(64, 4096), (1,), shape=(64,))
    blocks = (("r0", 1024), ("x0", 4))
    return space(b.graph(total)).judge(Config(blocks, 4, reduction="loop", subtiles=2))


@case("subtiles", "the epilogue has no r1")
def parts_of_what_a_fold_took_away() -> object:
    b = Builder()
    most = b.op("amax.default", product(b, (64, 64), (64, 128)), (1,), shape=(64,))
    found = space(b.graph(b.op("relu.default", most)))
    ((layout, _), *_) = found.schedules.items()
    blocks = (("r0", 64), ("x0", 64))
    return found.judge(Config(blocks, 4, tiling=layout.tiling, subtiles=2))


@case("held", "a tile of 131072 elements is too large")
def row_too_long_to_hold() -> object:
    return space(softmax(4096, 1 << 17)).judge(Config((("x0", 1),)))


# --- configs -----------------------------------------------------------------------------------


@case("config", "no block size for axis x0")
def config_without_a_block() -> object:
    return lower(chain(64, 64), Config((("y7", 4),)))


@case("layout", "the group has no layout natural/8")
def layout_that_is_not_there() -> object:
    return space(chain(64, 64)).judge(Config((("x0", 64),), split=8))


@case("tile", "a tile of 131072 elements is over 65536")
def tile_too_large() -> object:
    return space(softmax(4096, 1 << 14)).judge(Config((("x0", 8),), num_warps=32))


@case("tile", "256 elements a thread are over 128")
def too_many_elements_a_thread() -> object:
    return space(softmax(4096, 1 << 13)).judge(Config((("x0", 1),), num_warps=1))


@case("spills", "bytes a thread would spill")
def far_too_many_registers() -> object:
    b = Builder()
    inputs = [b.input(1 << 14, 1024) for _ in range(12)]
    total = inputs[0]
    for x in inputs[1:]:
        total = b.op("add.Tensor", total, x)
    top = b.op("amax.default", total, (1,), True, shape=(1 << 14, 1))
    group = b.graph(*(b.op("sub.Tensor", x, top) for x in inputs))
    return space(group).judge(Config((("x0", 4),), num_warps=1))


@case("slow", "the cost model expects ")
def one_row_after_another() -> object:
    return space(chain(1 << 13, 1 << 10)).judge(Config((("x0", 1),), num_warps=32))


# --- groups ------------------------------------------------------------------------------------


def joined(graph: Graph, left: set[int], right: set[int]) -> Refusal | None:
    home = {n.id: 1 << n.id for n in graph.nodes if is_compute(n)}
    for part in (left, right):
        home.update(dict.fromkeys(part, bitset(part)))
    return may_join(graph, Dependences(graph), home, bitset(left), bitset(right))


@case("size", "more than 96 operations")
def a_hundred_operations() -> object:
    b = Builder()
    x = b.input(64)
    for _ in range(100):
        x = b.op("exp.default", x)
    graph = b.graph(x)
    return joined(graph, set(range(1, 51)), set(range(51, 101)))


@case("convex", "a path leaves the group and comes back")
def around_an_opaque_operation() -> object:
    b = Builder()
    first = b.op("exp.default", b.input(8, 64))
    scanned = b.op("digamma.default", first)
    last = b.op("add.Tensor", first, scanned)
    return joined(b.graph(last), {first.node}, {last.node})


@case("convex", "a path leaves the group and comes back")
def around_another_group() -> object:
    b = Builder()
    x = b.input(8, 64)
    first, other = b.op("exp.default", x), b.op("relu.default", x)
    scanned = b.op("digamma.default", other)
    neighbour = b.op("add.Tensor", first, x)
    last = b.op("add.Tensor", first, scanned)
    # {other, neighbour} reads the group, and what it leads to is read by the group.
    graph = b.graph(b.op("add.Tensor", last, neighbour))
    home = {n.id: 1 << n.id for n in graph.nodes if is_compute(n)}
    pair = bitset({other.node, neighbour.node})
    home[other.node] = home[neighbour.node] = pair
    dependences = Dependences(graph)
    return may_join(graph, dependences, home, 1 << first.node, 1 << last.node)


@case("buffers", "more than 40 tensors")
def fifty_inputs() -> object:
    b = Builder()
    x = b.input(64)
    for _ in range(50):
        x = b.op("add.Tensor", x, b.input(64))
    graph = b.graph(x)
    return may_be_kernel(graph, bitset(n.id for n in graph.nodes if is_compute(n)))


# --- the tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_refused_with_a_reason_that_names_the_thing(name: str) -> None:
    rule, reason, produce = CASES[name]
    found = refusal_of(produce)
    assert found.rule == rule
    assert reason in found.reason
    assert str(found) == f"{rule}: {found.reason}"


def test_one_that_is_refused_has_a_neighbour_that_is_not() -> None:
    """The refusals above do not hold for everything near them."""
    assert refusal_of(flat_tiling_of_one_axis)
    assert not isinstance(schedule(softmax(), LOOP), Refusal)
    assert not isinstance(schedule(over_both_axes(8192, 1024), LOOP), Refusal)
    assert space(softmax(4096, 1 << 14)).schedules.keys() >= {Layout("natural", "held")}
    b = Builder()
    first = b.op("exp.default", b.input(8, 64))
    last = b.op("add.Tensor", first, b.op("relu.default", first))
    assert joined(b.graph(last), {first.node, first.node + 1}, {last.node}) is None


def refusals_in_the_source() -> Iterator[tuple[str, str, str]]:
    """Place, rule and reason (as a pattern) of every refusal the planner can give."""
    for path in sorted(Path(codegen.__file__).parents[1].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in ("Refusal", "Refused") or path.name == "errors.py":
                continue
            rule, reason = node.args
            # What a derivation refuses is a value beside it, tested in test_online_refused.py; what
            # an explanation could not rank, in test_explain.py.
            if path.name == "explain_plan.py" or getattr(rule, "value", "") == "online":
                continue
            assert isinstance(rule, ast.Constant), f"{path.name}:{node.lineno}: no literal rule"
            parts = reason.values if isinstance(reason, ast.JoinedStr) else [reason]
            pattern = "".join(
                re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts
            )
            yield f"{path.name}:{node.lineno}", rule.value, pattern


def test_limits_that_the_user_reads_are_those_of_groups() -> None:
    assert f" {MOST_BUFFERS} tensors" in RULES["buffers"].why
    assert f" {LARGEST_GROUP} operations" in RULES["size"].why


@pytest.mark.slow
def test_every_refusal_in_the_source_has_a_case() -> None:
    produced = [refusal_of(produce) for _, _, produce in CASES.values()]
    missing = [
        f"{place} {rule}: {pattern}"
        for place, rule, pattern in refusals_in_the_source()
        if not any(r.rule == rule and re.fullmatch(pattern, r.reason) for r in produced)
    ]
    assert not missing
    known = {rule for _, rule, _ in refusals_in_the_source()}
    assert {rule for rule, _, _ in CASES.values()} == known
