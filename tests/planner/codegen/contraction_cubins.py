"""Compiles the kernels of the workloads in bench/contractions.py, at their full sizes, by the
model's best configs, for an H200. No GPU is needed. Prints a table of what the compiler made:

    TRITON_INTERPRET=0 python tests/planner/codegen/contraction_cubins.py [--json] [NAME ...]

--json: the same as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from corpus import BERT_EMBEDDINGS, bert_embeddings, graph_of
from full_size import MODELS, Planned, planned
from fusionplan.planner.costs.device import H200
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.plan import GroupPlan
from fusionplan.planner.runtime.machine_code.compile import Target, compile_kernel, resources
from kept_kernels import kept


@dataclass(frozen=True, slots=True)
class Cubin:
    """registers and spill_bytes are of a thread, shared_bytes of a block. products: matrix
    products of the group; tensor_core: whether the code has instructions for them."""

    workload: str
    kernel: str
    config: str
    products: int
    tensor_core: bool
    registers: int
    spill_bytes: int
    shared_bytes: int
    cubin_bytes: int


def cubins(name: str) -> Iterator[Cubin]:
    """Every kernel of a workload's groups with a product."""
    found = planned(name)
    for group in found.fused():
        yield from _cubins(name, found, group)


def _cubins(name: str, found: Planned, group: GroupPlan) -> Iterator[Cubin]:
    for kernel in found.program(group).kernels:
        compiled = compile_kernel(kernel, Target())
        used = resources(compiled)
        yield Cubin(
            name,
            kernel.name,
            str(group.config),
            len(found.contractions(group.nodes)),
            "mma" in compiled.kernel.asm["ptx"],
            used.registers,
            used.spill_bytes,
            used.shared_bytes,
            used.cubin_bytes,
        )


GATED = [
    torch.empty(shape, dtype=torch.bfloat16, device="meta")
    for shape in ((65536, 128), (512, 128), (65536, 512))
]


def gated(x: torch.Tensor, w: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w.t()) * gate.float()


def in_parts() -> Iterator[Cubin]:
    """A product with GELU and a gate, walking over wide tiles, its epilogue whole and halved."""
    graph = graph_of(gated, GATED)
    plan = modelled_plan(graph, H200)
    (group,) = (g for g in plan.groups if g.config is not None)
    assert group.config is not None
    blocks = (("r0", 64), ("x0", 128), ("x1", 256))
    walking = replace(group.config, programs=132, reduction="loop")
    wide = replace(walking, blocks=blocks, num_warps=8, num_stages=3)
    for parts in (1, 2):
        config = replace(wide, subtiles=parts)
        yield from _cubins(f"gelu in {parts}", Planned(graph, plan), replace(group, config=config))


def by_index() -> Iterator[Cubin]:
    """Three embeddings and the layer norm of their sum."""
    graph = graph_of(bert_embeddings, BERT_EMBEDDINGS)
    plan = modelled_plan(graph, H200)
    yield from _cubins("embeddings", Planned(graph, plan), plan.groups[0])


def table(kernels: list[Cubin]) -> str:
    lines = [f"{'workload':32s} {'registers':>9s} {'spill':>6s} {'shared':>7s}  config"]
    for k in kernels:
        lines.append(
            f"{k.workload:32s} {k.registers:9d} {k.spill_bytes:6d} {k.shared_bytes:7d}  {k.config}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with kept():
        found = [kernel for name in given.names or MODELS for kernel in cubins(name)]
        found += [*in_parts(), *by_index()]
    print(json.dumps([asdict(k) for k in found]) if given.json else table(found))


if __name__ == "__main__":
    main()
