"""Attention of one query for each sequence: keys in parts over the grid, masks that leave some of
the parts empty."""

import math
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from fusionplan.planner.capture.attention_calls import attention
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config, Layout, ReductionLayout
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import GroupContent, Subgraph, subgraph, with_free_nodes
from fusionplan.planner.groups.unwritten import places
from fusionplan.planner.lower import lower
from fusionplan.planner.lowerings.triton import space_for
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.runtime.execution.overlapping import overlapping
from fusionplan.planner.space.space import Space
from fusionplan.planner.tiles.instructions import FirstBlock, Wait
from fusionplan.planner.tiles.passes import load_before_wait, load_together
from fusionplan.planner.tiles.tile import Around, tile
from fusionplan.planner.tiles.verify import verify
from torch.fx.experimental.proxy_tensor import make_fx

BATCH, HEADS, SHARED, LENGTH, SIZE = 1, 8, 2, 2048, 64
"""SHARED: heads of keys."""


def given(batch: int = BATCH, length: int = LENGTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(batch, HEADS, 1, SIZE), *[(batch, SHARED, length, SIZE)] * 2]
    return [torch.randn(s, generator=generator).bfloat16() for s in shapes]


def masks() -> dict[str, Callable[[torch.Tensor], torch.Tensor | None]]:
    places = torch.arange(LENGTH)
    return {
        "none": lambda _: None,
        "position": lambda position: (places <= position)[None, None, None],
        "row of two dimensions": lambda position: (places <= position)[None],
        "window": lambda position: ((places <= position) & (places > position - 9))[None],
        "added": lambda position: torch.where(places <= position, 0.0, -math.inf).bfloat16()[None],
        "heads": lambda position: (places[None] <= position + torch.arange(HEADS)[:, None] % 2)[
            None, :, None
        ],
    }


@pytest.mark.parametrize("name", masks())
def test_the_formula_is_that_of_the_call(name: str) -> None:
    q, k, v = given()
    for position in (0, 700, LENGTH - 1):
        mask = masks()[name](torch.tensor([position]))
        found = attention(q, k, v, mask, enable_gqa=True)
        wide = None if mask is None or mask.dtype == torch.bool else mask.double()
        wide = mask if wide is None else wide
        exact = F.scaled_dot_product_attention(
            *(x.double() for x in (q, k, v)), attn_mask=wide, enable_gqa=True
        )
        torchs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert found.shape == torchs.shape
        error, own = ((x.double() - exact).abs().max() for x in (found, torchs))
        assert error <= 2 * own + 2**-9


def test_two_products_without_copies_of_the_keys() -> None:
    """Heads that share their keys are rows of one product."""
    traced = _traced(lambda q, k, v: [attention(q, k, v, enable_gqa=True)], *given())
    graph = capture(traced).graph
    shapes = [n.type.shape for n in graph.nodes if n.op == "aten.bmm.default" and n.type]
    assert shapes == [(SHARED, HEADS // SHARED, LENGTH), (SHARED, HEADS // SHARED, SIZE)]


@pytest.mark.slow
def test_it_is_one_group_that_divides_the_keys() -> None:
    traced = _traced(_at_position, *given(), torch.arange(LENGTH), torch.tensor([5]))
    plan = modelled_plan(capture(traced).graph, H200)
    (group,) = plan.groups
    assert group.config is not None
    assert group.config.split > 1
    assert group.kernels == 2


@pytest.mark.slow
def test_it_is_one_group_beside_others_too() -> None:
    """No step of the search leads from its products and its softmax to one group."""

    def function(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, position: torch.Tensor
    ) -> list[torch.Tensor]:
        query = (q.reshape(1, -1) @ w).view(q.shape).mul(2)
        (read,) = _at_index(query, k, v, k, position)
        return [(read.reshape(1, -1) @ w).relu()]

    width = HEADS * SIZE
    w = torch.randn(width, width).bfloat16()
    graph = capture(_traced(function, *given(), w, torch.tensor([5]))).graph
    plan = modelled_plan(graph, H200)
    products = [n.id for n in graph.nodes if n.op == "aten.bmm.default"]
    assert len(products) == 2
    assert any({*products} <= {*group.nodes} for group in plan.groups)


LAYOUTS = [Layout("natural", "held", 64), Layout("natural", "loop", 64)]


@pytest.mark.interpreter
@pytest.mark.parametrize("safe", [True, False], ids=["of torch", "plain softmax"])
def test_parts_without_a_key_count_nothing(
    safe: bool, monkeypatch: pytest.MonkeyPatch, few_ranked: None
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    function = _at_position if safe else _plain
    inputs = [*given(), torch.arange(LENGTH), torch.tensor([0])]
    captured = capture(_traced(function, *inputs))
    graph = captured.graph
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    part = GroupContent.of(graph, nodes)
    space = space_for(part, H200)
    assert isinstance(space, Space)
    seeds = [config for config, _ in space.seeds(60)]
    for layout in LAYOUTS:
        config = next(c for c in seeds if c.layout == layout)
        group = GroupPlan(nodes, "triton", part.key, config)
        plan = Plan(key(graph), H200.key, (), "modelled", (group,))
        run = Executor(captured, plan, captured.device)
        assert run.kernels_per_call == 2
        for position in (0, 31, 32, LENGTH - 1):
            inputs[-1] = torch.tensor([position])
            (found,) = run(*inputs)
            exact = _plain(*(x.double() for x in inputs[:3]), *inputs[3:])[0]
            assert (found.double() - exact).abs().max() <= 2**-7 * exact.abs().max(), layout


def _at_position(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, position: torch.Tensor
) -> list[torch.Tensor]:
    return [attention(q, k, v, (places <= position)[None, None, None], enable_gqa=True)]


def _at_index(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: torch.Tensor, position: torch.Tensor
) -> list[torch.Tensor]:
    """The mask is made of indices: what lies beyond the position is known to be empty."""
    return [attention(q, k, v, (torch.arange(LENGTH) <= position)[None], enable_gqa=True)]


def _plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, position: torch.Tensor
) -> list[torch.Tensor]:
    """The formula as users write it."""
    rows = q.view(len(q), SHARED, HEADS // SHARED, SIZE)
    scores = torch.matmul(rows, k.transpose(-1, -2)) * SIZE**-0.5
    scores = scores.masked_fill(places > position, -math.inf)
    weights = torch.softmax(scores, -1, dtype=torch.float64 if q.dtype == torch.float64 else None)
    return [torch.matmul(weights.to(v.dtype), v).view(q.shape)]


def _traced(
    function: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor
) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)


@pytest.mark.interpreter
@pytest.mark.parametrize("split", [1, 16])
def test_keys_beyond_the_position_are_not_read(
    split: int, monkeypatch: pytest.MonkeyPatch, few_ranked: None
) -> None:
    """What lies there is NaN, which masks alone would not keep out of the sums."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    inputs = [*given(batch=4), torch.arange(LENGTH), torch.tensor([0])]
    captured = capture(_traced(_at_index, *inputs))
    graph = captured.graph
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    part = GroupContent.of(graph, nodes)
    space = space_for(part, H200)
    assert isinstance(space, Space)
    layout = Layout("natural", "loop", split)
    configs = [c for c, _ in space.ranked(4000) if c.layout == layout]
    config = min(configs, key=lambda c: c.block("r0"))
    group = GroupPlan(nodes, "triton", part.key, config)
    run = Executor(captured, Plan(key(graph), H200.key, (), "modelled", (group,)), captured.device)
    for position in (0, 31, 32, LENGTH - 1):
        q, k, v = given(batch=4)
        exact = _plain(q.double(), k.double(), v.double(), inputs[3], torch.tensor([position]))[0]
        for cache in (k, v):
            cache[:, :, (position // 64 + 1) * 64 :] = math.nan
        (found,) = run(q, k, v, inputs[3], torch.tensor([position]))
        assert (found.double() - exact).abs().max() <= 2**-7 * exact.abs().max()


def _written(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    position: torch.Tensor,
) -> list[torch.Tensor]:
    """A step: the new key and value go into the caches, and all up to them are read."""
    k.index_copy_(2, position, key * 2)
    v.index_copy_(2, position, value + 1)
    return _plain(q, k, v, torch.arange(LENGTH), position)


@pytest.mark.interpreter
def test_attention_writes_its_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of two kernels, which reads the new key from the row and not from memory."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    generator = torch.Generator().manual_seed(2)
    new = [torch.randn(1, SHARED, 1, SIZE, generator=generator).bfloat16() for _ in range(2)]

    def functional(*inputs: torch.Tensor) -> list[torch.Tensor]:
        made = torch.func.functionalize(_written, remove="mutations_and_views")
        return cast("list[torch.Tensor]", made(*inputs))

    captured = capture(_traced(functional, *given(), *new, torch.tensor([0])))
    plan = modelled_plan(captured.graph, H200)
    (group,) = plan.groups
    assert group.kernels == 2
    run = Executor(captured, plan, captured.device, updates=True)
    for position in (0, 63, 64, LENGTH - 1):
        ours, theirs = given(), given()
        at = torch.tensor([position])
        (found,) = run(*ours, *new, at)
        eager = [each.clone() for each in theirs]
        _written(*eager, *new, at)
        exact = _written(*(x.double() for x in (*theirs, *new)), at)[0]
        assert (found.double() - exact).abs().max() <= 2**-7 * exact.abs().max()
        for mine, other in zip(ours[1:], eager[1:], strict=True):
            assert mine.equal(other)


def _step() -> tuple[Captured, list[torch.Tensor]]:
    """The graph of a step that writes its key and its value, and its inputs."""

    def functional(*own: torch.Tensor) -> list[torch.Tensor]:
        made = torch.func.functionalize(_written, remove="mutations_and_views")
        return cast("list[torch.Tensor]", made(*own))

    q, keys, values = given()
    inputs = [q, keys, values, keys[:, :, :1] * 2, values[:, :, :1] * 2, torch.tensor([5])]
    return capture(_traced(functional, *inputs)), inputs


def _group(graph: Graph, keys: int, reduction: ReductionLayout = "loop") -> GroupPlan:
    """All of the step by a loop over so many keys at a time; "nested": with a loop of one block
    inside it."""
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    part = GroupContent.of(graph, nodes)
    space = space_for(part, H200)
    assert isinstance(space, Space)
    layout = Layout("natural", reduction)
    config = next(c for c in space.enumerate() if c.layout == layout)
    own = {"r0": keys, "r1": SIZE}
    blocks = tuple((name, own.get(name, size)) for name, size in config.blocks)
    config = replace(config, blocks=blocks, num_warps=4, num_stages=1, flatten=False)
    config = replace(config, access="pointer")
    return GroupPlan(nodes, "triton", part.key, config)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "keys, reduction", [(128, "loop"), (LENGTH, "loop"), (128, "nested"), (LENGTH, "nested")]
)
def test_the_first_keys_are_read_before_the_wait(
    keys: int, reduction: ReductionLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both caches the kernel writes one row itself, and no other kernel any: their first blocks
    are straight-line work, and what is left is a loop."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(load_before_wait, "_MOST_BLOCK", 1 << 16)
    monkeypatch.setattr(load_together, "_MOST", 1 << 16)
    captured, inputs = _step()
    group = _group(captured.graph, keys, reduction)
    part = subgraph(captured.graph, group.nodes)
    assert _begun(group, captured.graph, places(captured.graph, part.inputs, group.nodes))
    plan = Plan(key(captured.graph), H200.key, (), "modelled", (group,), overlaps=True)
    kept = _caches_and_position(captured.graph, part)

    def lowered(graph: Graph, config: Config, **more: Any) -> Program | Refusal:
        return lower(graph, config, **{**more, "unwritten": kept})

    run = Executor(captured, plan, captured.device, updates=True, lower=lowered)
    text = run.launchers[0].source.text
    assert ("tl.debug_barrier()" in text) == (keys == LENGTH)
    for position in (0, 200, LENGTH - 1):
        inputs[-1] = torch.tensor([position])
        ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
        (found,), (eager,) = run(*ours), _written(*theirs)
        wanted = _written(*(x.double() for x in inputs[:-1]), inputs[-1])[0]
        own = (eager.double() - wanted).abs().max()
        assert (found.double() - wanted).abs().max() <= 2 * own + 2**-9 * wanted.abs().max()
        assert all(torch.equal(a, b) for a, b in zip(ours[1:3], theirs[1:3], strict=True))


def _caches_and_position(graph: Graph, part: Subgraph) -> frozenset[int]:
    """The inputs that may be read early where a kernel before gives the query and the new rows."""
    return frozenset(part.inputs.index(graph.inputs[place]) for place in (1, 2, 5))


def _begun(group: GroupPlan, graph: Graph, unwritten: Collection[int]) -> list[tuple[int, ...]]:
    """The inputs of each first block that stands before the wait of the step's first kernel."""
    assert group.config is not None
    part = subgraph(graph, group.nodes)
    found = schedule_group(part.graph, group.config.layout)
    assert not isinstance(found, Refusal)
    kernel = found.kernels[0]
    early = {number for number, source in kernel.inputs if source.index in unwritten}
    program = tile(kernel.nest, group.config, Around(unwritten=frozenset(early)))
    verify(program)
    places = {number: source.index for number, source in kernel.inputs}
    head = program.head[: program.head.index(Wait())]
    blocks = [each for each in head if isinstance(each, FirstBlock)]
    if blocks:
        assert "first block of r0, as far as masks leave it:" in str(program).splitlines()
    return [tuple(part.inputs[places[i.input]] for i in each.loads) for each in blocks]


def test_what_is_read_early_is_written_by_no_other_kernel() -> None:
    captured, _ = _step()
    graph, group = captured.graph, _group(captured.graph, 64)
    part = subgraph(graph, group.nodes)
    caches = {graph.inputs[1], graph.inputs[2]}
    own = places(graph, part.inputs, group.nodes)
    assert _begun(group, graph, own) == [tuple(sorted(caches))]
    others = places(graph, part.inputs)
    assert _begun(group, graph, others) == []
    position = part.inputs.index(graph.inputs[5])
    assert _begun(group, graph, own - {position}) == []
    assert group.config is not None
    ahead = replace(group, config=replace(group.config, num_stages=3))
    assert _begun(ahead, graph, own) == []  # Its loads are begun ahead as it is.


@pytest.mark.slow
def test_loads_of_one_block_stand_together_behind_the_wait() -> None:
    """Before the threads first meet: a barrier is what no compiler moves a load over."""
    captured, _ = _step()
    graph = captured.graph
    (group,) = overlapping(modelled_plan(graph, H200), graph, H200, (9, 0)).groups
    assert group.config is not None
    part = subgraph(graph, group.nodes)
    own = _caches_and_position(graph, part)
    program = lower(part.graph, group.config, unwritten=own)
    assert isinstance(program, Program)
    early, rest = program.kernels[0].text.split("tl.extra.cuda.gdc_wait()")
    loads, computed = rest.split("tl.debug_barrier()")
    assert early.count("tl.load(") >= 3  # the position, keys and values
    assert loads.count("tl.load(") == 3
    assert "tl.load(" not in computed
    early, rest = program.kernels[1].text.split("tl.extra.cuda.gdc_wait()")
    assert early.count("tl.load(") == 1  # the position, by which parts are masked
    loads, computed = rest.split("max_nan(")
    assert (loads.count("tl.load("), computed.count("tl.load(")) == (3, 0)
    sizes = {**dict(group.config.blocks), "r0": 16}
    several = replace(group.config, blocks=tuple(sorted(sizes.items())))
    assert LENGTH // several.split > 16
    others = lower(part.graph, group.config), lower(part.graph, several, unwritten=own)
    for other in others:  # without launches that overlap; a loop
        assert isinstance(other, Program)
        assert "debug_barrier" not in other.kernels[0].text


@pytest.mark.slow
def test_single_warps_combine_parts_where_launches_overlap() -> None:
    """Each reads whole lines of memory; with tiles of other shapes all warps do."""
    captured, _ = _step()
    graph = captured.graph
    (group,) = overlapping(modelled_plan(graph, H200), graph, H200, (9, 0)).groups
    config, part = group.config, subgraph(graph, group.nodes)
    assert config is not None
    assert [config.block(name) for name in ("y0", "y1")] == [1, 32]
    own = _caches_and_position(graph, part)
    warps = []
    for shape, early in (((1, 32), own), ((1, 32), frozenset()), ((4, 4), own), ((2, 32), own)):
        sizes = {**dict(config.blocks), "y0": shape[0], "y1": shape[1]}
        other = replace(config, blocks=tuple(sorted(sizes.items())))
        program = lower(part.graph, other, unwritten=early)
        assert isinstance(program, Program)
        warps.append([kernel.num_warps for kernel in program.kernels])
    assert warps == [[4, 1], [4, 4], [4, 4], [4, 4]]


@pytest.mark.parametrize("columns, keys, warps", [(64, 64, 4), (128, 64, 4), (256, 64, 8)])
def test_parts_have_64_keys_and_as_many_warps_as_their_bytes_ask_for(
    columns: int, keys: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("SIZE", columns), ("HEADS", 16), ("SHARED", 8)):
        monkeypatch.setattr(sys.modules[__name__], name, size)
    captured, _ = _step()
    graph = captured.graph
    group = _group(graph, LENGTH)
    space = space_for(GroupContent.of(graph, group.nodes), H200)
    assert isinstance(space, Space)
    config = next(c for c in space.enumerate() if c.split > 1 and c.reduction == "loop")
    group = replace(group, config=config, predicted=1e-6, kernels=2)
    plan = Plan(key(graph), H200.key, (), "modelled", (group,))
    (found,) = overlapping(plan, graph, H200, (9, 0)).groups
    assert found.config is not None
    assert (found.config.block("r0"), found.config.num_warps) == (keys, warps)
    assert warps == max(4, keys * columns * 2 // (128 * 32))


@pytest.mark.slow
def test_parts_are_one_block_where_launches_overlap() -> None:
    """As long as a device begins all of them at once."""
    captured, _ = _step()
    graph = captured.graph
    plan = modelled_plan(graph, H200)
    (before,) = plan.groups
    (group,) = overlapping(plan, graph, H200, (9, 0)).groups
    assert group.config is not None
    config, own = group.config, subgraph(graph, group.nodes)
    assert (config.block("r0"), config.num_stages) == (LENGTH // config.split, 1)
    assert len(_begun(group, graph, places(graph, own.inputs, group.nodes))[0]) >= 2
    (few,) = overlapping(plan, graph, replace(H200, sm_count=4), (9, 0)).groups
    assert few.config == before.config
