"""Small kernels that do not read each other's results, as one launch.

A step that generates text turns queries, turns keys and stores both: kernels of a few programs,
each of which would wait for the one before it to begin and to end. As one kernel, whose first
programs do what the first of them does, they take the time of the longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...codegen.source import Buffer, KernelSource, Program
from .units import ScheduledUnit

MOST_THREADS = 1 << 16
"""Threads of all the programs of a launch: half of those that a GPU of 64 SMs holds at once."""

MOST_ARGUMENTS = 24

_FUNCTION = re.compile(r"^@triton\.jit\ndef (\w+)\(", re.MULTILINE)
NUMBER = "tl.program_id(0)"


def joined(
    order: Sequence[ScheduledUnit], programs: Mapping[int, Program]
) -> Iterator[tuple[ScheduledUnit, Program | None]]:
    """The units in their order, neighbours that can be one launch as one unit with its program.
    programs: of the groups that are kernels of ours; None is given with what stays as it is."""
    under_way: list[ScheduledUnit] = []
    for unit in order:
        together = [*under_way, unit]
        if all(u.group in programs for u in together) and _may_join(together, programs):
            under_way = together
            continue
        yield from _ended(under_way, programs)
        under_way = [unit]
    yield from _ended(under_way, programs)


def _ended(
    units: Sequence[ScheduledUnit], programs: Mapping[int, Program]
) -> Iterator[tuple[ScheduledUnit, Program | None]]:
    if len(units) < 2:
        yield from ((unit, None) for unit in units)
        return
    inputs = tuple(i for unit in units for i in unit.inputs)
    outputs = tuple(o for unit in units for o in unit.outputs)
    whole = ScheduledUnit(units[0].group, inputs, outputs)
    yield whole, _together(units, [_program(unit, programs) for unit in units])


def _program(unit: ScheduledUnit, programs: Mapping[int, Program]) -> Program:
    assert unit.group is not None
    return programs[unit.group]


def _may_join(units: Sequence[ScheduledUnit], programs: Mapping[int, Program]) -> bool:
    each = [_program(unit, programs) for unit in units]
    if any(len(p.kernels) != 1 or p.temporaries for p in each):
        return False
    kernels = [p.kernels[0] for p in each]
    if any(k.scalars or k.plain or k.grid == 0 or k.text.count(NUMBER) != 1 for k in kernels):
        return False
    threads = sum(k.grid * 32 * max(k.num_warps for k in kernels) for k in kernels)
    if threads > MOST_THREADS or sum(len(k.buffers) for k in kernels) > MOST_ARGUMENTS:
        return False
    if len({(k.contracts, k.dependent) for k in kernels}) > 1:
        return False
    return _are_apart(units, each) and functions_of(kernels) is not None


def _are_apart(units: Sequence[ScheduledUnit], programs: Sequence[Program]) -> bool:
    """Whether none reads what another gives or writes in place, and each result has one source."""
    for number, (unit, program) in enumerate(zip(units, programs, strict=True)):
        given = {*unit.outputs, *(unit.inputs[place] for _, place in program.written)}
        for other, one in enumerate(units):
            if other != number and not given.isdisjoint({*one.inputs, *one.outputs}):
                return False
    return True


def _together(units: Sequence[ScheduledUnit], programs: Sequence[Program]) -> Program:
    """One program for all; its inputs and outputs are theirs, one after the other."""
    kernels = [program.kernels[0] for program in programs]
    functions = functions_of(kernels)
    assert functions is not None
    buffers: list[Buffer] = []
    written: list[tuple[int, int]] = []
    calls: list[tuple[int, str]] = []
    first = {"in": 0, "out": 0}
    ends = 0
    for number, (unit, program, kernel) in enumerate(zip(units, programs, kernels, strict=True)):
        names = [f"p{len(buffers) + i}" for i in range(len(kernel.buffers))]
        buffers += [replace(b, index=b.index + first[b.kind]) for b in kernel.buffers]
        written += [(o + first["out"], i + first["in"]) for o, i in program.written]
        own = f"{NUMBER} - {ends}" if ends else NUMBER
        text = kernel.text[begin_of(kernel) :].replace(NUMBER, own)
        functions[f"part_{number}"] = text.replace(f"def {kernel.name}(", f"def part_{number}(", 1)
        ends += kernel.grid
        calls.append((ends, f"part_{number}({', '.join(names)})"))
        first["in"] += len(unit.inputs)
        first["out"] += len(unit.outputs)
    name = f"{kernels[0].name}_and_{len(kernels) - 1}_more"
    arguments = ", ".join(f"p{i}" for i in range(len(buffers)))
    lines = [f"@triton.jit\ndef {name}({arguments}):"]
    for number, (end, call) in enumerate(calls):
        word = "if" if number == 0 else "elif"
        condition = f"{word} {NUMBER} < {end}:" if number < len(calls) - 1 else "else:"
        lines += [f"    {condition}", f"        {call}"]
    heads = dict.fromkeys(line for k in kernels for line in head_of(k).splitlines() if line)
    text = "\n".join([*heads, "", *functions.values(), *lines]) + "\n"
    whole = replace(
        kernels[0],
        name=name,
        text=text,
        buffers=tuple(buffers),
        grid=ends,
        num_warps=max(k.num_warps for k in kernels),
        num_stages=max(k.num_stages for k in kernels),
    )
    return Program((whole,), (), tuple(written))


def begin_of(kernel: KernelSource) -> int:
    """Where the kernel itself begins in its module."""
    return kernel.text.index(f"@triton.jit\ndef {kernel.name}(")


def head_of(kernel: KernelSource) -> str:
    """The imports of a kernel's module, and names for what is imported."""
    found = _FUNCTION.search(kernel.text)
    assert found is not None
    return kernel.text[: found.start()]


def functions_of(kernels: Sequence[KernelSource]) -> dict[str, str] | None:
    """The functions that the kernels call, by name; None where two are called alike and differ."""
    found: dict[str, str] = {}
    for kernel in kernels:
        starts = [m.start() for m in _FUNCTION.finditer(kernel.text)]
        for match, end in zip(_FUNCTION.finditer(kernel.text), [*starts[1:], None], strict=True):
            name, text = match[1], kernel.text[match.start() : end]
            if name != kernel.name and found.setdefault(name, text.rstrip() + "\n\n") != (
                text.rstrip() + "\n\n"
            ):
                return None
    return found
