"""Reads of the kernels of an overlapping plan before they wait for the kernel before them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch
from fusionplan.bundles import making
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import KernelSource, Program
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import Plan
from fusionplan.planner.runtime.execution.executor import Executor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


@dataclass
class Loaded:
    """A kernel that nothing launches."""

    source: KernelSource
    device: torch.device
    takes_tensors: bool = True

    def aligned(self, *given: object) -> None:
        raise AssertionError("nothing runs here")

    unaligned = aligned


def step(x, p, w):
    """Two kernels around a write into a column of p: the first reads x and p, the second
    w, p as it is then, and what the first and a sum have made."""
    h = torch.relu(x * p)
    p[:, 0].add_(1.0)
    total = h.digamma()
    return (total * w * p).sum(1)


def graph_of(function) -> Captured:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(torch.empty(64, 256)) for _ in range(3)]
        return capture(make_fx(lambda *x: [function(*x)])(*fakes))


@pytest.fixture(scope="module")
def given() -> Captured:
    return graph_of(step)


def sources(given: Captured, **options: object) -> tuple[list[KernelSource], Plan]:
    plan = replace(modelled_plan(given.graph, builtin("h200")), overlaps=True)
    texts = lambda part, config, interpreted, **more: lower(part, config, **more)  # noqa: E731
    executor = Executor(given, plan, torch.device("cpu"), lower=texts, load=Loaded, **options)
    return [launcher.source for launcher in executor.launchers], plan


def early(source: KernelSource) -> set[str]:
    """The names of the tensors that the text loads before its wait."""
    before, after = re.split(r"^.*gdc_wait.*$", source.text, flags=re.MULTILINE)
    found = {
        line.rpartition("# ")[2].split()[0] for line in before.splitlines() if "tl.load" in line
    }
    assert "tl.load" in after or found
    return found


def test_a_parameter_that_the_step_updates_is_never_read_early(given) -> None:
    first, second = sources(given)[0]
    assert early(first) == {"arg0_1"}
    assert early(second) == {"arg2_1"}
    assert "arg1_1" in first.text
    assert "arg1_1" in second.text


def test_the_first_kernel_of_a_call_begins_when_all_before_has_ended(given) -> None:
    assert [source.dependent for source in sources(given)[0]] == [False, True]


def test_within_another_executor_nothing_is_read_early(given) -> None:
    """There its inputs may be what the kernel before writes."""
    found, _ = sources(given, within=True)
    assert [early(source) for source in found] == [set(), set()]
    assert [source.dependent for source in found] == [True, True]


def test_a_plan_without_overlaps_keeps_its_texts(given) -> None:
    plan = modelled_plan(given.graph, builtin("h200"))
    texts = lambda part, config, interpreted, **more: lower(part, config, **more)  # noqa: E731
    executor = Executor(given, plan, torch.device("cpu"), lower=texts, load=Loaded)
    assert [early(launcher.source) for launcher in executor.launchers] == [set(), set()]


def test_a_bundle_has_the_texts_that_run(given) -> None:
    found, plan = sources(given)
    assert [s.text for s in making.kernels(given.graph, plan)] == [s.text for s in found]


def test_weights_side_by_side_are_read_early_by_rows_with_ends() -> None:
    """The mask of a row that ends within its block stands before the first load that needs it."""
    x, *weights = (torch.empty(n, 96, dtype=torch.bfloat16) for n in (1, 512, 512))

    def function(x, a, b):
        return [x @ torch.cat([a, b]).t()]

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (x, *weights)]
        graph = capture(make_fx(function)(*fakes)).graph
    config = Config((("x0", 4),), num_warps=4, num_stages=1)
    program = lower(graph, config, unwritten=frozenset((1, 2)))
    (kernel,) = program.kernels
    lines = [*map(str.strip, kernel.text.splitlines())]
    (masked,) = (i for i, line in enumerate(lines) if "tl.load(tl.where(" in line)
    (given,) = (i for i, line in enumerate(lines) if line.startswith("r0_in = "))
    (wait,) = (i for i, line in enumerate(lines) if "gdc_wait" in line)
    assert "r0_in" in lines[masked]
    assert given < masked < wait


def test_small_loads_stand_together_behind_the_wait() -> None:
    """A product's second matrix stays behind them: in registers together with the first it would
    leave room for fewer programs."""
    x, w, v, r = (
        torch.empty(n, c, dtype=torch.bfloat16)
        for n, c in ((1, 2048), (512, 2048), (512, 2048), (1, 512))
    )

    def function(x, w, v, r):
        return [(x @ w.t()) * (x @ v.t()) + r]

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (x, w, v, r)]
        graph = capture(make_fx(function)(*fakes)).graph
    config = Config((("x0", 4),), num_warps=4, num_stages=1)
    (kernel,) = lower(graph, config, unwritten=frozenset((1,))).kernels
    before, after = kernel.text.split("tl.debug_barrier()")
    early, together = (part.count("tl.load(") for part in before.split("tl.extra.cuda.gdc_wait()"))
    assert (early, together, after.count("tl.load(")) == (1, 2, 1)
    assert "tl.load(in2" in after
    (other,) = lower(graph, config).kernels
    assert "debug_barrier" not in other.text


def test_loads_of_a_kernel_without_a_sum_stay_where_they_are() -> None:
    x, y, z = (torch.empty(4096, dtype=torch.bfloat16) for _ in range(3))

    def function(x, y, z):
        return [(x + y) * z]

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (x, y, z)]
        graph = capture(make_fx(function)(*fakes)).graph
    config = Config((("x0", 512),), num_warps=4, num_stages=1)
    (kernel,) = lower(graph, config, unwritten=frozenset((2,))).kernels
    early, late = kernel.text.split("tl.extra.cuda.gdc_wait()")
    assert (early.count("tl.load("), late.count("tl.load(")) == (1, 2)
    assert "debug_barrier" not in late


@pytest.mark.parametrize("columns, early", [(1152, 3), (2048, 2)])
def test_what_blocks_hold_beyond_the_ends_of_rows_is_not_read_early(columns, early) -> None:
    """Of three matrices all are read before the wait where their rows end within blocks of 2,048,
    two where rows are as long as the blocks."""
    x, *weights = (torch.empty(n, columns, dtype=torch.bfloat16) for n in (1, 512, 512, 512))

    def function(x, a, b, c):
        return [(x @ a.t()) * (x @ b.t()) * (x @ c.t())]

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (x, *weights)]
        graph = capture(make_fx(function)(*fakes)).graph
    config = Config((("x0", 4),), num_warps=4, num_stages=1)
    (kernel,) = lower(graph, config, unwritten=frozenset((1, 2, 3))).kernels
    before, after = kernel.text.split("tl.extra.cuda.gdc_wait()")
    assert (before.count("tl.load("), after.count("tl.load(")) == (early, 4 - early)


def gated(x, weight, gate, up):
    """Two matrices by one row that a kernel before has written."""
    y = x * weight
    return [torch.relu(y @ gate.to(y.dtype).t()) * (y @ up.to(y.dtype).t())]


@pytest.mark.parametrize("dtype, rows, wanted", [(torch.int8, 8, 2), (torch.bfloat16, 4, 1)])
def test_of_single_bytes_more_is_read_early(dtype: torch.dtype, rows: int, wanted: int) -> None:
    """Both matrices take 256 bytes of a thread, and the weight of the row some more."""
    shapes = [(1, 2048), (2048,), (64, 2048), (64, 2048)]
    types = [torch.bfloat16, torch.bfloat16, dtype, dtype]
    with FakeTensorMode() as mode:
        empty = [torch.empty(s, dtype=t) for s, t in zip(shapes, types, strict=True)]
        fakes = [mode.from_tensor(each) for each in empty]
        graph = capture(make_fx(gated, decomposition_table=decompositions())(*fakes)).graph
    whole = subgraph(graph, with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)]))
    config = Config((("x0", rows),), num_warps=4, num_stages=1)
    found = lower(whole.graph, config, unwritten=frozenset({1, 2, 3}))
    assert isinstance(found, Program)
    early, _ = found.kernels[0].text.split("gdc_wait")
    assert len(re.findall(r"tl\.load\(in\d \+ \(x0\[", early)) == wanted
