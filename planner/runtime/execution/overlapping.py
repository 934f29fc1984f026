"""Overlapping launches of a plan that nobody has measured, and the configs for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...config import NATURAL, Config, Layout
from ...costs.cost import Cost
from ...costs.device import DeviceProfile
from ...errors import Refusal
from ...graph.dtypes import itemsize
from ...graph.graph import Graph
from ...graph.sizes import varies
from ...groups.group import GroupContent
from ...lowerings.registry import lowering_of
from ...lowerings.triton import space_for
from ...nests.linear_forms import Role
from ...nests.nest import Nest
from ...plan import GroupPlan, Plan
from ...space.space import Space
from ...tiles.blocks import Blocks, power_of_two
from ...values.values import Choice

OVERLAPPING = (9, 0)
"""The compute capability from which a kernel can be launched while the one before it ends."""

SHORT_S = 30e-6
"""Seconds of a kernel up to which the end of one is worth overlapping with the begin of the next. A
step of generating text, of kernels of 2 to 30 us, took 1,043 us on an H200 and 996 us so; of much
longer kernels the ends do not show."""

EARLY_WARPS = 4
"""Warps of a program that multiplies one row by a matrix where launches overlap: small programs
begin as soon as a few of the kernel before have ended. The kernels of Llama-3.2-1B, written by
hand, took 945 us a step on an H100 with programs of 4 warps, 979 us with those of 8 and 16 warps,
which are as fast alone."""

EARLY = ((256, 512), (128, 256))
"""Bytes of the matrix for each thread of such a program, and the programs that there are then at
least: the first that is possible. Steps of one sequence on an H100 with 64, 128 and 256 bytes:
Llama-3.2-1B, weights of 8 bits, 785, 752 and 737 us, of 4 bits 643 and 817 with the latter two; in
bfloat16 1,028 and 1,016, Qwen3-0.6B, of whose kernels 256 bytes leave 128 to 384 programs, 724 and
800. Gate, up and down of Llama alone, one after the other, took 35.8 and 34.8 us in bfloat16, 22.1
and 20.7 in 8 bits, 14.7 and 17.5 in 4 bits."""

EARLY_ELEMENTS = 256
"""Elements of the matrix for each thread at most: of 4 bits, 128 bytes have so many."""


BLOCKS = (64, 128, 32)
"""Keys of a part of attention that is one block, the best first. Then all that a program loads of
them is under way before its wait, and the turns of no loop lie in shared memory: for heads of 128
columns 20 KB, where two turns of 64 keys with four stages take 120. Steps of one sequence of
Llama-3.2-1B, heads of 64 columns, on an H200 with 32, 64 and 128 keys: 701, 691 and 697 us in
bfloat16, 502, 499 and 506 with weights of 8 bits; of 4 bits 374 and 386 with the latter two.
Qwen3-0.6B, 128 columns, with 32 and 64: 541 and 522."""

BLOCK_BYTES = 128
"""Bytes of such a block for each thread. Steps of one sequence on an H100: Qwen3-0.6B, 128 columns,
660 us with 64 keys and 4 warps; Gemma-2-2B, 256 columns, 2,186 with 64 keys and 4 warps, 2,132 with
8."""

COMBINED = 32
"""Columns of one row that a program then combines of all parts: a line of memory each, so that one
warp does (see `lower`). Steps of one sequence on an H100 with tiles of 4 x 4 and four warps, and
so: Llama-3.2-1B 942 and 930 us, Qwen3-0.6B 652 and 634; with 4 x 4 and one warp 932 and 692."""

ABOUT = 1.01
"""Times of the model that are equal as far as it can tell."""

MOST_PROGRAMS = 4
"""Programs for each SM at most that there are then: as many as lie on it at once."""


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
    """A group in smaller programs, each with all of its sums at once, where it multiplies one row
    by a matrix."""
    config = group.config
    if config is None or (config.layout == NATURAL and config.num_warps <= EARLY_WARPS):
        return group
    space = space_for(GroupContent.of(graph, group.nodes, group.copies), device)
    if isinstance(space, Refusal):
        return group
    if config.split > 1:
        found = _in_blocks(space, config, device)
    elif NATURAL in space.schedules:
        found = _smaller(space.schedules[NATURAL].kernels[0].nest, config)
    else:
        found = iter(())
    for smaller in found:
        if isinstance(space.judge(smaller), Cost):
            return replace(group, config=smaller)
    return replace(group, config=_fewer_turns(space, config))


def _fewer_turns(space: Space, config: Config) -> Config:
    """Blocks twice as long in half as many stages, where a norm's sum stands before products in a
    loop of its own with more turns than stages: it waits for its row turn by turn, while nothing
    else is under way. As many bytes are then under way in the loop of the products. A step of
    Llama-3.2-1B with 8 sequences took 1,245 us on an H100 with blocks of 128 in six stages for gate
    and up, 1,187 with 256 in three; 7 more with two turns for four of the norm before queries."""
    schedule = space.schedules.get(config.layout)
    if schedule is None or config.num_stages < 4:
        return config
    nest = schedule.kernels[0].nest
    axes = [loop.axis for loop in nest.loops()]
    if not nest.contractions or len(axes) != 2 or axes[0] != axes[1]:
        return config
    if Blocks.of(nest, config.blocks).count(axes[0]) <= config.num_stages:
        return config
    name = nest.axes[axes[0]].name
    blocks = {**dict(config.blocks), name: 2 * config.block(name)}
    longer = replace(config, blocks=tuple(sorted(blocks.items())))
    longer = replace(longer, num_stages=config.num_stages // 2)
    before, after = space.judge(config), space.judge(longer)
    if isinstance(before, Refusal) or isinstance(after, Refusal):
        return config
    return longer if after.seconds <= ABOUT * before.seconds else config


def _in_blocks(space: Space, config: Config, device: DeviceProfile) -> Iterator[Config]:
    """The configs by which each part of a loop up to a position, as attention's over the keys of a
    cache, is one block; none where there is no position, or a device would not begin all parts at
    once."""
    parts: dict[int, tuple[Layout, Nest]] = {}
    for layout, nest, size in _parts(space, config):
        parts.setdefault(size, (layout, nest))
    shapes = [(size, warps) for size in BLOCKS if size in parts for warps in (4, 8)]
    rows = {size: _largest_row(nest) for size, (_, nest) in parts.items()}
    apart = {(s, w): abs(math.log2(s * rows[s] / (32 * w * BLOCK_BYTES))) for s, w in shapes}
    for size, warps in sorted(shapes, key=lambda each: (BLOCKS.index(each[0]), apart[each])):
        layout, nest = parts[size]
        kernels = [kernel.nest for kernel in space.schedules[layout].kernels]
        whole = {nest.axes[a].name: nest.axes[a].extent for a in nest.with_role(Role.LOOP)}
        named = {**dict(config.blocks), **{n: power_of_two(size) for n, size in whole.items()}}
        named |= {name: columns for each in kernels[1:] for name, columns in _columns(each)}
        own = {a.name for each in kernels for a in each.axes if a.role is not Role.HELD}
        if not own <= named.keys():
            continue
        sizes = tuple(sorted((name, named[name]) for name in own))
        blocks = Blocks.of(nest, sizes)
        programs = math.prod(blocks.count(axis) for axis in nest.with_role(Role.GRID))
        if programs <= MOST_PROGRAMS * device.sm_count:
            base = replace(config, blocks=sizes, reduction=layout.reduction, split=layout.split)
            yield replace(base, num_warps=warps, num_stages=1, access="pointer", flatten=False)


def _columns(nest: Nest) -> Iterator[tuple[str, int]]:
    """The blocks along the grid of a kernel that combines parts."""
    stores = [access.offset.terms for access in nest.stores.values()]
    dense = {t.axis for terms in stores for t in terms if (t.scale, t.div, t.mod) == (1, 1, 0)}
    for axis in nest.with_role(Role.GRID):
        extent = nest.axes[axis].extent
        most = COMBINED if varies(extent) else min(COMBINED, power_of_two(extent))
        yield nest.axes[axis].name, most if axis in dense else 1


def _largest_row(nest: Nest) -> int:
    """Bytes of what a key, or its value, takes in memory."""
    (axis,) = _ends(nest)
    inside = [*nest.with_role(Role.HELD), *nest.with_role(Role.LOOP)]
    return max(
        itemsize(access.type.dtype)
        * math.prod(nest.axes[a].extent for a in access.axes if a in inside and a != axis)
        for access in nest.loads.values()
        if axis in access.axes
    )


def _ends(nest: Nest) -> list[int]:
    """The loops that end at a position which lies in a tensor."""
    loops = nest.with_role(Role.LOOP)
    return [a for a in loops if any(limit.values for limit in nest.limits.get(a, ()))]


def _parts(space: Space, config: Config) -> Iterator[tuple[Layout, Nest, int]]:
    """The layouts that divide a loop up to a position, with the nest and the length of a part;
    those without a loop inside it first."""
    for layout in sorted(space.schedules, key=lambda each: each.reduction):
        nest = space.schedules[layout].kernels[0].nest
        ends = _ends(nest)
        if layout.split > 1 and layout.tiling == config.tiling and len(ends) == 1:
            yield layout, nest, nest.axes[ends[0]].extent


def _smaller(nest: Nest, config: Config) -> Iterator[Config]:
    """The configs of small programs, that of the largest first; none where the products are none of
    one row."""
    grid = [axis for axis in nest.with_role(Role.GRID) if nest.axes[axis].extent > 1]
    if len(grid) != 1 or not nest.contractions or not _is_one_row(nest, grid[0]):
        return
    size = _most_rows(nest, grid[0])
    name = nest.axes[grid[0]].name
    axes = [nest.axes[axis].name for axis in nest.with_role(Role.GRID)]
    while size:
        blocks = tuple((each, size if each == name else 1) for each in axes)
        yield Config(blocks, EARLY_WARPS, num_stages=1, eviction=config.eviction)
        size //= 2


def _most_rows(nest: Nest, axis: int) -> int:
    """Results of a small program, a power of two; 0 where nothing is read for them alone."""
    each, elements = _row_bytes(nest, axis)
    rows, threads = nest.axes[axis].extent, 32 * EARLY_WARPS
    for nbytes, programs in EARLY if each else ():
        most = min(nbytes * threads // each, EARLY_ELEMENTS * threads // elements)
        size = power_of_two(max(1, most) + 1) // 2  # the largest power of two that is at most that
        if size * programs <= rows:
            return size
    return power_of_two(max(1, rows // EARLY[-1][1]) + 1) // 2 if each else 0


def _row_bytes(nest: Nest, axis: int) -> tuple[int, int]:
    """Bytes of the matrices that a result along this axis takes, and the products that it is a sum
    of. Of pieces side by side it takes one."""
    summed = [nest.reduced(nest.fold(v)) for v in nest.contractions]
    along = {a for axes in summed for a in axes}
    choices = [value.kind for value in nest.values if isinstance(value.kind, Choice)]
    others = {piece for choice in choices for piece, _, _ in choice.pieces[1:]}
    nbytes = sum(
        itemsize(access.type.dtype) * math.prod(nest.axes[a].extent for a in access.axes - {axis})
        for value, access in nest.loads.items()
        if axis in access.axes and access.axes & along and value not in others
    )
    held = nest.with_role(Role.HELD)
    products = sum(
        math.prod(nest.axes[a].extent for a in held if a in axes or a in nest.live[value])
        for value, axes in zip(nest.contractions, summed, strict=True)
    )
    return nbytes, products


def _is_one_row(nest: Nest, axis: int) -> bool:
    """Whether each product multiplies what is the same for all programs by what each has its own
    of, along this axis."""
    for value in nest.contractions:
        fold = nest.fold(value)
        assert fold.times is not None
        sides = [axis in nest.live[side] for side in (fold.source, fold.times)]
        if sum(sides) != 1 or not nest.live[value] <= {axis, *nest.with_role(Role.HELD)}:
            return False
    return True
