"""From a group and a config to the kernels that compute it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .codegen.emit import emit
from .codegen.row_copies import BLOCK
from .codegen.source import Buffer, KernelSource, Program
from .config import Config
from .errors import Refusal, Refused
from .graph.graph import Graph, TensorType
from .graph.ops import is_compute
from .graph.varying import of_any_sizes
from .nests.group_nests import KernelNest, Schedule, Source, schedule_group
from .nests.linear_forms import Access, Role
from .nests.placement import Evaluate, WriteOutput
from .tiles.blocks import Blocks
from .tiles.program import TileProgram
from .tiles.tile import Around, Pass, passed
from .trace.indexed_writes import target_of
from .values.values import Load

_COLUMNS, _TILE = 32, 2048
"""Elements of float32 in a line of memory, and those that a warp holds in 64 registers."""


def lower(
    group: Graph,
    config: Config,
    *,
    interpreted: bool = False,
    unwritten: frozenset[int] = frozenset(),
) -> Program | Refusal:
    """The program of a group, or why the group or the config has none. unwritten: the inputs, by
    place, that may be read before a kernel's wait (see `groups.unwritten`)."""
    found = schedule_of(group, config)
    if isinstance(found, Refusal):
        return found
    name = kernel_name(group)
    several = len(found.kernels) > 1
    kernels = []
    temporaries = [*found.temporaries]
    try:
        for number, (kernel, around) in enumerate(_with_around(found, unwritten)):
            own = f"{name}_{number}" if several else name
            fewer = _combined(kernel, config) if number and unwritten else config
            source = emit(kernel.nest, fewer, own, interpreted=interpreted, around=around)
            fast = group.numerics == "fast"
            plain = source.plain and replace(source.plain, contracts=fast)
            source = replace(source, contracts=fast, plain=plain)
            copies: dict[int, int] = {}
            if source.before is not None:
                copies = _with_room(source.before, temporaries)
                kernels.append(rewired(source.before, kernel, copies))
            kernels.append(rewired(replace(source, before=None), kernel, copies))
    except Refused as refused:
        return refused.refusal
    written = tuple(_written(group))
    return Program(tuple(kernels), tuple(temporaries), written, frozenset(updated(found)))


def schedule_of(group: Graph, config: Config) -> Schedule | Refusal:
    """The kernels of a group by the layout of a config."""
    return schedule_group(of_any_sizes(group) if config.anywhere else group, config.layout)


def _combined(kernel: KernelNest, config: Config) -> Config:
    """The config of a later kernel where launches overlap. One that combines parts and reads no
    more than whole lines of memory has one warp, which holds its tile: its sums over the parts then
    take no barrier, and it lies beside the programs of the kernel before."""
    nest, sources = kernel.nest, dict(kernel.inputs)
    blocks = Blocks.of(nest, config.blocks)
    dense = {t.axis for each in nest.stores.values() for t in each.offset.terms if t.scale == 1}
    grid = {*nest.with_role(Role.GRID)}
    lines = blocks.elements(grid) == blocks.elements(grid & dense) == _COLUMNS
    held = {*nest.with_role(Role.HELD)}
    tiles = {nest.values[v].kind for v, access in nest.loads.items() if access.axes & held}
    inputs = {kind.input for kind in tiles if isinstance(kind, Load)}
    parts = all(sources[i].kind == "tmp" for i in inputs) and not any(nest.loops())
    fits = nest.largest_tile(blocks.sizes) <= _TILE
    return replace(config, num_warps=1) if lines and parts and fits else config


def updated(found: Schedule) -> Iterator[tuple[int, int]]:
    """The outputs that may be written into an input, with the places of both: of one kernel without
    loops, in which all that is read of the input is loaded before the output is stored. They lie
    along all its axes: what several threads read, one of them could write before another reads."""
    if len(found.kernels) > 1 or any(True for _ in found.kernels[0].nest.loops()):
        return
    nest, inputs = found.kernels[0].nest, dict(found.kernels[0].inputs)
    read: dict[int, list[Access]] = {}
    last: dict[int, int] = {}
    stored: dict[int, int] = {}
    for position, item in enumerate(nest.body):
        if isinstance(item, WriteOutput):
            stored[item.output] = position
        elif isinstance(item, Evaluate) and isinstance(kind := nest.values[item.value].kind, Load):
            place = inputs[kind.input].index
            read.setdefault(place, []).append(nest.loads[item.value])
            last[place] = position
    for place, accesses in read.items():
        for output, store in nest.stores.items():
            same = all(a.offset == store.offset and not a.guards and not a.at for a in accesses)
            plain = not store.guards and not store.at and nest.outputs[output].part is None
            whole = all(axis.extent == 1 or i in store.axes for i, axis in enumerate(nest.axes))
            if same and plain and whole and last[place] < stored[output]:
                yield found.kernels[0].outputs[output].index, place


def _written(group: Graph) -> Iterator[tuple[int, int]]:
    """The outputs of a group that are its inputs, written by index, with the places of both."""
    for number, output in enumerate(group.outputs):
        target = None if output is None else target_of(group, group.nodes[output])
        if target is not None:
            yield number, group.inputs.index(target)


def tile_programs(group: Graph, config: Config, after: Pass) -> list[TileProgram] | Refusal:
    """The tile program of every kernel of a group as a pass leaves it, or why there is none."""
    found = schedule_of(group, config)
    if isinstance(found, Refusal):
        return found
    try:
        return [
            dict(passed(kernel.nest, config, around))[after]
            for kernel, around in _with_around(found)
        ]
    except Refused as refused:
        return refused.refusal


def _with_around(
    found: Schedule, unwritten: frozenset[int] = frozenset()
) -> Iterator[tuple[KernelNest, Around]]:
    for number, kernel in enumerate(found.kernels):
        later = frozenset(i for k in found.kernels[number + 1 :] for i in _read(k))
        own = (
            i for i, source in kernel.inputs if source.kind == "in" and source.index in unwritten
        )
        yield kernel, Around(number > 0, later, frozenset(own))


def _read(kernel: KernelNest) -> set[int]:
    return {v.kind.input for v in kernel.nest.values if isinstance(v.kind, Load)}


def kernel_name(group: Graph) -> str:
    """A name that tells a reader, or a profiler, what is in the kernel."""
    words = [re.sub(r"^_+", "", n.op.split(".")[1]) for n in group.nodes if is_compute(n)]
    words = [w for w in words if w not in ("convert_element_type", "to_copy", "clone")]
    shown = [w for i, w in enumerate(words) if i == 0 or w != words[i - 1]]
    return "_".join(["fused", *shown[:6]] + ["etc"] * (len(shown) > 6))


def _with_room(before: KernelSource, temporaries: list[TensorType]) -> dict[int, int]:
    """Adds a temporary for each row that a kernel copies; its number by that of the input."""
    found = {}
    for buffer in before.buffers:
        if buffer.kind == "row":
            found[buffer.index] = len(temporaries)
            temporaries.append(TensorType((before.grid * BLOCK,), (1,), buffer.dtype))
    return found


def rewired(
    source: KernelSource, kernel: KernelNest, copies: Mapping[int, int] | None = None
) -> KernelSource:
    """Buffers by their place in the group: an emitter knows only node ids and its own outputs.
    copies: the temporaries that hold copies of rows, by node."""
    origin = dict(kernel.inputs)
    buffers = []
    for buffer in source.buffers:
        if buffer.kind == "row":
            own = Source("tmp", (copies or {})[buffer.index])
        else:
            own = origin[buffer.index] if buffer.kind == "in" else kernel.outputs[buffer.index]
        buffers.append(Buffer(own.kind, own.index, buffer.dtype, buffer.descriptor))
    plain = source.plain and replace(source.plain, contracts=source.contracts)
    plain = plain and rewired(plain, kernel, copies)
    return replace(source, buffers=tuple(buffers), plain=plain)
