"""Runs random programs by our kernels and compares them with float64.

    python tests/planner/graph_sweep.py --graphs 2000 --seed 0 --failures failed.json

makes one program of each seed from --seed on, runs it by two plans, and writes what fails, made
smaller, to the file. No GPU is needed: kernels run in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path[:0] = [str(Path(__file__).parents[1])]

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
from oracle import as_tuple, assert_close
from random_graphs import generate
from random_programs import Program
from torch._dynamo.backends.common import aot_autograd
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
        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=self._compile, decompositions=decompositions())
        # One graph, or an error: what Dynamo leaves to eager would pass for right.
        self.call = torch.compile(
            self.program.function(), backend=backend, dynamic=False, fullgraph=True
        )

    def _compile(self, gm: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        with _disable_current_modes():  # as the dispatcher does: numbers are computed on the way
            captured = capture(gm)
            assert key(parse(str(captured.graph))) == key(captured.graph)
            plan = self.planner(captured.graph)
            executor = Executor(captured, plan, torch.device("cpu"))
        self.groups += len(plan.groups)
        self.kernels += executor.kernels_per_call
        executor.boxed._boxed_call = True  # type: ignore[attr-defined]
        return executor.boxed

    def results(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Ours, the exact one and eager's, of each output."""
        data = self.program.data(seed)
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


def _failure(program: Program, plan: str, seed: int, error: Exception) -> dict[str, object]:
    """A failure as data, its program made smaller as long as the same kind of error comes."""

    def fails(candidate: Program) -> bool:
        try:
            check(candidate, PLANNERS[plan], seed)
        except Exception as other:  # noqa: BLE001 - whatever it is
            return type(other) is type(error)
        return False

    why = f"{type(error).__name__}: {error}"[:300]
    return {"seed": seed, "plan": plan, "why": why, "program": str(shrunk(program, fails))}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random programs by our kernels, against float64.")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--modelled", type=int, default=1, help="only of every so many-th graph")
    parser.add_argument("--failures", type=Path, default=Path("failed_graphs.json"))
    given = parser.parse_args(arguments)
    failed: list[dict[str, object]] = []
    kernels, lines, start = 0, 0, time.time()
    for seed in range(given.seed, given.seed + given.graphs):
        program = generate(random.Random(seed).randrange, seed)
        lines += len(program.lines)
        for name, planner in PLANNERS.items():
            if name == "modelled" and seed % given.modelled:
                continue
            try:
                kernels += check(program, planner, seed)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
                failed.append(_failure(program, name, seed, error))
                given.failures.write_text(json.dumps(failed, indent=1))
                print("seed {seed}, {plan}: {why}\n{program}".format(**failed[-1]), flush=True)
        if (seed + 1) % 50 == 0:
            print(f"seed {seed}: {kernels} kernels, {time.time() - start:.0f} s", flush=True)
    print(f"{given.graphs} graphs of {lines} operations, {kernels} kernels, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
