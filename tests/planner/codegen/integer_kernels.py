"""Compiles kernels of integers and booleans for an H200 (no GPU needed) and prints, as JSON, the
failures by operation and dtype. Run in a process of its own, with TRITON_INTERPRET=0."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus import Function, graph_of
from fusionplan.planner.config import Config
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.ops import is_compute
from fusionplan.planner.groups.group import subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import CompileFailed, Target, compile_kernel

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
OF_TWO: dict[str, Function] = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "maximum": torch.maximum,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
}
OF_ONE: dict[str, Function] = {
    "fmod_number": lambda x: x.fmod(7),
    "remainder_number": lambda x: x.remainder(7),
    "floor_divide_number": lambda x: x // 7,
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(1, 5),
}
OF_FLAGS: dict[str, Function] = {
    "add": torch.add,
    "add_nothing": lambda x, y: torch.add(x, y, alpha=False),
    "mul": torch.mul,
}


def failures(functions: Mapping[str, Function], count: int, dtype: str) -> dict[str, str]:
    """Why the compiler refuses the kernels of functions; "" where it does not. They are compiled
    one by one only where it refuses the kernel of them all: a capture each takes long."""

    def together(*inputs: torch.Tensor) -> list[object]:
        return [function(*inputs) for function in functions.values()]

    if not failure(together, count, dtype):
        return {f"{name} {dtype}": "" for name in functions}
    return {f"{name} {dtype}": failure(f, count, dtype) for name, f in functions.items()}


def failure(function: Function, count: int, dtype: str, block: int = 1024) -> str:
    """Why the compiler refuses the function's kernel; "" if it does not."""
    inputs = [torch.ones(2000, dtype=getattr(torch, dtype)) for _ in range(count)]
    graph = graph_of(function, inputs)
    nodes = with_free_nodes(graph, [n.id for n in graph.nodes if is_compute(n)])
    program = lower(subgraph(graph, nodes).graph, Config((("x0", block),)))
    assert not isinstance(program, Refusal), program
    assert program.kernels
    try:
        for kernel in program.kernels:
            compile_kernel(kernel, Target())
    except CompileFailed as error:
        return str(error)
    return ""


if __name__ == "__main__":
    found = failures(OF_FLAGS, 2, "bool")
    for dtype in INTEGERS:
        found |= failures(OF_TWO, 2, dtype) | failures(OF_ONE, 1, dtype)
    for dtype in ("bfloat16", "float32", "float64"):
        found |= failures({"fmod": torch.fmod}, 2, dtype)
    for block in (1, 2, 4):
        found[f"float uint8 of {block}"] = failure(lambda x: x.float() / 255, 1, "uint8", block)
        found[f"bits uint8 of {block}"] = failure(lambda x: (x >> 4).float() - 8, 1, "uint8", block)
    json.dump(found, sys.stdout)
