"""Convolutions with what follows them as one call, on a weight that is scaled in each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import best_cover, cover_s, modelled_plan, replaced
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.lowerings.registry import FOLDED
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.regions.chunks import Walk
from fusionplan.planner.regions.fold_convolutions import folded
from fusionplan.planner.regions.regions import regions
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from oracle import each_graph
from torch import nn

pytestmark = pytest.mark.dynamo

BF16 = torch.bfloat16
CPU = torch.device("cpu")


class Block(nn.Module):
    """A convolution with bias or batch norm, with another image added, cut off at 0."""

    def __init__(self, *, channels=16, norm=True, bias=False, stride=1, groups=1, taps=3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(channels, channels, taps, stride, taps // 2, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        for name, value in self.norm.named_buffers():
            if value.is_floating_point():
                value.uniform_(0.5, 2.0) if name == "running_var" else value.normal_()
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)
        self.eval()
        self.to(BF16)

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(self.conv(x))
        return torch.relu(y if added is None else y + added)


def image(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    made = torch.randn(*shape, generator=generator).to(BF16)
    return made.to(memory_format=torch.channels_last)


def captured(
    module: nn.Module, inputs: Sequence[torch.Tensor]
) -> tuple[Captured, list[torch.Tensor]]:
    with torch.no_grad():
        (found,) = each_graph(module, inputs, lambda gm, _: capture(rewritten(gm, "inference")))
    return found


def plan_of(graph: Graph) -> tuple[Plan, GroupPlan]:
    """The model's plan with the convolution's region folded, whatever the model says."""
    groups = best_cover(graph, H200)
    (region,) = regions(graph, groups)
    part = GroupContent.of(graph, region)
    (options,) = FOLDED.options(part.group)
    walk = FOLDED.walk(part.group, options)
    assert isinstance(walk, Walk)
    bodies = tuple(modelled_plan(body, H200) for body in walk.bodies)
    group = GroupPlan(region, "folded", part.key, options=options, bodies=bodies)
    plan = modelled_plan(graph, H200)
    return replace(plan, groups=tuple(replaced(plan.groups, group))), group


@pytest.mark.parametrize(
    "block, more",
    [
        (Block(), 0),
        (Block(bias=True), 0),
        (Block(stride=2), 0),
        (Block(taps=5), 0),
        (Block(), 1),
        (Block(norm=False, bias=True), 0),
    ],
)
def test_a_convolution_and_what_follows_it_is_one_call(block: Block, more: int) -> None:
    inputs = [image(2, 16, 11, 9) for _ in range(1 + more)]
    whole, given = captured(block, inputs)
    plan, group = plan_of(whole.graph)
    assert [g.lowering for g in plan.groups] == ["folded"]
    assert Plan.from_json(plan.to_json()) == plan
    walk = FOLDED.walk(GroupContent.of(whole.graph, group.nodes).group, group.options)
    assert isinstance(walk, Walk)
    # A bias of another type than the image's would be read as one of that type.
    call = walk.bodies[0].nodes[-1]
    assert {walk.bodies[0].nodes[i].type.dtype for i in call.inputs} == {"bfloat16"}
    executor = Executor(whole, plan, CPU)
    ours = executor(*given)
    assert executor.kernels_per_call == len(group.bodies[0].groups) <= 1
    assert ours[0].stride() == whole.gm(*given)[0].stride()
    assert check(expected(whole.graph, given, CPU), ours, "these") is None


def test_the_scale_is_read_anew_in_each_call() -> None:
    block = Block()
    whole, given = captured(block, [image(2, 16, 8, 8)])
    executor = Executor(whole, plan_of(whole.graph)[0], CPU)
    before = executor(*given)[0]
    with torch.no_grad():
        for tensor in given:
            if tensor.dim() == 1:
                tensor.mul_(1.5)
    after = executor(*given)
    assert not torch.equal(before, after[0])
    assert check(expected(whole.graph, given, CPU), after, "changed") is None


class Twice(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.relu(self.norm(y)) * y


class Smooth(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.norm(self.conv(x)))


class Late(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x) + x))


class Behind(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))) + x


@pytest.mark.parametrize(
    "block",
    [Twice(), Smooth(), Late(), Behind(), Block(channels=12), Block(groups=2), Block(norm=False)],
)
def test_what_the_call_does_not_compute_is_refused(block: Block) -> None:
    channels = block.conv.in_channels
    whole, _ = captured(block, [image(2, channels, 8, 8)])
    graph = whole.graph
    for region in regions(graph, best_cover(graph, H200)):
        assert not FOLDED.options(GroupContent.of(graph, region).group)


def test_a_weight_is_not_rounded_again_where_roundings_are_those_of_eager() -> None:
    whole, _ = captured(Block(), [image(2, 16, 8, 8)])
    (region,) = regions(whole.graph, best_cover(whole.graph, H200))
    group = GroupContent.of(whole.graph, region).group
    assert isinstance(folded(group, scaled=True), Walk)
    assert isinstance(folded(group, scaled=False), Refusal)
    assert isinstance(folded(replace(group, numerics="eager"), scaled=True), Refusal)


@pytest.mark.parametrize("norm", [True, False])
def test_the_model_folds_what_needs_no_judge(norm: bool) -> None:
    """A scaled weight is rounded again, and only the gate says whether that is good enough."""
    block = Block(channels=128, norm=norm, bias=not norm)
    whole, _ = captured(block, [image(16, 128, 28, 28)])
    plan = modelled_plan(whole.graph, H200)
    assert [g.lowering for g in plan.groups].count("folded") == (not norm)
    (region,) = regions(whole.graph, best_cover(whole.graph, H200))
    way = FOLDED.modelled(GroupContent.of(whole.graph, region), H200, cover_s)
    assert way is not None
    assert way.is_judged == norm
