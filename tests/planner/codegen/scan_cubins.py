"""Compiles the kernels of gated scans at full size, held and in loops, by the model's best configs
of some hundred, for an H200. No GPU is needed. Prints JSON: what the compiler made of each.

    TRITON_INTERPRET=0 python tests/planner/codegen/scan_cubins.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from corpus import graph_of
from few_looks import rank_few
from fusionplan.planner.config import LOOP, NATURAL, Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import Target, compile_kernel, resources
from fusionplan.planner.space.space import space_of

STEP = """
%0 = input() : float32[]
%1 = input() : float32[]
%2 = input() : float32[]
%3 = input() : float32[]
%4 = aten.mul.Tensor(%0, %2) : float32[]
%5 = aten.mul.Tensor(%2, %1) : float32[]
%6 = aten.add.Tensor(%5, %3) : float32[]
return %4, %6
"""


def recurrence(a, k):
    """h = a * h + k along the second dimension."""
    given = [a.float().movedim(1, 0), k.float().movedim(1, 0)]
    return torch.ops.fusionplan.associative_scan.default(given, STEP, 1).movedim(0, 1) * 2


CASES = {
    "rows": ((8192, 4096), lambda x, g: x.cumsum(-1) * torch.sigmoid(g)),
    "columns": ((64, 4096, 64), lambda x, g: x.cumsum(1) * g),
    "turned": ((8192, 4096), lambda x, g: (x * g).flip(-1).cumsum(-1).flip(-1) * 2),
    "recurrence": ((64, 4096, 64), lambda x, g: recurrence(torch.sigmoid(x), g)),
    "exponentials": ((8192, 4096), lambda x, g: x.logcumsumexp(-1) * g),
    "products": ((8192, 4096), lambda x, g: x.cumprod(-1) * g),
}


def whole_blocks():
    """Several rows of float32 in a loop of whole blocks, of which nothing is left at the end."""
    config = Config((("r0", 32), ("x0", 4)), reduction="loop", num_warps=1)
    for function in (lambda x: x.cumsum(-1), lambda x: x.cumprod(-1)):
        (kernel,) = lower(graph_of(function, [torch.empty(64, 128)]), config).kernels
        used = resources(compile_kernel(kernel, Target()))
        yield {
            "case": f"whole blocks {kernel.name}",
            "layout": "loop",
            "registers": used.registers,
            "spill_bytes": used.spill_bytes,
        }


def main() -> None:
    rank_few(setattr)
    found = [*whole_blocks()]
    for name, (shape, function) in CASES.items():
        for dtype in (torch.bfloat16, torch.float32):
            inputs = [torch.empty(shape, dtype=dtype) for _ in range(2)]
            group = graph_of(function, inputs)
            space = space_of(group, H200)
            best = {}
            for config, cost in space.seeds(60):
                best.setdefault(config.layout, (config, cost))
            for layout in (NATURAL, LOOP):
                if layout not in best:
                    continue
                config, cost = best[layout]
                (kernel,) = lower(group, config).kernels
                used = resources(compile_kernel(kernel, Target()))
                found.append(
                    {
                        "case": f"{name} {dtype}",
                        "layout": layout.name,
                        "config": str(config),
                        "modelled_us": round(cost.seconds * 1e6, 1),
                        "registers": used.registers,
                        "spill_bytes": used.spill_bytes,
                        "shared_bytes": used.shared_bytes,
                    }
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
