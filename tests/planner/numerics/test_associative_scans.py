"""Scans by functions of the user's against eager and float64, held whole and walked in a loop, in
Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.config import LOOP, NATURAL, Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.linear_forms import Role
from oracle import captured, check, whole_group
from test_numerics import configs, data
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.dynamo


def text_of(function, count: int, dtype: torch.dtype = torch.float32) -> str:
    """A function of two elements of each of `count` values, as a scan names it."""
    with FakeTensorMode():
        elements = [torch.empty((), dtype=dtype) for _ in range(2 * count)]
        traced = make_fx(function, decomposition_table=decompositions())(*elements)
        return str(capture(traced).graph)


def recurrence(a, h, b, k):
    """h = a * h + k, of which two steps are one."""
    return [a * b, b * h + k]


def largest(x, i, y, j):
    """The maximum so far and its place."""
    later = y >= x
    return [torch.where(later, y, x), torch.where(later, j, i)]


def product_of_matrices(a, b, c, d, e, f, g, h):
    """Of 2 x 2, which do not commute."""
    return [e * a + f * c, e * b + f * d, g * a + h * c, g * b + h * d]


def scan(xs, text: str, item: int):
    return torch.ops.fusionplan.associative_scan.default(list(xs), text, item)


def verify(function, inputs, sizes=(1, 8)) -> None:
    """All is one kernel, held, and in loops of several turns."""
    group = whole_group(captured(function, inputs)[0].graph).graph
    chosen = [c for c in configs(function, inputs) if c.layout == NATURAL]
    assert chosen
    found = schedule_group(group, LOOP)
    assert not isinstance(found, Refusal), found
    nest = found.kernels[0].nest
    for size in sizes:
        blocks = ((a.name, size if a.role is Role.LOOP else 4) for a in nest.axes)
        chosen.append(Config(tuple(blocks), num_warps=1, tiling="natural", reduction="loop"))
    assert check(function, inputs, chosen) >= len(chosen)


def steps(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [data(rows, columns, dtype=dtype).sigmoid(), data(rows, columns, dtype=dtype, seed=1)]


LINEAR = text_of(recurrence, 2)

CASES = {
    "down": lambda a, k: scan([a, k], LINEAR, 1) * 2,
    "along": lambda a, k: scan([a.t(), k.t()], LINEAR, 1).t() + k,
    "both results": lambda a, k: scan([a, k], LINEAR, 0) + scan([a, k], LINEAR, 1),
    "from the end": lambda a, k: scan([a.flip(0), k.flip(0)], LINEAR, 1).flip(0) * a,
    "of what is computed": lambda a, k: scan([a * 0.5, torch.exp(k)], LINEAR, 1),
    "then summed": lambda a, k: (scan([a.t(), k.t()], LINEAR, 1).t() * k).sum(-1),
}


@pytest.mark.parametrize("columns", [13, 16])
@pytest.mark.parametrize("name", CASES)
def test_a_recurrence(name: str, columns: int) -> None:
    verify(CASES[name], steps(columns, 5) if "along" not in name else steps(5, columns))


def test_a_recurrence_of_16_bits() -> None:
    text = text_of(recurrence, 2, torch.bfloat16)
    verify(lambda a, k: scan([a, k], text, 1) * 2, steps(13, 5, torch.bfloat16))


def test_values_of_other_types_go_along() -> None:
    """Nothing is neutral here, so that places beyond the end must not count."""
    with FakeTensorMode():
        one = [torch.empty(()), torch.empty((), dtype=torch.int32)] * 2
        text = str(capture(make_fx(largest, decomposition_table=decompositions())(*one)).graph)
    places = torch.arange(13, dtype=torch.int32).repeat_interleave(5).view(13, 5)
    verify(lambda x, i: scan([x - 9, i], text, 1) + 1, [data(13, 5), places])
    verify(lambda x, i: scan([(x - 9).flip(0), i], text, 1).flip(0) + 1, [data(13, 5), places])


def test_what_does_not_commute_keeps_its_order() -> None:
    text = text_of(product_of_matrices, 4)

    def function(a, b, c, d):
        return scan([a, b, c, d], text, 1) - scan([a, b, c, d], text, 2)

    verify(function, [data(11, 3, seed=i) for i in range(4)])


def test_rows_that_begin_anywhere() -> None:
    """What lies before and behind a row in its windows of whole vectors takes no part."""
    dtype = torch.bfloat16
    text = text_of(recurrence, 2, dtype)

    def function(a, k):
        return scan([a.t(), k.t()], text, 1).t() * k

    inputs = steps(3, 37, dtype)
    group = whole_group(captured(function, inputs)[0].graph).graph
    chosen = [
        Config((("r0", n), ("x0", 1)), num_warps=1, tiling="natural", reduction=reduction)
        for n, reduction in ((64, "held"), (16, "loop"))
    ]
    for config in chosen:
        program = lower(group, config, interpreted=True)
        assert not isinstance(program, Refusal), program
        assert ["r0_skip" in kernel.text for kernel in program.kernels] == [True]
    assert check(function, inputs, chosen) == len(chosen)


# --- from the graph of torch ---


def graph_of(function, inputs) -> Graph:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        traced = make_fx(function, decomposition_table=decompositions())(*fakes)
    return capture(rewritten(traced, "inference")).graph


def test_the_operator_of_torch_is_one_operation_for_each_result() -> None:
    def function(a, k):
        _, states = associative_scan_op(recurrence, [a, k], ())
        return [states * 2]

    graph = graph_of(function, steps(8, 4))
    assert [n.op for n in graph.nodes][2:] == [
        "fusionplan.associative_scan.default",
        "aten.mul.Tensor",
    ]
    (scanned,) = (n for n in graph.nodes if n.op.startswith("fusionplan"))
    assert scanned.args[1:] == (LINEAR, 1)
    assert not isinstance(schedule_group(whole_group(graph).graph, NATURAL), Refusal)
    assert parse(str(graph)).nodes[2].args == scanned.args


def test_a_function_that_no_kernel_has_stays_with_torch() -> None:
    def function(x):
        return list(associative_scan_op(lambda a, b: [torch.digamma(a + b)], [x], ()))

    graph = graph_of(function, [data(8, 4)])
    assert any(n.op == "higher_order.associative_scan" for n in graph.nodes)
