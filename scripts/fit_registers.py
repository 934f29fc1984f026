"""Fits the weights of planner/costs/registers.py to what the compiler really uses; needs no GPU.

    python scripts/fit_registers.py [KERNELS]

Compiles KERNELS (400 when not given; two of them take about a second) generated kernels for an
H200 and prints the weights. A kernel needs what its hungriest stretch needs, so the fit goes
round: choose each kernel's stretch by the weights so far, then least squares over those stretches,
errors in units of what the test allows (15% or 8 registers), large ones weighing less.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from fusionplan.planner.costs.registers import BELOW, FEATURES, FULL, NEAR, WEIGHTS, free

KERNELS = Path(__file__).resolve().parent.parent / "tests" / "planner" / "register_kernels.py"
SPILLS = 200  # Bytes above which the count of registers says nothing of the need.


def compiled(kernels: int) -> list[dict]:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(KERNELS), str(kernels), "1"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def asked(registers: float, need: float) -> float:
    """The need that the compiler settled for so many registers (see `registers.settled`), the
    nearest to what is expected where several needs end at the same."""
    if registers == FULL:
        return float(np.clip(need, FULL, NEAR))
    return FULL - (FULL - registers) / BELOW if registers < FULL else registers


def fit(kernels: list[dict]) -> np.ndarray:
    weights = np.array(WEIGHTS)
    stretches = [np.array(k["features"]) for k in kernels]
    used = np.array([k["registers"] for k in kernels], float)
    for _ in range(100):
        chosen, wanted = [], []
        for kernel, each, registers in zip(kernels, stretches, used, strict=True):
            needs = each @ weights
            floor = free(kernel["features"], kernel["config"]["num_warps"])
            is_free = needs.max() < floor and abs(registers - floor) < 6
            if kernel["spill_bytes"] <= SPILLS and not is_free:
                chosen.append(each[needs.argmax()])
                wanted.append(asked(registers, needs.max()))
        x, y = np.array(chosen), np.array(wanted)
        unit = np.maximum(8, 0.15 * y)
        error = np.abs(x @ weights - y) / unit
        scale = 1 / unit / np.sqrt(np.maximum(error, 0.5))
        ridge = 1e-3 * np.eye(len(weights))
        left = np.vstack([x * scale[:, None], ridge])
        right = np.concatenate([y * scale, np.zeros(len(weights))])
        found = np.linalg.lstsq(left, right, rcond=None)[0]
        weights = 0.7 * weights + 0.3 * np.maximum(0, found)
    return weights


if __name__ == "__main__":
    fitted = fit(compiled(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
    for name, weight in zip(FEATURES, fitted, strict=True):
        print(f"{name:18s} {weight:.2f}")
