"""The workloads of bench/contractions.py at their full sizes, without data, and what the model
plans for them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from corpus import graph_of
from fusionplan.bench import contractions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.costs.device import BUILTIN, DeviceProfile
from fusionplan.planner.covers.cover import modelled_plan
from fusionplan.planner.graph.graph import Graph, key
from fusionplan.planner.graph.ops import Contraction, is_compute, is_free, is_input, row
from fusionplan.planner.groups.group import is_copied, subgraph
from fusionplan.planner.lower import lower
from fusionplan.planner.plan import GroupPlan, Plan

MODELS: dict[str, type[torch.nn.Module]] = {
    "linear_smallk_gelu": contractions.LinearGELU,
    "linear_relu": contractions.LinearReLU,
    "matmul_rowmax": contractions.MatmulRowMax,
    "splade_head": contractions.SpladeHead,
    "linear_cross_entropy": contractions.LinearCrossEntropy,
    "attn_naive_softcap_alibi_causal": contractions.AttentionSoftcap,
    "attn_naive": contractions.Attention,
    "decode_attention": contractions.DecodeAttention,
    "attn_out_residual_ln": contractions.AttentionOutput,
    "swiglu_mlp": contractions.SwiGLU,
    "colbert_maxsim": contractions.ColBERTMaxSim,
    "contrastive_loss": contractions.ContrastiveLoss,
    "rbf_matvec": contractions.RBFProduct,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A workload and its plan for an H200."""

    graph: Graph
    plan: Plan

    def fused(self) -> list[GroupPlan]:
        """The groups with a product of matrices and more."""
        return [g for g in self.plan.groups if self.contractions(g.nodes) and not self.lone(g)]

    def lone(self, group: GroupPlan) -> bool:
        """Whether a group is one product, which might as well be the vendor's."""
        compute = [n for n in group.nodes if is_compute(self.graph.nodes[n])]
        return compute == self.contractions(group.nodes) and len(compute) == 1

    def contractions(self, nodes: tuple[int, ...]) -> list[int]:
        return [n for n in nodes if isinstance(row(self.graph.nodes[n]), Contraction)]

    def program(self, group: GroupPlan) -> Program:
        assert group.config is not None
        found = lower(subgraph(self.graph, group.nodes).graph, group.config)
        assert isinstance(found, Program), found
        return found

    def kernels(self) -> int:
        """Launches, those of lone products left out."""
        groups = (g for g in self.plan.groups if not self.lone(g))
        return sum(len(self.program(group).kernels) for group in groups)

    def buffers(self) -> Iterator[tuple[str, int]]:
        """Name and bytes of all that a run allocates besides its outputs: what passes between
        groups and operations by ATen, and the temporaries of a group's kernels."""
        ends = {self._computed(o) for o in self.graph.outputs if o is not None}
        stored = {n.id for n in self.graph.nodes if is_compute(n)}
        for group in self.plan.groups:
            stored -= set(group.nodes)
            stored |= {self._computed(n) for n in subgraph(self.graph, group.nodes).outputs}
            for number, kept in enumerate(self.program(group).temporaries):
                yield f"temporary {number} of group {group.nodes[0]}", kept.nbytes
        for node in sorted(stored - ends):
            held = self.graph.nodes[node]
            if held.type is not None and not is_copied(self.graph, node) and not is_input(held):
                yield held.name, held.type.nbytes

    def _computed(self, node: int) -> int:
        """What a chain of views starts from."""
        while is_free(self.graph.nodes[node]) and self.graph.nodes[node].inputs:
            node = self.graph.nodes[node].inputs[0]
        return node


@cache
def planned(name: str, device: str = "h200") -> Planned:
    with torch.device("meta"):
        model = MODELS[name]()
        graph = graph_of(model, getattr(contractions, f"{name}_inputs")("meta"))
    return Planned(graph, _plan(graph, BUILTIN[device]))


def _plan(graph: Graph, device: DeviceProfile) -> Plan:
    """Made once in a run of the tests, whichever of its processes asks first."""
    folder = os.environ.get("PLANNER_TEST_SHARED")
    if folder is None:
        return modelled_plan(graph, device)
    file = Path(folder) / f"{key(graph)} {device.key}.plan"
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(modelled_plan(graph, device).to_json()))
        part.replace(file)
    return Plan.from_json(json.loads(file.read_text()))
