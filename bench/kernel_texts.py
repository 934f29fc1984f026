"""`python -m fusionplan.bench.kernel_texts`: every kernel of a corpus, written down to be compared.

    python -m fusionplan.bench.kernel_texts write FILE [CASE ...]
    python -m fusionplan.bench.kernel_texts compare OLD NEW

`write` plans the workloads and the graphs of `planning_models` for an H200, takes configs of every
layout of their groups, and writes a line of JSON for each: the text of its kernels, for the GPU and
for Triton's interpreter, and what the cost model says. `compare` names what differs between two
such files: a change of the code generator or of the model that should change nothing is held
against the commit before it. No GPU is used.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..planner.config import Config
from ..planner.costs.device import H200
from ..planner.covers.cover import modelled_plan, partition
from ..planner.errors import Refusal
from ..planner.graph.graph import Graph, key
from ..planner.groups.group import subgraph
from ..planner.lower import lower
from ..planner.space.space import Space, space_of
from ..tuner.capture.capture_model import capture_model
from .planning import captured
from .planning_models import CASES
from .workloads import WORKLOADS, make

LARGEST = 250
"""Operations of a graph that is also planned, besides being cut into its largest groups."""
OF_EACH = 3
"""Configs drawn of every layout, each also with other numbers."""
SHOWN = 3
"""Differences of a kind that are printed whole."""

TextRecord = dict[str, str]


def graphs(names: Sequence[str]) -> Iterator[tuple[str, Graph]]:
    """The captured graphs of these workloads and planning cases."""
    for name in names:
        if name in CASES:
            yield from captured(name)
            continue
        model, call = make(WORKLOADS[name], "meta")
        torch._dynamo.reset()
        for part in capture_model(model, call, training=False).parts:
            yield name, part.captured.graph


def groups(graph: Graph) -> dict[str, Graph]:
    """The largest groups of a graph, and those of its plan, by their keys."""
    nodes = list(partition(graph, frozenset()))
    if len(graph.nodes) <= LARGEST:
        nodes += [g.nodes for g in modelled_plan(graph, H200).groups if g.config is not None]
    found = [subgraph(graph, each).graph for each in nodes]
    return {key(group): group for group in found}


def configs(space: Space, seed: str) -> Iterator[Config]:
    """The first config of every layout and a few others, each also with other numbers."""
    pick, seen = random.Random(seed), set[Config]()
    by_layout: dict[object, list[Config]] = {}
    for config in space.enumerate():
        by_layout.setdefault(config.layout, []).append(config)
    for every in by_layout.values():
        drawn = [every[0], *pick.sample(every, min(OF_EACH, len(every)))]
        for config in (*drawn, *(_varied(space, each, pick) for each in drawn)):
            if config not in seen:
                seen.add(config)
                yield config


def _varied(space: Space, config: Config, pick: random.Random) -> Config:
    choice = space.choice(config)
    for dimension in space.dimensions:
        is_meant = dimension.name in choice and choice["layout"] in dimension.layouts
        if is_meant and dimension.name != "layout" and pick.random() < 0.5:
            choice[dimension.name] = pick.choice(dimension.values)
    return space.config(choice)


def record(name: str, space: Space, config: Config) -> TextRecord:
    """What is compared of one config of a group."""
    texts = {
        where: _texts(space.group, config, interpreted=where == "interpreter")
        for where in ("gpu", "interpreter")
    }
    return {"name": f"{name}: {config}", **texts, "model": repr(space.judge(config))}


def _texts(group: Graph, config: Config, interpreted: bool) -> str:
    program = lower(group, config, interpreted=interpreted)
    if isinstance(program, Refusal):
        return str(program)
    launches = [repr(replace(kernel, text="", plain=None)) for kernel in program.kernels]
    return "\n".join([*(kernel.text for kernel in program.kernels), *launches])


def written(names: Sequence[str]) -> Iterator[TextRecord]:
    """The records of a corpus."""
    for name, graph in graphs(names):
        for digest, group in groups(graph).items():
            space = space_of(group, H200)
            if isinstance(space, Space):
                for config in configs(space, digest):
                    yield record(f"{name} {digest[:12]}", space, config)


def differences(
    old: Mapping[str, TextRecord], new: Mapping[str, TextRecord]
) -> Iterator[tuple[str, str]]:
    """(what differs, how) of every pair of records."""
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            yield "missing", f"{name} is only in the {'new' if name in new else 'old'} file"
            continue
        for what in old[name]:
            before, after = (one[name][what].splitlines() for one in (old, new))
            if before != after:
                lines = difflib.unified_diff(before, after, lineterm="", n=0)
                yield what, "\n".join([name, *list(lines)[2:]])


def compared(old: Path, new: Path) -> int:
    """Prints what differs between two files. 0: nothing; 1: something."""
    counted: Counter[str] = Counter()
    before, after = (_read(file) for file in (old, new))
    for what, how in differences(before, after):
        counted[what] += 1
        if counted[what] <= SHOWN:
            print(f"{what}: {how}\n")
    told = ", ".join(f"{number} differ in {what}" for what, number in counted.items())
    print(f"{len(after)} kernels and configs: {told or 'no difference'}")
    return int(bool(counted))


def _read(file: Path) -> dict[str, TextRecord]:
    with file.open() as lines:
        return {one["name"]: one for one in map(json.loads, lines)}


def main(arguments: Sequence[str] | None = None) -> int:
    """0: written, or no difference; 1: a difference; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    write = actions.add_parser("write", help="write the kernels of a corpus to a file")
    write.add_argument("file", type=Path)
    write.add_argument("cases", nargs="*", metavar="CASE", help=", ".join((*WORKLOADS, *CASES)))
    compare = actions.add_parser("compare", help="what differs between two files")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    if options.action == "compare":
        return compared(options.old, options.new)
    for name in options.cases:
        if name not in WORKLOADS and name not in CASES:
            parser.error(f"{name!r} is no case: give {', '.join((*WORKLOADS, *CASES))}")
    found = 0
    with options.file.open("w") as file:
        for one in written(options.cases or (*WORKLOADS, *CASES)):
            found += file.write(json.dumps(one) + "\n") > 0
    print(f"{found} kernels and configs in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
