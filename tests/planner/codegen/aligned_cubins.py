"""Compiles kernels over rows that begin anywhere for an H200, without a GPU, and counts how wide
their accesses are:

    TRITON_INTERPRET=0 python tests/planner/codegen/aligned_cubins.py

Prints JSON: of each case the loads and stores of 16 bytes in the PTX, and all the others."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from corpus import graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.graph.graph import Graph
from fusionplan.planner.graph.sizes import size
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import Target, compile_kernel
from graphs import Builder
from kept_kernels import kept
from oracle import whole_group

EIGHT = Config((("x0", 8),), num_warps=8, num_stages=1)
HELD = Config((("x0", 1),), num_warps=8, num_stages=1)
WINDOWS = Config((("x0", 1), ("x1", 2048)), num_warps=8, num_stages=1)
LOOPED = Config((("r0", 4096), ("x0", 1)), num_warps=8, num_stages=1, reduction="loop")


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def log_of_sums(x):
    return torch.logsumexp(x, -1)


def copied(x):
    return x.clone(memory_format=torch.contiguous_format)


def biased(x, b):
    return x + b


def two_weights(x, first, second):
    return (torch.cat((first, second)).float() * x.float()).sum(-1)


CASES = {
    "softmax float32": (softmax, [(64, 50257)], torch.float32, LOOPED),
    "softmax bfloat16": (softmax, [(64, 50257)], torch.bfloat16, LOOPED),
    "softmax, an odd number of rows": (softmax, [(63, 4099)], torch.bfloat16, HELD),
    "layer norm bfloat16": (layer_norm, [(64, 4099), (4099,), (4099,)], torch.bfloat16, HELD),
    "layer norm float32": (layer_norm, [(64, 50257), (50257,), (50257,)], torch.float32, LOOPED),
    "layer norm of many": (layer_norm, [(32768, 4099), (4099,), (4099,)], torch.bfloat16, HELD),
    "logsumexp bfloat16": (log_of_sums, [(64, 131071)], torch.bfloat16, LOOPED),
    "copy of longer rows": (copied, [(64, 50264)], torch.bfloat16, WINDOWS),
    "two weights": (two_weights, [(2048,), (48, 2048), (24, 2048)], torch.bfloat16, EIGHT),
    "bias": (biased, [(64, 50257), (50257,)], torch.bfloat16, WINDOWS),
}
ANY = {"softmax of any length": (64, 4099)}
"""Of bfloat16, a length that varies."""
WINDOW = {"copy of longer rows": 50257}
"""Elements of each row that are read, where they are not all."""


def varying(rows: int, columns: int) -> Graph:
    b = Builder()
    x = b.input(rows, size(columns, (1009, 2027)), dtype="bfloat16")
    top = b.op("amax.default", x, (1,), True, shape=(rows, 1))
    e = b.op("exp.default", b.op("sub.Tensor", x, top))
    return b.graph(b.op("div.Tensor", e, b.op("sum.dim_IntList", e, (1,), True, shape=(rows, 1))))


def case(name: str) -> tuple[Graph, Config]:
    if name in ANY:
        return varying(*ANY[name]), HELD
    function, shapes, dtype, config = CASES[name]
    inputs = [torch.empty(shape, device="meta", dtype=dtype) for shape in shapes]
    inputs = [x[:, : WINDOW[name]] for x in inputs] if name in WINDOW else inputs
    return graph_of(function, inputs), config


def counts(name: str) -> dict[str, int]:
    graph, config = case(name)
    found = {"wide loads": 0, "loads": 0, "wide stores": 0, "stores": 0}
    for kernel in lower(whole_group(graph).graph, config).kernels:
        code = compile_kernel(kernel, Target()).kernel.asm
        if name in ANY:  # What no thread stores the PTX still has.
            for word, mnemonic in (("loads", "LDG"), ("stores", "STG")):
                ways = re.findall(rf"\b{mnemonic}\.E([.\w]*)", code["sass"])
                found[f"wide {word}"] += sum("128" in way for way in ways)
                found[word] += sum("128" not in way for way in ways)
            continue
        ptx = code["ptx"]
        for kind, way in re.findall(r"\b(ld|st)\.global([\w.:]*)", ptx):
            is_wide = ".v4.b32" in way or ".v2.b64" in way
            word = "loads" if kind == "ld" else "stores"
            found[f"wide {word}" if is_wide else word] += 1
    return found


def main() -> None:
    with kept():
        print(json.dumps({name: counts(name) for name in (*CASES, *ANY)}))


if __name__ == "__main__":
    main()
