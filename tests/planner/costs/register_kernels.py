"""Compiles generated kernels for an H200 (no GPU needed) and prints, as JSON, what the model
expected of each beside what the compiler made of it. Run in a process of its own, with
TRITON_INTERPRET=0: `register_kernels.py COUNT SEED`, or `register_kernels.py FILE` for the groups
and configs that a file names."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from corpus import (
    HALF,
    Function,
    batch_norm_relu,
    graph_of,
    group_norm_silu,
    layer_norm_residual,
    rotary,
    tensor,
)
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.costs.registers import features, pressure
from fusionplan.planner.costs.tile_cache import scheduled
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.planner.runtime.machine_code.compile import Target, compile_kernel, resources
from fusionplan.planner.space.space import Space, space_of
from fusionplan.planner.tiles.blocks import Blocks
from kept_kernels import kept
from pydantic import TypeAdapter

GROUPS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "bias_relu_log": (
        lambda x, b: torch.log(torch.relu(x + b)),
        [tensor(4096, 4096, dtype=HALF), tensor(4096, dtype=HALF)],
    ),
    "gelu": (F.gelu, [tensor(4096, 4096)]),
    "four_inputs": (
        lambda a, b, c, d: torch.sigmoid(a) * b + torch.tanh(c) * d,
        [tensor(2048, 2048) for _ in range(4)],
    ),
    "with_own_transpose": (lambda x: torch.relu(x + x.t()), [tensor(4096, 4096)]),
    "softmax": (lambda x: torch.softmax(x, -1), [tensor(4096, 4096)]),
    "softmax_half": (lambda x: torch.softmax(x, -1), [tensor(4096, 8192, dtype=HALF)]),
    "layer_norm": (
        layer_norm_residual,
        [tensor(*shape, dtype=HALF) for shape in ((4096, 4096), (4096, 4096), (4096,), (4096,))],
    ),
    "layer_norm_float": (
        layer_norm_residual,
        [tensor(*shape) for shape in ((4096, 2048), (4096, 2048), (2048,), (2048,))],
    ),
    "rms_norm": (
        lambda x, w: F.rms_norm(x, (16384,), w),
        [tensor(2048, 16384), tensor(16384)],
    ),
    "group_norm": (group_norm_silu, [tensor(16, 64, 32, 32), tensor(64), tensor(64)]),
    "batch_norm": (batch_norm_relu, [tensor(16, 64, 28, 28), tensor(64), tensor(64)]),
    "columns": (lambda x: (torch.exp(x)).sum(0), [tensor(4096, 2048)]),
    "several": (
        lambda x: (x.mean(-1), x.amax(-1), torch.relu(x)),
        [tensor(4096, 4096)],
    ),
    "rotary": (
        rotary,
        [tensor(*shape, dtype=HALF) for shape in ((4, 32, 1024, 128), (1024, 128), (1024, 128))],
    ),
    "sum_of_all": (lambda x: (x * x).sum(), [tensor(1024, 4096)]),
}

SPILLING: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "spilling_rows": (lambda x: x / x.sum(-1, keepdim=True), [tensor(4096, 10240)])
}
"""A row far too long for the registers of one warp, with little to do: the compiler takes 1.2 s for
it, and would take 6 for a softmax."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """registers and spill_bytes are the compiler's, the others the model's."""

    name: str
    config: Config
    features: list[tuple[float, ...]]
    predicted: int
    predicted_spill: int
    registers: int
    spill_bytes: int


def whole(graph: Graph) -> Graph:
    nodes = (n.id for n in graph.nodes if is_compute(n))
    return subgraph(graph, with_free_nodes(graph, nodes)).graph


def sample(group: Graph, pick: random.Random, each: int) -> Iterator[Config]:
    """Configs of every layout that the model lets through to the compiler, as many with 24 or
    more elements a thread as with fewer."""
    space = space_of(group, H200)
    assert isinstance(space, Space), space
    by_layout: dict[object, list[Config]] = {}
    for config in space.enumerate():
        heavy = _per_thread(space, config) >= 24
        kind = (config.tiling, config.reduction, config.split > 1, heavy)
        by_layout.setdefault(kind, []).append(config)
    for configs in by_layout.values():
        pick.shuffle(configs)
        good = (c for c in configs if not isinstance(space.judge(c), Refusal))
        yield from islice(good, each)


def _per_thread(space: Space, config: Config) -> float:
    layout = next(
        each
        for each in space.schedules
        if (each.tiling, each.reduction, each.split)
        == (config.tiling, config.reduction, config.split)
    )
    nest = space.schedules[layout].kernels[0].nest
    return nest.largest_tile(Blocks.of(nest, config.blocks).sizes) / (32 * config.num_warps)


def measured(name: str, group: Graph, config: Config) -> Iterator[Kernel]:
    schedule = schedule_group(group, config.layout)
    program = lower(group, config)
    assert not isinstance(schedule, Refusal)
    assert not isinstance(program, Refusal)
    for number, (kernel, source) in enumerate(zip(schedule.kernels, program.kernels, strict=True)):
        tiled, walks = scheduled(kernel.nest, config), config.programs > 0
        registers, spill = pressure(tiled, config.num_warps, False, walks)
        found = resources(compile_kernel(source, Target()))
        yield Kernel(
            f"{name}/{number}",
            config,
            features(tiled, config.num_warps, walks),
            registers,
            spill,
            found.registers,
            found.spill_bytes,
        )


def drawn(graphs: dict[str, Graph], seed: int) -> list[tuple[str, Config]]:
    pick = random.Random(seed)
    wanted = [
        (name, config)
        for name, group in graphs.items()
        if name not in SPILLING
        for config in sample(group, pick, 4)
    ]
    pick.shuffle(wanted)
    spilling = [Config((("x0", 1),), num_warps=1)]
    return [*zip(SPILLING, spilling, strict=True), *wanted]


def named(file: str) -> list[tuple[str, Config]]:
    entries = json.loads(Path(file).read_text())
    return [(name, TypeAdapter(Config).validate_python(config)) for name, config in entries]


def main(arguments: list[str]) -> None:
    groups = GROUPS | SPILLING
    graphs = {name: whole(graph_of(*given)) for name, given in groups.items()}
    total, wanted = sys.maxsize, []
    if len(arguments) == 1:
        wanted = named(arguments[0])
    else:
        total, wanted = int(arguments[0]), drawn(graphs, int(arguments[1]))
    found: list[Kernel] = []
    with kept():
        for name, config in wanted:
            found += measured(name, graphs[name], config)
            if len(found) >= total:
                break
    json.dump([asdict(kernel) for kernel in found], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
