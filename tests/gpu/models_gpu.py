"""Whole models on a real GPU by the model's plan, untuned: are they right, do our kernels run?

By hand, with transformers and timm installed: python tests/gpu/models_gpu.py OUT.json [NAME ...]
--size tiny: small models of two layers, for a first look (with TRITON_INTERPRET=1 on the CPU too).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from fusionplan.bench.whole_models import (
    MODELS,
    ModelCase,
    ModelKind,
    ModelSize,
    distance,
    is_right,
    step_of,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SECONDS = 220.0
"""After so many no further model is begun."""


def one(
    make: Callable[[ModelSize], ModelCase], stage: ModelKind, size: ModelSize
) -> dict[str, Any]:
    """A model in one stage: how far from eager, how many kernels of ours, what was told."""
    from fusionplan import executors, plans
    from fusionplan.backend import planner

    torch._dynamo.reset()
    step = step_of(make, stage, DEVICE, size)
    wide = step.in_float32()
    exact = wide.results(wide.module)
    eager = step.results(step.module)
    compiled = torch.compile(
        step.module, backend=planner, options={"on_miss": "model", "evidence": "any"}, dynamic=False
    )
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        mine = step.results(compiled)
    seconds = time.monotonic() - start
    error, own = distance(mine, eager), distance(eager, exact)
    ours = executors(compiled)
    kernels = sum(r.kernels_per_call for r in ours)
    warned = [str(w.message) for w in told if "fusionplan" in str(w.message)]
    return {
        "ok": is_right(error, own) and kernels > 0 and not warned,
        "error": error,
        "eager_error": own,
        "graphs": len(plans(compiled)),
        "kernels": kernels,
        "calls": sum(r.calls for r in ours),
        "first_call_s": seconds,
        "warnings": warned,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--size", choices=get_args(ModelSize), default="whole")
    asked = parser.parse_args()
    os.environ["PLANNER_STORE"] = str(Path(tempfile.mkdtemp()) / "none.db")
    started, results = time.monotonic(), {}
    print(f"{'model':12} {'stage':10} ok   error    eager's  graphs kernels first call")
    for name in asked.names or MODELS:
        for stage in ("inference", "training"):
            if time.monotonic() - started > SECONDS:
                results[f"{name} {stage}"] = {"ok": False, "exception": "no time left"}
                print(f"{name:12} {stage:10} left out: {SECONDS:g} s are over")
                continue
            try:
                found = one(MODELS[name], stage, asked.size)
            except Exception as error:  # noqa: BLE001 - told, and the next model tried
                found = {"ok": False, "exception": f"{type(error).__name__}: {error}"[:2000]}
                found["traceback"] = traceback.format_exc()[-4000:]
                print(f"{name:12} {stage:10} FAILED {found['exception'][:200]}", flush=True)
            else:
                print(
                    f"{name:12} {stage:10} {'yes' if found['ok'] else 'NO ':4} "
                    f"{found['error']:.2e} {found['eager_error']:.2e} {found['graphs']:6} "
                    f"{found['kernels']:7} {found['first_call_s']:8.1f} s",
                    *found["warnings"],
                    sep="\n    ",
                    flush=True,
                )
            results[f"{name} {stage}"] = found
            asked.out.write_text(json.dumps(results, indent=1) + "\n")
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
    return 0 if all(r["ok"] for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
