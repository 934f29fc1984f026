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
from fusionplan.planner.runtime.machine_code.compile import Target, compilations, compile_kernel
from torch._dynamo.backends.common import aot_autograd

SIZES = {"aligned": (1008, 528, 1024), "ragged": (1001, 1000, 515), "huge": (2**31 + 8,)}


ROWS = (1001, 1000, 515, 2041)
"""Lengths that 16 does not divide."""


def graphs(sizes, function=lambda x: x * 2 + x.relu(), rows=()):
    """A function of one tensor, the last of whose sizes is each of these. rows: those before."""
    found = []

    def keep(gm, _):
        symbolic = Symbolic(gm)
        found.extend(symbolic.at([size])[0].graph for size in sizes)
        return gm

    x = torch.randn(*rows, 100, dtype=torch.bfloat16 if rows else torch.float32)
    torch._dynamo.mark_dynamic(x, len(rows))
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, decompositions=decompositions())
    with torch.no_grad():
        torch.compile(function, backend=backend)(x)
    return found


def compiled(graphs, config):
    kernels = []
    for graph in graphs:
        nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
        program = lower(subgraph(graph, nodes).graph, config)
        kernels += [compile_kernel(kernel, Target()) for kernel in program.kernels]
    return kernels


def report(sizes):
    before = compilations()
    kernels = compiled(graphs(sizes), Config((("x0", 1024),)))
    return {
        "sizes": len(kernels),
        "compiled": compilations() - before,
        "wide": all("ld.global.v4" in k.kernel.asm["ptx"] for k in kernels),
        "types": sorted({s.kind for k in kernels for s in k.source.scalars}),
    }


def of_rows():
    """A softmax of 64 rows. loads: of fewer than 16 bytes, in each kernel."""
    before = compilations()
    made = graphs(ROWS, lambda x: x.softmax(-1), (64,))
    kernels = compiled(made, Config((("r0", 2048), ("x0", 1)), num_warps=4))
    texts = {kernel.kernel.asm["ptx"] for kernel in kernels}
    narrow = [text.count("ld.global") - text.count("ld.global.v4.b32") for text in texts]
    return {
        "sizes": len(kernels),
        "compiled": compilations() - before,
        "loads": narrow,
        "wide": all("st.global.v4.b32" in text for text in texts),
    }


found = {name: report(sizes) for name, sizes in SIZES.items()}
json.dump(found | {"rows": of_rows()}, sys.stdout)
