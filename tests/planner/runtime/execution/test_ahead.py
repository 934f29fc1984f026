"""What reads parameters alone, as one launch before all others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from fusionplan.planner.capture.capture import Captured, capture
from fusionplan.planner.capture.rewrites.rewrite import rewritten
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan, replaced
from fusionplan.planner.groups.group import GroupContent
from fusionplan.planner.lowerings.registry import FOLDED
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.regions.chunks import Walk
from fusionplan.planner.regions.regions import regions
from fusionplan.planner.runtime.execution.executor import Executor
from fusionplan.tuner.gate.check import check
from fusionplan.tuner.gate.reference import expected
from oracle import each_graph
from torch import nn

pytestmark = [pytest.mark.dynamo, pytest.mark.interpreter]

CPU = torch.device("cpu")


def blocks(*channels: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for before, after in pairwise(channels):
        norm = nn.BatchNorm2d(after)
        norm.running_var.uniform_(0.5, 2.0)
        made += [nn.Conv2d(before, after, 3, padding=1, bias=False), norm, act()]
    return nn.Sequential(*made).eval().to(torch.bfloat16)


def captured(module: nn.Module) -> tuple[Captured, list[torch.Tensor]]:
    image = torch.randn(2, 16, 6, 5).to(torch.bfloat16)
    with torch.no_grad():
        (found,) = each_graph(module, [image], lambda gm, _: capture(rewritten(gm, "inference")))
    return found


def folded(whole: Captured) -> Plan:
    """The model's plan with every convolution that can be folded so."""
    plan = modelled_plan(whole.graph, H200)
    for region in regions(whole.graph, tuple(group.nodes for group in plan.groups)):
        part = GroupContent.of(whole.graph, region)
        for options in FOLDED.options(part.group)[:1]:
            walk = FOLDED.walk(part.group, options)
            assert isinstance(walk, Walk)
            bodies = tuple(modelled_plan(body, H200) for body in walk.bodies)
            group = GroupPlan(region, "folded", part.key, options=options, bodies=bodies)
            plan = replace(plan, groups=tuple(replaced(plan.groups, group)))
    return plan


def test_scaled_and_copied_weights_are_one_launch() -> None:
    """Four that are scaled, three of them alike, and one that is copied, as the image is."""
    whole, given = captured(
        nn.Sequential(blocks(16, 16, 16, 16, 24), blocks(24, 8, act=nn.Sigmoid))
    )
    plan = replace(folded(whole), overlaps=True)
    assert [g.lowering for g in plan.groups].count("folded") == 4
    executor = Executor(whole, plan, CPU)
    assert check(expected(whole.graph, given, CPU), executor(*given), "these") is None
    names = [launcher.source.name for launcher in executor.launchers]
    assert names[0].startswith("addresses_of_")
    assert names[1] == "ahead_6"
    assert executor.kernels_per_call == len(names) == 3, "and the last norm"
    with torch.no_grad():
        for tensor in given:
            if tensor.dim() == 1:
                tensor.mul_(1.5)
    assert check(expected(whole.graph, given, CPU), executor(*given), "changed") is None


def test_few_copies_stay_where_they_are() -> None:
    whole, given = captured(blocks(16, 16, 16, act=nn.Sigmoid))
    executor = Executor(whole, modelled_plan(whole.graph, H200), CPU)
    assert check(expected(whole.graph, given, CPU), executor(*given), "these") is None
    assert not any("ahead" in launcher.source.name for launcher in executor.launchers)
