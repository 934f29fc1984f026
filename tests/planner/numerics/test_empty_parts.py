"""Programs of attention whose keys all lie beyond a position in a tensor: they end at once."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.planner.tiles.instructions import EndEmpty, TileLoad, Wait
from fusionplan.planner.tiles.program import TileProgram
from fusionplan.planner.tiles.tile import Around, tile
from fusionplan.planner.tiles.verify import verify
from torch.fx.experimental.proxy_tensor import make_fx

BATCH, HEADS, SHARED, LENGTH, SIZE = 2, 4, 2, 1024, 16
PARTS, PART = 8, 128
Mask = Callable[[torch.Tensor], torch.Tensor]

MASKS: dict[str, Mask] = {
    "one position": lambda at: (torch.arange(LENGTH) <= at[:1])[None, None, None],
    "of each sequence": lambda at: (torch.arange(LENGTH) <= at[:, None])[:, None, None],
    "window": lambda at: ((torch.arange(LENGTH) <= at[:1]) & (torch.arange(LENGTH) > at[:1] - 40))[
        None, None, None
    ],
}


def _attention(mask: Mask) -> Callable[..., list[torch.Tensor]]:
    def function(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor
    ) -> list[torch.Tensor]:
        rows = q.view(len(q), SHARED, HEADS // SHARED, SIZE)
        scores = torch.matmul(rows, k.transpose(-1, -2)) * SIZE**-0.5
        scores = scores.masked_fill(~mask(at), -torch.inf)
        weights = torch.softmax(scores, -1).to(v.dtype)
        return [torch.matmul(weights, v).view(q.shape)]

    return function


def _given() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(BATCH, HEADS, 1, SIZE), *[(BATCH, SHARED, LENGTH, SIZE)] * 2]
    return [torch.randn(s, generator=generator).bfloat16() for s in shapes]


def _captured(mask: Mask) -> Captured:
    inputs = [*_given(), torch.tensor([0] * BATCH)]
    with torch.no_grad():
        table = decompositions()
        traced = make_fx(_attention(mask), decomposition_table=table, tracing_mode="fake")
        return capture(traced(*inputs))


def _group(captured: Captured, keys: int = PART, sequences: int = 1) -> GroupPlan:
    """All of the attention, the keys in parts over the grid. sequences: in one program."""
    graph = captured.graph
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    config = Config((), 4, num_stages=1, access="pointer", reduction="loop", split=PARTS)
    found = schedule_group(subgraph(graph, nodes).graph, config.layout)
    assert not isinstance(found, Refusal)
    sizes = {"r0": keys}
    for kernel in found.kernels:
        grid = [kernel.nest.axes[a] for a in kernel.nest.with_role(Role.GRID)]
        sizes |= {axis.name: 1 for axis in grid} | {grid[-1].name: 16}
    blocks = tuple(sorted({**sizes, "x0": sequences}.items()))
    return GroupPlan(nodes, "triton", "", replace(config, blocks=blocks))


def _program(captured: Captured, group: GroupPlan, early: Collection[str] = ("in",)) -> TileProgram:
    """The first kernel. early: what may be read before the wait."""
    assert group.config is not None
    found = schedule_group(subgraph(captured.graph, group.nodes).graph, group.config.layout)
    assert not isinstance(found, Refusal)
    kernel = found.kernels[0]
    own = frozenset(number for number, source in kernel.inputs if source.kind in early)
    program = tile(kernel.nest, group.config, Around(unwritten=own))
    verify(program)
    return program


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("early", [True, False])
def test_programs_end_before_all_loads_but_that_of_the_position(name: str, early: bool) -> None:
    """Behind the wait where that is. Parts that are left empty at both ends store what a loop
    begins with; others nobody reads."""
    captured = _captured(MASKS[name])
    program = _program(captured, _group(captured), ("in",) if early else ())
    places = [i for i, each in enumerate(program.head) if isinstance(each, EndEmpty)]
    (place,) = places
    end, before = program.head[place], program.head[:place]
    assert isinstance(end, EndEmpty)
    stores = name == "window"
    assert end.waits == (early and stores)
    assert (Wait() in before) != early
    given = {value for limit in end.limits for value, _ in limit.values}
    assert {each.value for each in before if isinstance(each, TileLoad)} == given
    assert len(end.limits) == (2 if name == "window" else 1)
    lines = str(program).splitlines()
    along = "x2" if name == "of each sequence" else "x1"
    (line,) = (i for i, each in enumerate(lines) if each.startswith("end where"))
    waited = ", having waited" * end.waits
    text = f"end where masks leave nothing of r0, but the first along {along}{waited}, storing:"
    stored = [f"  store output {i} <- v{program.nest.outputs[i].value}" for i in range(3)]
    assert lines[line : line + 4] == [text, *stored] if stores else lines[line] == text


def test_no_parts_are_read_but_those_before_the_position() -> None:
    captured = _captured(MASKS["of each sequence"])
    group = _group(captured)
    assert group.config is not None
    found = schedule_group(subgraph(captured.graph, group.nodes).graph, group.config.layout)
    assert not isinstance(found, Refusal)
    program = tile(found.kernels[1].nest, group.config)
    verify(program)
    loads = [each for each, _ in program.walk() if isinstance(each, TileLoad)]
    assert [each.chosen is not None for each in loads] == [False, True, True, True]
    assert ", where v" in str(program)
    text = lower(subgraph(captured.graph, group.nodes).graph, group.config)
    assert isinstance(text, Program)
    assert text.kernels[1].text.count("mask=v") == 3


def test_programs_without_a_part_of_their_own_go_on() -> None:
    """Persistent ones, those of one part, and those whose mask has no position of a tensor."""
    captured = _captured(MASKS["one position"])
    group = _group(captured)
    assert group.config is not None
    fixed = _captured(lambda _: (torch.arange(LENGTH) <= 300)[None, None, None])
    whole = replace(group.config, split=1)
    for other, own in (
        (captured, replace(group, config=replace(group.config, programs=8))),
        (
            captured,
            replace(group, config=replace(whole, blocks=(("r0", PART), ("x0", 1), ("x1", 16)))),
        ),
        (fixed, _group(fixed)),
    ):
        assert not any(isinstance(each, EndEmpty) for each in _program(other, own).head)


def _without_stores(end: EndEmpty) -> EndEmpty:
    return replace(end, stores=end.stores[1:])


def _with_another_wait(end: EndEmpty) -> EndEmpty:
    return replace(end, waits=not end.waits)


@pytest.mark.parametrize(
    "broken, message",
    [
        (_without_stores, "not what its loop carries"),
        (_with_another_wait, "without a wait, or waits twice"),
        (lambda end: replace(end, limits=(replace(end.limits[0], values=((99, -1),)),)), "v99"),
    ],
)
def test_programs_that_end_otherwise_cannot_be(
    broken: Callable[[EndEmpty], EndEmpty], message: str
) -> None:
    captured = _captured(MASKS["window"])
    program = _program(captured, _group(captured))
    head = tuple(broken(e) if isinstance(e, EndEmpty) else e for e in program.head)
    with pytest.raises(ValueError, match=message):
        verify(replace(program, head=head))


EDGES = [0, PART - 1, PART, 3 * PART + 5, LENGTH - 1]


@pytest.mark.interpreter
@pytest.mark.parametrize("keys, sequences", [(PART, 1), (PART // 4, 1), (PART, 2)])
@pytest.mark.parametrize("name", MASKS)
def test_the_sums_are_those_of_all_keys(
    name: str, keys: int, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the edges of parts and of the cache, for sequences of unequal lengths. Scores far below 0
    tell a part without a key from one whose scores are 0."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    captured = _captured(MASKS[name])
    run = _executor(captured, _group(captured, keys, sequences))
    for first, second in zip(EDGES, reversed(EDGES), strict=True):
        q, k, v = _given()
        q, k = (q.abs() * 96, -k.abs()) if first in EDGES[1::2] else (q, k)
        at = torch.tensor([first, second])
        wide = _attention(MASKS[name])(q.double(), k.double(), v.double(), at)[0]
        (found,) = run(q, k, v, at)
        assert (found.double() - wide).abs().max() <= 2**-7 * wide.abs().max()


def _executor(captured: Captured, group: GroupPlan) -> Executor:
    plan = Plan(key(captured.graph), H200.key, (), "modelled", (group,), overlaps=True)

    def lowered(graph: Graph, config: Config, **more: Any) -> Program | Refusal:
        return lower(graph, config, **{**more, "unwritten": frozenset(range(4))})

    run = Executor(captured, plan, captured.device, lower=lowered)
    assert run.kernels_per_call == 2
    assert "masks leave nothing" in run.launchers[0].source.text
    return run


@pytest.mark.interpreter
def test_rows_without_a_key_are_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN where -inf stands in all scores; the first part goes on, whatever the position is."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    mask = MASKS["of each sequence"]
    captured = _captured(mask)
    run = _executor(captured, _group(captured))
    q, k, v = _given()
    for positions in ([-1, 5], [-1, -LENGTH - 7]):
        at = torch.tensor(positions)
        (eager,) = _attention(mask)(q, k, v, at)
        (found,) = run(q, k, v, at)
        assert eager[0].isnan().all()
        torch.testing.assert_close(found, eager, rtol=2**-7, atol=2**-7, equal_nan=True)
