"""Refusals that a group's trace gives: views, windows, lookups and factors, each produced by a
function of `CASES`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fusionplan.planner.config import LOOP, NATURAL, NESTED, Layout
from fusionplan.planner.graph.graph import INPUT, Ref, TensorType
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.nest import schedule
from fusionplan.planner.stream.unroll import unrolled
from fusionplan.planner.trace.survey import dims_of_nodes
from fusionplan.planner.trace.trace import trace
from fusionplan.planner.trace.windows import hits
from fusionplan.planner.values.axes import FactorSpace
from fusionplan.planner.values.values import Fold, Window
from graphs import Builder

Produce = Callable[[], object]
Cases = dict[str, tuple[str, str, Produce]]
"""By name: rule, words of the reason, what produces it."""


def adding(cases: Cases, rule: str, reason: str) -> Callable[[Produce], Produce]:
    """A decorator of what produces a refusal."""

    def add(produce: Produce) -> Produce:
        cases[produce.__name__] = (rule, reason, produce)
        return produce

    return add


CASES: Cases = {}
case = partial(adding, CASES)


# --- tracing: views, windows, opaque nodes -----------------------------------------------------


@case("size", "more than 384 values, up to n")
def shifted_copies_of_shifted_copies() -> object:
    """Each is read at five places in every step: 3125 times in the fifth."""
    b = Builder()
    size = 1 << 14
    x = b.input(size)
    for _ in range(5):
        size -= 1000
        read = [b.op("slice.Tensor", x, 0, i, i + size, shape=(size,)) for i in (0, 1, 7, 50, 999)]
        x = read[0]
        for each in read[1:]:
            x = b.op("add.Tensor", x, each)
    return schedule(b.graph(x), NATURAL)


@case("output", "a group's output is no tensor")
def output_that_is_none() -> object:
    b = Builder()
    x = b.input(4, 6)
    return trace(b.graph(b.op("exp.default", x), None))


@case("opaque", "aten.digamma.default has no row")
def operation_without_a_row() -> object:
    b = Builder()
    return schedule(b.graph(b.op("digamma.default", b.input(4, 6))), NATURAL)


@case("window", "is a scan read from its middle")
def scan_read_from_its_middle() -> object:
    b = Builder()
    scan = b.op("cumsum.default", b.input(4, 6), 1)
    return trace(b.graph(b.op("exp.default", b.op("slice.Tensor", scan, 1, 2, 5, shape=(4, 3)))))


@case("dtype", "no kernel scans float32 as int64")
def scan_of_floats_as_integers() -> object:
    b = Builder()
    whole = TensorType((4, 6), (6, 1), "int64")
    return trace(b.graph(b.node("aten.cumsum.default", (b.input(4, 6), 1), whole)))


@case("dtype", "no kernel scans bool by n2")
def associative_scan_of_bool() -> object:
    b = Builder()
    x = b.input(4, 6)
    flags = b.node("aten.gt.Scalar", (x, 0), TensorType((4, 6), (6, 1), "bool"))
    combine = (
        "%0 = input() : float32[]\n%1 = input() : bool[]\n"
        "%2 = input() : float32[]\n%3 = input() : bool[]\n"
        "%4 = aten.add.Tensor(%0, %2) : float32[]\nreturn %4, %3"
    )
    whole = TensorType((4, 6), (6, 1), "float32")
    scan = ((x, flags), combine, 0)
    return trace(b.graph(b.node("fusionplan.associative_scan.default", scan, whole)))


@case("scan", "one loop would have to go forwards and backwards")
def scans_of_both_directions_in_one_loop() -> object:
    b = Builder()
    x = b.input(4, 6)
    back = b.op("flip.default", b.op("cumsum.default", b.op("flip.default", x, (1,)), 1), (1,))
    return schedule(b.graph(b.op("add.Tensor", b.op("cumsum.default", x, 1), back)), LOOP)


@case("scan", "n3 goes along an axis that is divided")
def scan_of_a_transposed_matrix_as_one_row() -> object:
    b = Builder()
    turned = b.op("permute.default", b.input(4, 6), (1, 0), shape=(6, 4))
    row = b.op("reshape.default", turned, (24,), shape=(24,))
    return schedule(b.graph(b.op("cumsum.default", row, 0)), NATURAL)


@case("scan", "n1 is inside two loops")
def scan_in_a_loop_with_another_loop() -> object:
    b = Builder()
    scan = b.op("cumsum.default", b.input(4, 6, 8), 1)
    return schedule(b.graph(b.op("sum.dim_IntList", scan, (2,), shape=(4, 6))), NESTED)


@case("scan", "n1 needs all that comes before each element")
def scan_in_chunks() -> object:
    b = Builder()
    return dims_of_nodes(b.graph(b.op("cumsum.default", b.input(4, 6), 1)))


@case("split", "a scan is not cut into parts")
def split_of_a_scan() -> object:
    b = Builder()
    scan = b.op("cumsum.default", b.input(4, 1 << 14), 1)
    return schedule_group(b.graph(scan), Layout("natural", "loop", 4))


@case("opaque", "n1 is no single tensor")
def operation_with_several_results() -> object:
    b = Builder()
    return trace(b.graph(b.opaque(b.input(4, 6))))


@case("opaque", "n1 is no single tensor")
def number_that_lies_on_another_device() -> object:
    b = Builder()
    x, elsewhere = b.input(4, 6), b.node(INPUT, (), None)
    return trace(b.graph(b.op("add.Tensor", x, elsewhere)))


@case("dtype", "which is complex64")
def input_of_complex_numbers() -> object:
    b = Builder()
    x = b.input(4, 6, dtype="complex64")
    return trace(b.graph(b.node("aten.abs.default", (x,), TensorType((4, 6), (6, 1), "float32"))))


@case("cast", "n0 casts no tensor")
def cast_of_a_number() -> object:
    b = Builder()
    return trace(b.graph(b.op("_to_copy.default", 3.0, shape=(4,))))


@case("window", "n1 is a reduction read through a slice")
def slice_of_a_reduction() -> object:
    b = Builder()
    total = b.op("sum.dim_IntList", b.input(8, 6), (1,), shape=(8,))
    rows = b.op("slice.Tensor", total, 0, 2, 6, shape=(4,))
    return schedule(b.graph(b.op("exp.default", rows)), NATURAL)


@case("window", "n2 is a reshape between a slice and its source")
def slice_of_a_flattened_tensor() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(8, 6))
    flat = b.op("view.default", y, (48,), shape=(48,))
    part = b.op("slice.Tensor", flat, 0, 5, 29, shape=(24,))
    return trace(b.graph(b.op("exp.default", part)))


@case("window", "a slice at Ref(node=0), which is no number")
def slice_at_a_tensor() -> object:
    b = Builder()
    x = b.input(8, 6)
    return trace(b.graph(b.op("exp.default", b.op("slice.Tensor", x, 0, x, 6, shape=(4, 6)))))


@case("window", "a concatenation read at one index only")
def concatenation_read_at_one_index() -> object:
    return hits(Window(3, 0, 4), 0, 8)


@case("indexed", "n3 reads by index what the kernel itself computes")
def lookup_in_what_is_computed() -> object:
    b = Builder()
    x, index = b.input(8, 6), b.input(3, dtype="int64")
    y = b.op("exp.default", x)
    return trace(b.graph(b.op("index_select.default", y, 0, index, shape=(3, 6))))


@case("indexed", "n2 reads a number by index")
def lookup_in_a_number() -> object:
    b = Builder()
    x, index = b.input(), b.input(1, dtype="int64")
    return trace(b.graph(b.op("index_select.default", x, 0, index, shape=(1,))))


@case("indexed", "n2 reads by what is no index: bool[8]")
def lookup_by_a_mask() -> object:
    b = Builder()
    x, mask = b.input(8, 6), b.input(8, dtype="bool")
    return trace(b.graph(b.op("index.Tensor", x, (mask,), shape=(3, 6))))


@case("indexed", "n4 writes by index into what the kernel computes")
def write_by_index_into_what_is_computed() -> object:
    b = Builder()
    x, index, rows = b.input(8, 6), b.input(3, dtype="int64"), b.input(3, 6)
    y = b.op("exp.default", x)
    return trace(b.graph(b.op("index_put_.default", y, (index,), rows, shape=(8, 6))))


@case("indexed", "n4 reads what the kernel writes by index")
def read_of_what_is_written_by_index() -> object:
    b = Builder()
    x, index, rows = b.input(8, 6), b.input(3, dtype="int64"), b.input(3, 6)
    y = b.op("index_put_.default", x, (index,), rows, shape=(8, 6))
    return trace(b.graph(b.op("exp.default", y)))


@case("window", "n3 is written by index and read through a slice")
def read_of_a_part_of_what_is_written_by_index() -> object:
    b = Builder()
    x, index, row = b.input(8, 6), b.input(1, dtype="int64"), b.input(1, 6)
    y = b.op("index_put_.default", x, (index,), row, shape=(8, 6))
    part = b.op("slice.Tensor", y, 0, 2, 5, shape=(3, 6))
    return trace(b.graph(b.op("exp.default", part, shape=(3, 6))))


@case("indexed", "a part of what a group writes by index is no tensor")
def walk_along_a_write_by_index() -> object:
    b = Builder()
    x, index, rows = b.input(8, 6), b.input(3, dtype="int64"), b.input(3, 6)
    return dims_of_nodes(b.graph(b.op("index_put_.default", x, (index,), rows, shape=(8, 6))))


@case("indexed", "n1 has no index")
def lookup_without_an_index() -> object:
    b = Builder()
    return trace(b.graph(b.op("index.Tensor", b.input(8, 6), (None, None))))


@case("window", "n2 gathers from a part of its source")
def walk_along_a_gather_from_a_part() -> object:
    b = Builder()
    x, index = b.input(8, 6), b.input(4, 2, dtype="int64")
    return dims_of_nodes(b.graph(b.op("gather.default", x, 1, index, shape=(4, 2))))


@case("empty", "n1 reduces an empty tensor")
def maximum_of_nothing() -> object:
    b = Builder()
    return trace(b.graph(b.op("amax.default", b.input(4, 0), (1,), shape=(4,))))


@case("empty", "n2 has no elements")
def concatenation_of_nothing() -> object:
    b = Builder()
    x, y = b.input(4, 0), b.input(4, 0)
    return trace(b.graph(b.op("cat.default", (x, y), 1, shape=(4, 0))))


@case("empty", "n1 reduces an empty tensor")
def sum_of_nothing() -> object:
    b = Builder()
    total = b.op("sum.dim_IntList", b.input(4, 0), (1,), shape=(4,))
    return schedule(b.graph(total), NATURAL)


@case("empty", "n4 reduces an empty tensor")
def sum_of_nothing_of_a_row() -> object:
    """The row has an axis of length 1, which is no axis of the kernel; of it nothing is summed."""
    b = Builder()
    double = b.op("mul.Tensor", b.input(8, 1, 8), 2, shape=(8, 1, 8))
    row = b.op("select.int", double, 0, 2, shape=(1, 8))
    nothing = b.op("slice.Tensor", row, 0, 1, 1, shape=(0, 8))
    return schedule(b.graph(b.op("sum.dim_IntList", nothing, (), shape=())), NATURAL)


@case("constant", "n0 is filled with Ref(node=7)")
def filled_with_a_tensor() -> object:
    b = Builder()
    full = b.op("full.default", (4,), 0.5, shape=(4,))
    graph = b.graph(full)
    args = (graph.nodes[0].args[0], Ref(7))
    object.__setattr__(graph.nodes[0], "args", args)
    return trace(graph)


@case("concat", "n2 has an operand of another rank")
def concatenation_of_two_ranks() -> object:
    b = Builder()
    parts = (b.input(4, 6), b.input(0))
    return trace(b.graph(b.op("cat.default", parts, 0, shape=(4, 6))))


@case("transposed", "n0 is used together with its transpose")
def computed_value_with_its_own_transpose() -> object:
    b = Builder()
    x = b.op("sum.dim_IntList", b.input(8, 8, 4), (2,), shape=(8, 8))
    turned = b.op("permute.default", x, (1, 0))
    graph = b.graph(b.op("add.Tensor", x, turned))
    return schedule(graph, NATURAL)


# --- factors -----------------------------------------------------------------------------------


@case("factor", "two dimensions that meet have different sizes")
def different_sizes() -> object:
    factors = FactorSpace()
    return factors.unify(factors.fresh(4), factors.fresh(4) + factors.fresh(2))


@case("empty", "reshape to (5, 2) of no elements")
def reshape_of_nothing() -> object:
    factors = FactorSpace()
    return factors.regroup((*factors.fresh(5), *factors.fresh(0)), (5, 2))


@case("factor", "reshape to (4, 8) runs out of elements")
def reshape_to_more_elements() -> object:
    factors = FactorSpace()
    return factors.regroup(factors.fresh(8), (4, 8))


@case("factor", "reshape to (3, 4) cuts an axis of 6 at 4")
def reshape_across_an_axis() -> object:
    b = Builder()
    y = b.op("exp.default", b.input(2, 6))
    return schedule(b.graph(b.op("view.default", y, (3, 4), shape=(3, 4))), NATURAL)


@case("factor", "an axis of 6 does not split into parts of 4")
def views_that_split_one_axis_in_two_ways() -> object:
    factors = FactorSpace()
    whole = factors.fresh(6)
    return factors.unify(whole, factors.fresh(3) + factors.fresh(4))


# --- convolutions ---


def convolution(b: Builder, channels: int, size: int, kernel: int, groups: int, **how: int) -> Ref:
    """Of 8 channels of an image with so many rows and columns."""
    x, w = b.input(1, channels, size, size), b.input(groups, channels // groups, kernel, kernel)
    padding, dilation = how.get("padding", 0), how.get("dilation", 1)
    result = size + 2 * padding - dilation * (kernel - 1)
    twice = ((1, 1), (padding,) * 2, (dilation,) * 2)
    arguments = (x, w, None, *twice, False, (0, 0), groups)
    return b.op("convolution.default", *arguments, shape=(1, groups, result, result))


@case("opaque", "n2 sums over several channels")
def convolution_of_two_channels_each() -> object:
    b = Builder()
    return trace(b.graph(convolution(b, 8, 6, 3, groups=4)))


@case("size", "n2 has more than 128 taps")
def convolution_with_a_large_filter() -> object:
    b = Builder()
    return trace(b.graph(convolution(b, 4, 14, 12, groups=4)))


@case("opaque", "n2 sees nothing but padding")
def convolution_of_nothing_but_padding() -> object:
    b = Builder()
    return trace(b.graph(convolution(b, 4, 1, 2, groups=4, padding=1, dilation=2)))


@case("split", "a result is stored in parts")
def a_split_beside_an_unrolled_axis() -> object:
    b = Builder()
    found = convolution(b, 4096, 10, 3, groups=4096)
    total = b.op("sum.dim_IntList", found, (1,), True, shape=(1, 1, 8, 8))
    return schedule_group(b.graph(b.op("add.Tensor", found, total)), Layout("natural", "held", 4))


@case("loop", "an unrolled axis is summed over")
def an_unrolled_axis_that_is_summed_over() -> object:
    b = Builder()
    values = trace(b.graph(b.op("sum.dim_IntList", b.input(4, 8), (1,), shape=(4,))))
    (fold,) = (v.kind for v in values.values if isinstance(v.kind, Fold))
    return unrolled(values, fold.reduced[0], 2)


@case("factor", "an unrolled axis lies inside of a dimension")
def an_unrolled_axis_with_another_inside() -> object:
    b = Builder()
    whole = b.op("view.default", b.op("exp.default", b.input(4, 8)), (32,), shape=(32,))
    values = trace(b.graph(whole))
    (outer, _) = values.outputs[0].dims[0]
    return unrolled(values, outer, 2)
