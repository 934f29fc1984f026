"""Which plans that nobody measured are recorded with launches that overlap."""

from dataclasses import replace

import pytest
import torch
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.plan import Evidence, GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.overlapping import SHORT_S
from fusionplan.planner.runtime.execution.overlapping import overlapping as chosen
from torch.fx.experimental.proxy_tensor import make_fx

HOPPER, AMPERE = (9, 0), (8, 0)


def overlapping(plan: Plan, capability: tuple[int, int]) -> Plan:
    return chosen(plan, Graph((), ()), H200, capability)


def plan(seconds: float, evidence: Evidence = "modelled") -> Plan:
    config = Config((("x0", 1),))
    groups = (GroupPlan((0,), "triton", "k", config, seconds), GroupPlan((1,), "aten", "k"))
    return Plan("graph", "device", (), evidence, groups)


def test_short_kernels_of_the_model_overlap() -> None:
    assert overlapping(plan(SHORT_S / 2), HOPPER) == replace(plan(SHORT_S / 2), overlaps=True)


def test_kernels_of_one_group_count_each() -> None:
    several = plan(1.5 * SHORT_S)
    several = replace(several, groups=(replace(several.groups[0], kernels=2),))
    assert overlapping(several, HOPPER).overlaps


@pytest.mark.parametrize(
    "one, capability",
    [
        (plan(2 * SHORT_S), HOPPER),
        (plan(SHORT_S / 2), AMPERE),
        (plan(SHORT_S / 2, "measured"), HOPPER),
        (plan(SHORT_S / 2, "searched"), HOPPER),
        (replace(plan(SHORT_S / 2), groups=()), HOPPER),
    ],
    ids=["long", "older", "measured", "searched", "nothing of ours"],
)
def test_others_stay(one: Plan, capability: tuple[int, int]) -> None:
    assert overlapping(one, capability) is one


@pytest.mark.interpreter
@pytest.mark.parametrize("rows, columns, wanted", [(1, 2048, 4), (1, 8192, 2), (8, 2048, None)])
def test_one_row_is_multiplied_by_small_programs(
    rows: int, columns: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, w = torch.randn(rows, columns).bfloat16(), torch.randn(1024, columns).bfloat16()

    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [((x.float() * 2).bfloat16() @ w.t()).float().relu()]

    traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(x, w)
    captured = capture(traced)
    before = modelled_plan(captured.graph, H200)
    after = chosen(before, captured.graph, H200, HOPPER)
    if wanted is None:
        assert after == replace(before, overlaps=True)
        return
    (group,) = after.groups
    assert group.config is not None
    assert (group.config.num_warps, group.config.block("x0")) == (4, wanted)
    (found,) = Executor(captured, after, captured.device)(x, w)
    exact = (2 * x.double() @ w.double().t()).relu()
    assert (found.double() - exact).abs().max() <= 2**-6 * exact.abs().max()


def test_rows_of_any_length_are_held_by_small_programs() -> None:
    """Also where the model, of one kernel at a time, would walk along them."""
    x, w = torch.empty(1, 9216).bfloat16(), torch.empty(2304, 9216).bfloat16()
    traced = make_fx(lambda x, w: [x @ w.t()], tracing_mode="fake")(x, w)
    graph = capture(traced).graph
    before = modelled_plan(graph, H200)
    (one,), (other,) = before.groups, chosen(before, graph, H200, HOPPER).groups
    assert one.config is not None
    assert other.config is not None
    assert not one.config.layout.holds
    assert other.config == Config((("x0", 1),), num_warps=4, num_stages=1)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "bits, columns, wanted", [(8, 2048, 8), (4, 2048, 8), (8, 8192, 2), (4, 8192, 4)]
)
def test_smaller_weights_are_read_by_programs_of_more_rows(
    bits: int, columns: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes are under way, as far as registers hold them, and enough programs are left. All
    sums are in one tile."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(0)
    rows, group = 2048, 128
    x = torch.randn(1, columns).bfloat16()
    w = torch.randint(0, 256, (rows, columns * bits // 8), dtype=torch.uint8)
    s = torch.rand(rows, columns // group).bfloat16()

    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        halves = [((w >> n) & 15).to(torch.int8) - 8 for n in (0, 4)]
        whole = torch.stack(halves, -1) if bits == 4 else w.to(torch.int16) - 128
        grouped = whole.reshape(rows, -1, group).to(x.dtype) * s[..., None]
        return [(x @ grouped.reshape(rows, -1).t()).float().relu()]

    given = x, w, s
    traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*given)
    captured = capture(rewritten(traced, "inference"))
    after = chosen(modelled_plan(captured.graph, H200), captured.graph, H200, HOPPER)
    (group_plan,) = after.groups
    assert group_plan.config is not None
    assert group_plan.config == Config((("x0", wanted),), num_warps=4, num_stages=1)
    (found,) = Executor(captured, after, captured.device)(*given)
    (exact,) = function(x.double(), w, s.double())
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize(
    "normed, given, wanted",
    [
        (True, (128, 6), (256, 3)),
        (True, (128, 3), (128, 3)),
        (True, (512, 6), (512, 6)),  # All its turns are under way at once.
        (False, (128, 6), (128, 6)),
    ],
)
def test_norms_before_products_take_fewer_turns(
    normed: bool, given: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """Their sum waits for the memory in each; as many bytes are under way for the product."""
    x, g, w, v = (
        torch.empty(n, c).bfloat16() for n, c in ((8, 2048), (1, 2048), (8192, 2048), (8192, 2048))
    )

    def function(x, g, w, v):
        wide = x.float()
        if normed:
            wide = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        row = wide.bfloat16() * g
        return [(row @ w.t()).sigmoid() * (row @ v.t())]

    traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(
        x, g, w, v
    )
    graph = capture(traced).graph
    nodes = tuple(i for i in range(len(graph.nodes)) if is_compute(graph.nodes[i]))
    sizes = (("r0", given[0]), ("x0", 8), ("x1", 64 * 128 // given[0]))
    config = Config(sizes, num_warps=4, num_stages=given[1], reduction="loop", group=8)
    group = GroupPlan(nodes, "triton", key(graph), config, SHORT_S / 2)
    plan = Plan("graph", "device", (), "modelled", (group,))
    (found,) = chosen(plan, graph, H200, HOPPER).groups
    assert found.config is not None
    assert (found.config.block("r0"), found.config.num_stages) == wanted
    assert found.config.block("x1") == config.block("x1")
