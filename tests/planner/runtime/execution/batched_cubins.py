"""Compiles the kernel of an optimiser's step of 60 tensors for an H200, without a GPU:

    TRITON_INTERPRET=0 python tests/planner/runtime/execution/batched_cubins.py

Prints JSON: the registers of a thread, and the loads and stores of 16 bytes and of fewer."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from corpus import graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.flat import flat
from fusionplan.planner.plan import GroupPlan, Plan
from fusionplan.planner.runtime.execution.batched import batches
from fusionplan.planner.runtime.machine_code.compile import Target, compile_kernel, resources
from kept_kernels import kept

SIZES = [1 << (10 + i % 12) for i in range(60)]


def step(*tensors):
    results = []
    for p, g, m, v in zip(*(tensors[i::4] for i in range(4)), strict=True):
        mean, square = m * 0.9 + g * 0.1, v * 0.999 + g * g * 1e-3
        results += [mean, square, p - 1e-3 * mean / (square.sqrt() + 1e-8)]
    return results


def main() -> None:
    inputs = [torch.empty(size, device="meta") for size in SIZES for _ in range(4)]
    graph = graph_of(step, inputs)
    made = [i for i, node in enumerate(graph.nodes) if i not in graph.inputs]
    each = len(made) // len(SIZES)
    config = Config((("x0", 1024),))
    groups = tuple(
        GroupPlan(tuple(made[i : i + each]), "triton", "", config)
        for i in range(0, len(made), each)
    )
    (batch,) = batches(graph, Plan("", "", (), "modelled", groups), flat)
    assert len(batch.groups) == len(SIZES)
    with kept():
        compiled = compile_kernel(batch.program.kernels[1], Target())
    used, found = resources(compiled), {"wide loads": 0, "wide stores": 0, "loads": 0, "stores": 0}
    for kind, way in re.findall(r"\b(ld|st)\.global([\w.:]*)", compiled.kernel.asm["ptx"]):
        is_wide = ".v4.b32" in way or ".v2.b64" in way
        found[("wide " if is_wide else "") + ("loads" if kind == "ld" else "stores")] += 1
    found |= {"registers": used.registers, "spill_bytes": used.spill_bytes}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
