"""Kernels that do the same to the elements of many tensors, as one launch.

An optimiser does the same to every parameter. What differs between its kernels is how many elements
there are, and where: those of one text are one function, and a program finds its tensors by its
number: by comparisons their place in a table, and there their addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...codegen.source import AWAIT_LAST, BEGIN_NEXT, Buffer, KernelSource, Program
from ...graph.dtypes import TRITON_DTYPE
from ...graph.graph import Graph, TensorType
from ...groups.group import Subgraph, subgraph
from ...groups.unwritten import written
from ...lowerings.registry import TRITON, lowering_of
from ...plan import GroupPlan, Plan
from .units import ScheduledUnit

FEWEST = 4
"""Kernels of one text that are worth another kernel. Those of sizes that are multiples of 16 are
one launch, the others another: a program moves whole vectors where all sizes allow it."""

MOST_ARGUMENTS = 480
"""Of a launch: a kernel's arguments take 4096 bytes at most."""

_NUMBER = "tl.program_id(0)"
_COMMENT = re.compile(r"  # .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups of a plan that are one launch."""

    groups: tuple[int, ...]
    program: Program
    """Its inputs and outputs are those of the groups, one after the other."""


def batches(graph: Graph, plan: Plan, flat: Callable[[Graph], Program | None]) -> tuple[Batch, ...]:
    """The groups of a plan that become one launch: kernels of one text and of the same types that
    give nothing but results of the graph, so that they can run together behind the last of them.
    flat: see `planner.flat`."""
    alike: dict[object, dict[bool, list[tuple[int, Program]]]] = {}
    parts = _parts(graph, plan)
    for number, part in parts.items() if len(parts) >= FEWEST else ():
        program = flat(part.graph)
        if program is not None:
            (kernel,) = program.kernels
            # The text of a load does not tell of which type the elements are.
            types = tuple(buffer.dtype for buffer in kernel.buffers)
            members = alike.setdefault((bare(kernel), types, kernel.contracts), {})
            members.setdefault(kernel.scalars[0].aligned, []).append((number, program))
    launches = (
        together
        for members in alike.values()
        if sum(map(len, members.values())) >= FEWEST
        for alignment in members.values()
        for together in _cut(alignment)
        if len(together) > 1
    )
    return tuple(_batch(parts, together) for together in launches)


def _batch(parts: Mapping[int, Subgraph], members: Sequence[tuple[int, Program]]) -> Batch:
    groups = tuple(number for number, _ in members)
    return Batch(groups, _together([parts[i] for i in groups], [p for _, p in members]))


def in_batches(order: Sequence[ScheduledUnit], found: Sequence[Batch]) -> tuple[ScheduledUnit, ...]:
    """The units with each batch as one, in the place of its last group."""
    home = {group: batch for batch in found for group in batch.groups}
    own = {unit.group: unit for unit in order if unit.group is not None}
    last = {home[u.group].groups: u for u in order if u.group in home}
    units = []
    for unit in order:
        batch = None if unit.group is None else home.get(unit.group)
        if batch is None:
            units.append(unit)
        elif last[batch.groups] is unit:
            members = [own[group] for group in batch.groups]
            inputs = tuple(i for member in members for i in member.inputs)
            outputs = tuple(o for member in members for o in member.outputs)
            units.append(ScheduledUnit(batch.groups[0], inputs, outputs))
    return tuple(units)


def _parts(graph: Graph, plan: Plan) -> dict[int, Subgraph]:
    """The groups that are kernels of ours and give results alone."""
    results, size = set(graph.outputs), len(graph.nodes)
    some = [
        (number, group)
        for number, group in enumerate(plan.groups)
        if group.config is not None
        and lowering_of(group) is TRITON
        and not results.isdisjoint(group.nodes)
        and max(group.nodes) < size
    ]
    parts = {i: subgraph(graph, g.nodes, g.copies) for i, g in some if len(some) >= FEWEST}
    return {i: p for i, p in parts.items() if _gives_results(graph, plan.groups[i], p)}


def _gives_results(graph: Graph, group: GroupPlan, part: Subgraph) -> bool:
    """Whether nothing in the graph reads what a group gives, nor writes what it reads."""
    results, own = set(graph.outputs), set(group.nodes)
    if any(o not in results or set(graph.users(o)) - own for o in part.outputs):
        return False
    return written(graph).isdisjoint(part.inputs)


def bare(kernel: KernelSource) -> str:
    """A kernel's text without its comments, which name the nodes of one graph."""
    return _COMMENT.sub("", kernel.text)


def _cut(members: Sequence[tuple[int, Program]]) -> Iterator[list[tuple[int, Program]]]:
    """As few launches as hold the arguments, all about as long."""
    most = MOST_ARGUMENTS // max(1, len(members[0][1].kernels[0].buffers))
    launches = -(-len(members) // max(1, most))
    for number in range(launches):
        yield list(members[number::launches])


def _together(parts: Sequence[Subgraph], programs: Sequence[Program]) -> Program:
    """Two kernels: a program of the first writes where all tensors are, each program of the second
    looks up its own. As arguments of one kernel the addresses would all lie in registers."""
    kernels = [program.kernels[0] for program in programs]
    buffers: list[Buffer] = []
    renews: list[tuple[int, int]] = []
    begins, begin, inputs, outputs = [], 0, 0, 0
    every = [i for part in parts for i in part.inputs]
    for part, program, kernel in zip(parts, programs, kernels, strict=True):
        offset = {"in": inputs, "out": outputs}
        buffers += [replace(b, index=b.index + offset[b.kind]) for b in kernel.buffers]
        alone = [(o, i) for o, i in program.renews if every.count(part.inputs[i]) == 1]
        renews += [(o + outputs, i + inputs) for o, i in alone]
        begins.append(begin)
        begin += kernel.grid
        inputs += len(part.inputs)
        outputs += len(part.outputs)
    table = TensorType((len(buffers),), (1,), "int64")
    first = replace(
        kernels[0],
        buffers=(*buffers, Buffer("tmp", 0, table.dtype)),
        scalars=(),
        name=f"addresses_of_{len(buffers)}",
        grid=1,
        num_warps=1,
    )
    first = replace(first, text=addresses(first, kernels[0]))
    name = f"{kernels[0].name}_of_{len(kernels)}"
    texts = [_whole(name, kernels, begins, aligned) for aligned in (True, False)]
    second = replace(first, name=name, text=texts[0], grid=begin, num_warps=kernels[0].num_warps)
    second = replace(second, plain=replace(second, text=texts[1]))
    return Program((first, second), (table,), renews=frozenset(renews))


def addresses(source: KernelSource, kernel: KernelSource) -> str:
    """The kernel that writes all addresses, one behind the other."""
    count = len(source.buffers) - 1
    lines = [*waits(kernel), *(f"tl.store(table + {i}, p{i}.to(tl.int64))" for i in range(count))]
    return "\n".join([*_HEADER, _signature(source.name, count), *(f"    {x}" for x in lines), ""])


def _whole(name: str, kernels: Sequence[KernelSource], begins: Sequence[int], aligned: bool) -> str:
    """The module of the kernel for all; aligned: all tensors begin at multiples of 16 bytes."""
    kernel, lines = kernels[0], ["number = tl.program_id(0)"]
    count = len(kernel.buffers)
    sizes = [each.scalars[0].value for each in kernels]
    lines += _chosen([*zip(range(0, len(kernels) * count, count), begins, sizes, strict=True)])
    for i, buffer in enumerate(kernel.buffers):
        kind = f"tl.pointer_type({TRITON_DTYPE[buffer.dtype]})"
        lines.append(f"a{i} = tl.load(table + place + {i}).to({kind})")
        lines += [f"a{i} = tl.multiple_of(a{i}, 16)"] * aligned
    if kernel.scalars[0].aligned:
        lines.append("size = tl.multiple_of(size, 16)")
    arguments = ", ".join(f"a{i}" for i in range(count))
    lines.append(f"{kernel.name}(number - begin, {arguments}, size)")
    text = kernel.text.replace(f"def {kernel.name}(", f"def {kernel.name}(program, ", 1)
    text = _COMMENT.sub("", text).replace(_NUMBER, "program")
    for wait in waits(kernel):
        text = text.replace(f"    {wait}\n", "", 1)
    own = [_signature(name, count * len(kernels)), *(f"    {x}" for x in waits(kernel) + lines)]
    return "\n".join([text.rstrip(), "", "", *own, ""])


_HEADER = ("import triton", "import triton.language as tl", "", "")


def _signature(name: str, count: int) -> str:
    arguments = ", ".join(f"p{i}" for i in range(count))
    return f"@triton.jit\ndef {name}({arguments}, table):"


def waits(kernel: KernelSource) -> list[str]:
    """The lines of a kernel by which the next begins, and it waits for the last."""
    calls = (f"tl.extra.cuda.{name}()" for name in (BEGIN_NEXT, AWAIT_LAST))
    return [call for call in calls if call in kernel.text]


def _chosen(leaves: Sequence[tuple[int, int, int | float]]) -> list[str]:
    """Says what belongs to the program `number`. leaves: of each kernel the place of its first
    address, the number of its first program, and its elements."""
    if len(leaves) == 1:
        place, begin, size = leaves[0]
        return [f"place = {place}", f"begin = {begin}", f"size = {size}"]
    middle = len(leaves) // 2
    halves = (_chosen(leaves[:middle]), _chosen(leaves[middle:]))
    first, second = ([f"    {line}" for line in half] for half in halves)
    return [f"if number < {leaves[middle][1]}:", *first, "else:", *second]
