"""Runs random programs by our kernels and compares them with float64.

    python tests/planner/graph_sweep.py --graphs 2000 --seed 0 --jobs 8 --failures failed.json

makes one program of each seed from --seed on, runs it by two plans, and writes what fails, made
smaller, to the file. With --done FILE the seeds that ran are written there, and left out the next
time. No GPU is needed: kernels run in Triton's interpreter. With --device cuda they
are compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

if __name__ == "__main__":
    if "cuda" not in sys.argv:
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1)]

import torch
from fusionplan.planner.capture.capture import capture, decompositions
from fusionplan.planner.config import Config
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan, partition
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.parse import parse
from fusionplan.planner.groups.group import subgraph
from fusionplan.planner.nests.linear_forms import Role
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.executor import Executor
from fusionplan.planner.space.space import Space, space_of
from oracle import DEVICE, as_tuple, assert_close
from random_graphs import generate
from random_programs import Program
from torch._functorch.aot_autograd import aot_function
from torch.utils._python_dispatch import _disable_current_modes

Planner = Callable[[Graph], Plan]
DRAWS = 8
"""Inputs drawn before a result is called wrong: where eager happens to round to the true number,
other numbers tell what its error is."""


def modelled(graph: Graph) -> Plan:
    """The plan that the model thinks best."""
    return modelled_plan(graph, H200)


def largest(graph: Graph, seed: int = 0) -> Plan:
    """The largest legal groups, products of matrices with them, each in any way of its space."""
    pick, groups = random.Random(seed), []
    for nodes in partition(graph, frozenset()):
        part = subgraph(graph, nodes).graph
        config = _any_config(part, pick)
        if config is not None:
            groups.append(GroupPlan(nodes, "triton", key(part), config))
    return Plan(key(graph), H200.key, (), "modelled", tuple(groups))


def _any_config(part: Graph, pick: random.Random) -> Config | None:
    """A config of any layout that the model lets through, of few enough programs for the
    interpreter."""
    space = space_of(part, H200)
    if not isinstance(space, Space):
        return None
    by_layout: dict[object, list[Config]] = {}
    for config in space.enumerate():
        layout = (config.tiling, config.reduction, config.split > 1)
        by_layout.setdefault(layout, []).append(config)
    layouts = list(by_layout.values())
    pick.shuffle(layouts)
    for configs in layouts:
        few = sorted(configs, key=lambda c: _programs(space, c))[: max(20, len(configs) // 8)]
        pick.shuffle(few)
        for config in few[:20]:
            if isinstance(space.judge(config), Cost):
                return config
    return None


def _programs(space: Space, config: Config) -> int:
    nest = space.schedules[config.layout].kernels[0].nest
    blocks = dict(config.blocks)
    grid = (axis for axis in nest.axes if axis.role is Role.GRID)
    return config.split * math.prod(-(-axis.extent // blocks.get(axis.name, 1)) for axis in grid)


PLANNERS: dict[str, Planner] = {"modelled": modelled, "largest": largest}


@dataclass(slots=True)
class Ran:
    """A program compiled by a plan. groups, kernels: of all its graphs."""

    program: Program
    planner: Planner
    groups: int = 0
    kernels: int = 0
    call: Callable[..., object] = field(init=False)

    def __post_init__(self) -> None:
        # Without Dynamo, which leaves nothing of such a program to eager anyway.
        self.call = aot_function(
            self.program.function(), self._compile, decompositions=decompositions()
        )

    def _compile(self, gm: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        with _disable_current_modes():  # as the dispatcher does: numbers are computed on the way
            captured = capture(gm)
            assert key(parse(str(captured.graph))) == key(captured.graph)
            plan = self.planner(captured.graph)
            executor = Executor(captured, plan, torch.device(DEVICE))
        self.groups += len(plan.groups)
        self.kernels += executor.kernels_per_call
        executor.boxed._boxed_call = True  # type: ignore[attr-defined]
        return executor.boxed

    def results(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Ours, the exact one and eager's, of each output."""
        data = [x.to(DEVICE) for x in self.program.data(seed)]
        wide = [x.double() if x.is_floating_point() else x for x in data]
        with torch.no_grad():
            mine = as_tuple(self.call(*data))
        exact = self.program.function(wide=True)(*wide)
        eager = self.program.function()(*data)
        return zip(mine, exact, eager, strict=True)


def check(program: Program, planner: Planner, seed: int = 0) -> int:
    """Raises AssertionError where a result is wrong. Gives the number of kernels that ran."""
    ran = Ran(program, planner)
    try:
        for name, found in zip(program.outputs, ran.results(seed), strict=True):
            assert_close(*found, name)
    except AssertionError:
        _settle(ran, seed)
    assert ran.kernels >= ran.groups
    return ran.kernels


def _settle(ran: Ran, seed: int) -> None:
    """The accuracy rule over several draws of the inputs: the largest error, eager's own largest
    and the largest size. NaN and integers must be as eager has them in each."""
    worst = [[0.0, 0.0, 0.0] for _ in ran.program.outputs]
    for draw in range(seed, seed + DRAWS):
        for place, (mine, exact, eager) in zip(worst, ran.results(draw), strict=True):
            if not mine.is_floating_point():
                assert_close(mine, exact, eager, "integers")
                continue
            assert torch.equal(mine.isnan(), eager.isnan()), "NaN differs from eager's"
            finite = eager.isfinite() & exact.isfinite()
            assert torch.equal(mine.isfinite() & exact.isfinite(), finite), "infinities differ"
            if finite.any():
                sizes = (mine.double() - exact, eager.double() - exact, exact)
                for i, size in enumerate(sizes):
                    place[i] = max(place[i], size[finite].abs().max().item())
    for name, (error, own, size), (mine, _, _) in zip(
        ran.program.outputs, worst, ran.results(seed), strict=True
    ):
        if mine.is_floating_point():
            limit = 2 * own + 4 * torch.finfo(mine.dtype).eps * size
            assert error <= limit, f"{name}: error {error:.3g}, eager's own {own:.3g}, {size:.3g}"


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program with fewer outputs and lines, and inputs in place of values, that still fails."""
    changed = True
    while changed:
        changed = False
        for candidate in _reductions(program):
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


def _reductions(program: Program) -> Iterator[Program]:
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


def _failure(
    program: Program, plan: str, seed: int, error: Exception, *, shrinks: bool
) -> dict[str, object]:
    """A failure as data, its program made smaller as long as the same kind of error comes."""

    def fails(candidate: Program) -> bool:
        try:
            check(candidate, PLANNERS[plan], seed)
        except Exception as other:  # noqa: BLE001 - whatever it is
            return type(other) is type(error)
        return False

    why = f"{type(error).__name__}: {error}"[:300]
    smallest = shrunk(program, fails) if shrinks else program
    return {"seed": seed, "plan": plan, "why": why, "program": str(smallest)}


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

    def add(self, other: Swept) -> None:
        self.graphs += other.graphs
        self.lines += other.lines
        self.kernels += other.kernels
        self.failed += other.failed
        self.operations.update(other.operations)


def swept(seeds: Sequence[int], modelled_of: int, shrinks: bool) -> Swept:
    """Runs the programs of these seeds, the modelled plan only of every so many-th."""
    torch.set_num_threads(1)
    found = Swept(seeds[0])
    for seed in seeds:
        program = generate(random.Random(seed).randrange, seed)
        found.graphs += 1
        found.lines += len(program.lines)
        found.operations.update(
            name for _, text in program.lines for name in re.findall(r"\.([a-z_]\w*)\(", text)
        )
        for name, planner in PLANNERS.items():
            if name == "modelled" and seed % modelled_of:
                continue
            try:
                found.kernels += check(program, planner, seed)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
                found.failed.append(_failure(program, name, seed, error, shrinks=shrinks))
    return found


CHUNK = 10
"""Programs that a process runs before it tells of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random programs by our kernels, against float64.")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--modelled", type=int, default=1, help="only of every so many-th graph")
    parser.add_argument("--failures", type=Path, default=Path("failed_graphs.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: interpreter")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after so many")
    parser.add_argument("--done", type=Path, help="of which seeds ran: read first, then added to")
    parser.add_argument("--whole", action="store_true", help="do not make failures smaller")
    given = parser.parse_args(arguments)
    end = given.seed + given.graphs
    ran = given.done.read_text().split() if given.done and given.done.exists() else []
    chunks = [range(s, min(s + CHUNK, end)) for s in range(given.seed, end, CHUNK)]
    chunks = [c for c in chunks if _told(c[0], len(c)) not in ran]
    total, start = Swept(), time.monotonic()
    for found in _each(chunks, given.modelled, not given.whole, given.jobs, start + given.seconds):
        total.add(found)
        if given.done:
            with given.done.open("a") as file:
                print(_told(found.first, found.graphs), file=file)
        for failure in found.failed:
            print("seed {seed}, {plan}: {why}\n{program}".format(**failure), flush=True)
        if found.failed:
            given.failures.write_text(json.dumps(total.failed, indent=1))
        if total.graphs % (10 * CHUNK) == 0:
            told = f"{total.graphs} graphs, {total.kernels} kernels, {len(total.failed)} failed"
            print(f"{told}, {time.monotonic() - start:.0f} s", flush=True)
    print(", ".join(f"{name} {count}" for name, count in total.operations.most_common()))
    told = f"{total.graphs} graphs of {total.lines} operations, {total.kernels} kernels"
    print(f"{told}, {len(total.failed)} failed")
    return 1 if total.failed else 0


def _told(first: int, count: int) -> str:
    """Seeds as a line of the file of those that ran."""
    return f"{first}-{first + count - 1}"


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
