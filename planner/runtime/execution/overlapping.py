"""Overlapping launches of a plan that nobody has measured, and the configs for them."""

from __future__ import annotations

from dataclasses import replace

from ...config import NATURAL, Config
from ...costs.cost import Cost
from ...costs.device import DeviceProfile
from ...errors import Refusal
from ...graph.graph import Graph
from ...groups.group import GroupContent
from ...lowerings.registry import lowering_of
from ...lowerings.triton import space_for
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...plan import GroupPlan, Plan
from ...tiles.blocks import power_of_two

OVERLAPPING = (9, 0)
"""The compute capability from which a kernel can be launched while the one before it ends."""

SHORT_S = 30e-6
"""Seconds of a kernel up to which the end of one is worth overlapping with the begin of the next. A
step of generating text, of kernels of 2 to 30 us, took 1,043 us on an H200 and 996 us so; of much
longer kernels the ends do not show."""

EARLY_WARPS, EARLY_ELEMENTS = 4, 64
"""Warps of a program that multiplies one row by a matrix, and elements of the matrix in each of its
threads, where launches overlap: small programs begin as soon as a few of the kernel before have
ended. The kernels of Llama-3.2-1B, written by hand, took 945 us a step on an H100 with programs of
4 warps, 979 us with those of 8 and 16 warps, which are as fast alone."""


def overlapping(
    plan: Plan, graph: Graph, device: DeviceProfile, capability: tuple[int, int]
) -> Plan:
    """The plan as its CUDA graph is recorded: one that was measured as it is, the model's with
    launches that overlap where its kernels are short."""
    if plan.evidence != "modelled" or plan.overlaps or capability < OVERLAPPING:
        return plan
    ours = [g for g in plan.groups if lowering_of(g).generated]
    seconds = [g.predicted / g.kernels for g in ours if g.predicted is not None]
    if not seconds or sum(seconds) / len(seconds) > SHORT_S:
        return plan
    groups = tuple(_early(group, graph, device) for group in plan.groups)
    return replace(plan, overlaps=True, groups=groups)


def _early(group: GroupPlan, graph: Graph, device: DeviceProfile) -> GroupPlan:
    """A group in smaller programs, where it multiplies one row by a matrix."""
    config = group.config
    if config is None or config.layout != NATURAL or config.num_warps <= EARLY_WARPS:
        return group
    space = space_for(GroupContent.of(graph, group.nodes, group.copies), device)
    if isinstance(space, Refusal) or NATURAL not in space.schedules:
        return group
    nest = space.schedules[NATURAL].kernels[0].nest
    smaller = _smaller(nest, config)
    if smaller is None or not isinstance(space.judge(smaller), Cost):
        return group
    return replace(group, config=smaller)


def _smaller(nest: Nest, config: Config) -> Config | None:
    """The config of small programs; None where the products are none of one row."""
    grid = [axis for axis in nest.with_role(Role.GRID) if nest.axes[axis].extent > 1]
    if len(grid) != 1 or not nest.contractions:
        return None
    each = 0
    for value in nest.contractions:
        fold = nest.fold(value)
        assert fold.times is not None
        left, right = nest.live[fold.source], nest.live[fold.times]
        if nest.live[value] != {*grid} or (
            left - {*nest.reduced(fold)} and right - {*nest.reduced(fold)}
        ):
            return None
        each += nest.count(fold)
    most = max(1, EARLY_ELEMENTS * 32 * EARLY_WARPS // each)
    size = power_of_two(most + 1) // 2  # the largest power of two that is at most that
    axis = nest.axes[grid[0]].name
    blocks = tuple((name, size if name == axis else n) for name, n in config.blocks)
    return replace(config, blocks=blocks, num_warps=EARLY_WARPS)
