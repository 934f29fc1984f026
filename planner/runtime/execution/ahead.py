"""Kernels that read nothing but inputs of the graph, as one launch before all others.

A model of convolutions copies every weight into the order in which the library reads it, or scales
it by the norm behind it: small kernels, each between two of the library's, for which it waits. None
of them waits for a value of the graph. So they are one launch, however many they are: a program
finds by its number which kernel it belongs to, and in a table where the tensors of it lie.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...codegen.source import Buffer, KernelSource, Program
from ...graph.dtypes import TRITON_DTYPE
from ...graph.graph import Graph, TensorType
from ...lowerings.base import Built, PreparedCall
from .batched import FEWEST, MOST_ARGUMENTS, addresses, bare, waits
from .joined import NUMBER, begin_of, functions_of, head_of
from .units import ScheduledUnit

MOST_BYTES = 16 << 20
"""Of what a kernel gives: it is kept until it is read."""

Given: TypeAlias = tuple[str, TensorType]
"""What is no value of the graph: its variable in the executor's text, and its type."""


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel that runs ahead. number: of its group. inputs: nodes. outputs: nodes, or what is
    none. group: whether it is all of its group."""

    number: int
    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int | Given, ...]

    @property
    def is_group(self) -> bool:
        return all(isinstance(output, int) for output in self.outputs)


@dataclass(frozen=True, slots=True)
class LaunchAhead:
    """Members that run together. given: what they give besides nodes, the last outputs."""

    members: tuple[Member, ...]
    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    given: tuple[Given, ...]

    @property
    def owner(self) -> int:
        """The group that is named where one is to be."""
        return self.members[0].number

    @property
    def groups(self) -> set[int]:
        """Those that have run then."""
        return {member.number for member in self.members if member.is_group}


def prepared_names(group: int, two: PreparedCall) -> tuple[str, ...]:
    """The variables of what is prepared for a group."""
    count = sum(len(each.types) for each in two.preparations)
    return tuple(variable(group, place) for place in range(count))


def variable(group: int, place: int) -> str:
    """The variable of what is prepared for a group."""
    return f"g{group}_p{place}"


def ahead(
    graph: Graph,
    order: Sequence[ScheduledUnit],
    made: Mapping[int, Built | PreparedCall],
    inputs: Collection[int],
) -> tuple[LaunchAhead, ...]:
    """The launches before all others. inputs: those of the graph that it does not write. Kernels
    that prepare a call are always among them; those that give results of the graph stay."""
    every = (member for unit in order for member in _members(graph, unit, made))
    members = [member for member in every if {*member.inputs} <= {*inputs}]
    found: list[LaunchAhead] = []
    for contracts in (True, False):
        able = _able(members, contracts)
        if len(able) >= FEWEST:
            found += [_together(some) for some in _cut(able)]
    joined = {id(m) for each in found for m in each.members}
    alone = (m for m in members if id(m) not in joined and not m.is_group)
    return (*found, *(_ahead([m], m.program) for m in alone))


def _members(
    graph: Graph, unit: ScheduledUnit, made: Mapping[int, Built | PreparedCall]
) -> Iterator[Member]:
    built = None if unit.group is None else made.get(unit.group)
    if unit.group is None or built is None:
        return
    if isinstance(built, Program):
        types = [graph.nodes[o].type for o in unit.outputs]
        small = all(t is not None and t.nbytes <= MOST_BYTES for t in types)
        if small and not built.written and not {*unit.outputs} & {*graph.outputs}:
            yield Member(unit.group, built, unit.inputs, unit.outputs)
    elif isinstance(built, PreparedCall):
        place = 0
        for each in built.preparations:
            names = (variable(unit.group, place + i) for i in range(len(each.types)))
            outputs = tuple(zip(names, each.types, strict=True))
            inputs = tuple(unit.inputs[i] for i in each.inputs)
            yield Member(unit.group, each.program, inputs, outputs)
            place += len(each.types)


def _able(members: Sequence[Member], contracts: bool) -> list[Member]:
    """Those that may be one launch."""
    found: list[Member] = []
    known: dict[object, KernelSource] = {}
    for member in members:
        if not _may_join(member.program):
            continue
        (kernel,) = member.program.kernels
        if kernel.contracts is not contracts:
            continue
        same = _sameness(member)
        if same in known or functions_of([*known.values(), kernel]) is not None:
            known.setdefault(same, kernel)
            found.append(member)
    return found


def _may_join(program: Program) -> bool:
    if len(program.kernels) != 1 or program.temporaries:
        return False
    (kernel,) = program.kernels
    if kernel.grid == 0 or kernel.scalars or kernel.plain or kernel.text.count(NUMBER) != 1:
        return False
    return all(b.descriptor is None for b in kernel.buffers)


def _cut(members: Sequence[Member]) -> Iterator[list[Member]]:
    """As many as the arguments of a launch allow, in their order."""
    some: list[Member] = []
    for member in members:
        if sum(len(m.program.kernels[0].buffers) for m in [*some, member]) > MOST_ARGUMENTS:
            yield some
            some = []
        some.append(member)
    yield some


def _ahead(members: Sequence[Member], program: Program) -> LaunchAhead:
    """members: in the order of the program's inputs and outputs."""
    outputs = [output for member in members for output in member.outputs]
    return LaunchAhead(
        tuple(members),
        program,
        tuple(i for member in members for i in member.inputs),
        tuple(output for output in outputs if isinstance(output, int)),
        tuple(output for output in outputs if not isinstance(output, int)),
    )


def _together(members: Sequence[Member]) -> LaunchAhead:
    """Two kernels: a program of the first writes where all tensors are, each program of the second
    looks up its own."""
    # What is a node comes first, and kernels of one text stand side by side.
    alike: dict[object, list[Member]] = {}
    for member in sorted(members, key=lambda m: not m.is_group):
        alike.setdefault((member.is_group, _sameness(member)), []).append(member)
    ordered = [member for some in alike.values() for member in some]
    buffers: list[Buffer] = []
    first = {"in": 0, "out": 0}
    for member in ordered:
        for each in member.program.kernels[0].buffers:
            buffers.append(replace(each, index=each.index + first[each.kind]))
        first["in"] += len(member.inputs)
        first["out"] += len(member.outputs)
    runs = [[member.program.kernels[0] for member in some] for some in alike.values()]
    kernels = [kernel for run in runs for kernel in run]
    table = TensorType((len(buffers),), (1,), "int64")
    writer = replace(
        kernels[0],
        buffers=(*buffers, Buffer("tmp", 0, table.dtype)),
        name=f"addresses_of_{len(buffers)}",
        grid=1,
        num_warps=1,
        num_stages=1,
    )
    writer = replace(writer, text=addresses(writer, kernels[0]))
    name = f"ahead_{len(kernels)}"
    whole = replace(
        writer,
        name=name,
        text=_text(name, runs, aligned=True),
        grid=sum(kernel.grid for kernel in kernels),
        num_warps=max(kernel.num_warps for kernel in kernels),
    )
    whole = replace(whole, plain=replace(whole, text=_text(name, runs, aligned=False)))
    return _ahead(ordered, Program((writer, whole), (table,)))


def _sameness(member: Member) -> object:
    """Equal for kernels that differ in their tensors alone."""
    (kernel,) = member.program.kernels
    # The text of a load does not tell of which type the elements are.
    return bare(kernel), tuple(b.dtype for b in kernel.buffers), kernel.grid


def _text(name: str, runs: Sequence[Sequence[KernelSource]], aligned: bool) -> str:
    """The module of the kernel for all. runs: kernels that differ in their tensors alone. aligned:
    all tensors begin at multiples of 16 bytes."""
    functions = functions_of([run[0] for run in runs])
    assert functions is not None
    awaited = dict.fromkeys(wait for run in runs for wait in waits(run[0]))
    body = [*awaited, "number = tl.program_id(0)"]
    begin = place = 0
    for i, run in enumerate(runs):
        kernel, arguments = run[0], len(run[0].buffers)
        functions[f"part_{i}"] = _function(kernel, f"part_{i}")
        end = begin + len(run) * kernel.grid
        word = "if" if i == 0 else "elif"
        body.append(f"{word} number < {end}:" if i < len(runs) - 1 else "else:")
        lines = [f"own = number - {begin}", f"place = {place} + own // {kernel.grid} * {arguments}"]
        # A name that two branches give must have one type.
        names = [f"a{i}_{j}" for j in range(arguments)]
        for j, (named, buffer) in enumerate(zip(names, kernel.buffers, strict=True)):
            kind = f"tl.pointer_type({TRITON_DTYPE[buffer.dtype]})"
            lines.append(f"{named} = tl.load(table + place + {j}).to({kind})")
            lines += [f"{named} = tl.multiple_of({named}, 16)"] * aligned
        given = ", ".join(names)
        body += [f"    {x}" for x in [*lines, f"part_{i}(own % {kernel.grid}, {given})"]]
        begin, place = end, place + len(run) * arguments
    # Of one run nothing is chosen.
    body = [x.removeprefix("    ") for x in body if x != "else:"] if len(runs) == 1 else body
    heads = dict.fromkeys(x for run in runs for x in head_of(run[0]).splitlines() if x)
    parameters = ", ".join([*(f"p{i}" for i in range(place)), "table"])
    own = [f"@triton.jit\ndef {name}({parameters}):", *(f"    {x}" for x in body)]
    return "\n".join([*heads, "", "", *functions.values(), *own, ""])


def _function(kernel: KernelSource, name: str) -> str:
    """A kernel as a function of the number of its program."""
    text = kernel.text[begin_of(kernel) :].replace(NUMBER, "program")
    text = text.replace(f"def {kernel.name}(", f"def {name}(program, ", 1)
    for wait in waits(kernel):
        text = re.sub(rf"^    {re.escape(wait)}.*\n", "", text, count=1, flags=re.MULTILINE)
    return text.rstrip() + "\n\n\n"
