"""Runs random programs by our kernels and compares them with float64.

    python tests/planner/graph_sweep.py --graphs 2000 --seed 0 --jobs 8 --failures failed.json

makes one program of each seed from --seed on, runs it by a plan (see `graph_covers.py`), and writes
what fails, made smaller, to the file. With --done FILE the results are written there, and the next
run goes on from them. No GPU is needed: kernels run in Triton's interpreter. With --device cuda
they are compiled.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

if __name__ == "__main__":
    if "cuda" not in sys.argv:
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1)]

import torch
from graph_covers import PLANNERS
from graph_runs import Door, check
from oracle import DEVICE
from quick_interpreter import quicken
from random_graphs import SMOOTH_STEPS, generate
from random_programs import Program, is_smooth
from shrinking import shrunk


def reductions(program: Program) -> Iterator[Program]:
    """The same with fewer outputs and lines, and inputs in place of values."""
    for name, _ in program.lines:
        if (name,) != program.outputs:
            yield _needed(replace(program, outputs=(name,)))
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield _needed(replace(program, outputs=tuple(o for o in program.outputs if o != name)))
    values = _types(program)
    for name, _ in program.lines:
        if name not in program.outputs:
            given = (f"a{100 + int(name[1:])}", *values[name])
            lines = [(n, _renamed(text, name, given[0])) for n, text in program.lines if n != name]
            yield _needed(replace(program, inputs=(*program.inputs, given), lines=tuple(lines)))


def _types(program: Program) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every line's value."""
    all_ = replace(program, outputs=tuple(name for name, _ in program.lines))
    results = all_.function()(*program.data(0))
    return {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        for name, value in zip(all_.outputs, results, strict=True)
    }


def _words(text: str) -> list[str]:
    return re.findall(r"\b[av]\d+\b", text)


def _renamed(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, text)


def _needed(program: Program) -> Program:
    """Without what no output needs."""
    wanted = set(program.outputs)
    lines = []
    for name, text in reversed(program.lines):
        if name in wanted:
            lines.append((name, text))
            wanted |= set(_words(text))
    inputs = tuple(given for given in program.inputs if given[0] in wanted)
    return replace(program, inputs=inputs, lines=tuple(reversed(lines)))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a seed asks for."""

    program: Program
    plan: str
    door: Door


def asked(seed: int, modelled_of: int) -> Asked:
    """The program of a seed: of its plan, its door, how long it is. Where the gradients of a
    program that was written for them are not smooth, its results alone are compared."""
    pick = random.Random(seed)
    plan = "modelled" if seed % modelled_of == 0 else pick.choice(("largest", "any"))
    longest = pick.choice((6, 10, 28))
    if pick.randrange(8) == 0:
        program = generate(pick.randrange, seed, longest=min(longest, 10), steps=SMOOTH_STEPS)
        if is_smooth(program, seed):
            return Asked(program, plan, "gradients")
    else:
        program = generate(pick.randrange, seed, longest=longest)
        if pick.randrange(100) == 0:
            return Asked(program, "modelled", "dynamo")
    in_place = any("written(" in text for _, text in program.lines)
    return Asked(program, plan, "traced" if in_place else "recorded")


def _failure(asked: Asked, seed: int, error: Exception, *, shrinks: bool) -> dict[str, object]:
    """A failure as data, its program made smaller as long as the same kind of error comes."""

    def fails(candidate: Program) -> bool:
        try:
            check(candidate, PLANNERS[asked.plan], seed, asked.door)
        except Exception as other:  # noqa: BLE001 - whatever it is
            return type(other) is type(error)
        return False

    why = f"{type(error).__name__}: {error}"[:300]
    program = shrunk(asked.program, fails, reductions) if shrinks else asked.program
    told = {"seed": seed, "plan": asked.plan, "door": asked.door, "why": why}
    return {**told, "program": str(program)}


@dataclass(slots=True)
class Swept:
    """What the programs of some seeds gave. first: the least of the seeds.
    operations: how often each stands in a program."""

    first: int = 0
    graphs: int = 0
    lines: int = 0
    kernels: int = 0
    failed: list[dict[str, object]] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    doors: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def read(cls, line: str) -> Swept:
        """Inverse of `line`."""
        found = json.loads(line)
        counts = {name: Counter(found[name]) for name in ("operations", "doors", "plans")}
        return cls(**{**found, **counts})

    def add(self, other: Swept) -> None:
        self.graphs += other.graphs
        self.lines += other.lines
        self.kernels += other.kernels
        self.failed += other.failed
        self.operations.update(other.operations)
        self.doors.update(other.doors)
        self.plans.update(other.plans)


@functools.cache
def _quicken() -> None:
    """What makes the programs of a process run in less time. The garbage collector would walk
    through all of torch again and again: a sixth of the time."""
    if DEVICE == "cpu":
        quicken()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def swept(seeds: Sequence[int], modelled_of: int, shrinks: bool) -> Swept:
    """Runs the programs of these seeds, the modelled plan only of every so many-th."""
    torch.set_num_threads(1)
    _quicken()
    found = Swept(seeds[0])
    for seed in seeds:
        one = asked(seed, modelled_of)
        found.graphs += 1
        found.lines += len(one.program.lines)
        found.doors[one.door] += 1
        found.plans[one.plan] += 1
        found.operations.update(
            name for _, text in one.program.lines for name in re.findall(r"\.([a-z_]\w*)\(", text)
        )
        try:
            found.kernels += check(one.program, PLANNERS[one.plan], seed, one.door)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
            found.failed.append(_failure(one, seed, error, shrinks=shrinks))
    return found


CHUNK = 10
"""Programs that a process runs before it tells of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random programs by our kernels, against float64.")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--modelled", type=int, default=40, help="only of every so many-th graph")
    parser.add_argument("--failures", type=Path, default=Path("failed_graphs.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: interpreter")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after so many")
    parser.add_argument("--done", type=Path, help="of which seeds ran: read first, then added to")
    parser.add_argument("--whole", action="store_true", help="do not make failures smaller")
    given = parser.parse_args(arguments)
    end = given.seed + given.graphs
    before = [Swept.read(line) for line in _lines(given.done)]
    ran = {(one.first, one.graphs) for one in before}
    chunks = [range(s, min(s + CHUNK, end)) for s in range(given.seed, end, CHUNK)]
    chunks = [c for c in chunks if (c[0], len(c)) not in ran]
    total, start = Swept(), time.monotonic()
    for found in before:
        total.add(found)
    for found in _each(chunks, given.modelled, not given.whole, given.jobs, start + given.seconds):
        total.add(found)
        if given.done:
            with given.done.open("a") as file:
                print(found.line(), file=file)
        for failure in found.failed:
            print("seed {seed}, {plan}, {door}: {why}\n{program}".format(**failure), flush=True)
        if total.failed:
            given.failures.write_text(json.dumps(total.failed, indent=1))
        if total.graphs % (10 * CHUNK) == 0:
            told = f"{total.graphs} graphs, {total.kernels} kernels, {len(total.failed)} failed"
            print(f"{told}, {time.monotonic() - start:.0f} s", flush=True)
    for some in (total.operations, total.doors, total.plans):
        print(", ".join(f"{name} {count}" for name, count in some.most_common()))
    told = f"{total.graphs} graphs of {total.lines} operations, {total.kernels} kernels"
    print(f"{told}, {len(total.failed)} failed")
    return 1 if total.failed else 0


def _lines(file: Path | None) -> list[str]:
    return file.read_text().splitlines() if file and file.exists() else []


def _each(
    chunks: Sequence[range], modelled_of: int, shrinks: bool, jobs: int, end: float
) -> Iterator[Swept]:
    if jobs <= 1:
        for seeds in chunks:
            if time.monotonic() < end:
                yield swept(seeds, modelled_of, shrinks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(swept, seeds, modelled_of, shrinks) for seeds in chunks]
        for done in as_completed(waiting):
            if not done.cancelled():
                yield done.result()
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
                return


if __name__ == "__main__":
    sys.exit(main())
