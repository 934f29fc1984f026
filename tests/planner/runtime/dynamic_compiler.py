"""Run by test_dynamic.py with the real compiler: one kernel for several sizes of an axis that
varies, without a GPU; prints what it found as JSON."""

import json
import sys

import torch
from fusionplan.planner.capture.capture import decompositions
from fusionplan.planner.capture.symbolic import Symbolic
from fusionplan.planner.config import Config
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.compile import Target, compilations, compile_kernel
from torch._dynamo.backends.common import aot_autograd

SIZES = {"aligned": (1008, 528, 1024), "ragged": (1001, 1000, 515), "huge": (2**31 + 8,)}


def graphs(sizes):
    """An elementwise function of one tensor of each of these sizes."""
    found = []

    def keep(gm, _):
        symbolic = Symbolic(gm)
        found.extend(symbolic.at([size])[0].graph for size in sizes)
        return gm

    x = torch.randn(100)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, decompositions=decompositions())
    with torch.no_grad():
        torch.compile(lambda x: x * 2 + x.relu(), backend=backend)(x)
    return found


def report(sizes):
    before, kernels = compilations(), []
    for graph in graphs(sizes):
        nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
        program = lower(subgraph(graph, nodes).graph, Config((("x0", 1024),)))
        kernels += [compile_kernel(kernel, Target()) for kernel in program.kernels]
    return {
        "sizes": len(kernels),
        "compiled": compilations() - before,
        "wide": all("ld.global.v4" in k.kernel.asm["ptx"] for k in kernels),
        "types": sorted({s.kind for k in kernels for s in k.source.scalars}),
    }


json.dump({name: report(sizes) for name, sizes in SIZES.items()}, sys.stdout)
