"""Fits the weights of planner/costs/registers.py to what the compiler really uses; needs no GPU.

    python scripts/fit_registers.py [KERNELS] [STORE ...]

Compiles KERNELS generated kernels for an H200 (400 when not given, two of them take about a second;
0: none), reads those that tunes compiled from stores (when none is given from the sample in the
tree, scripts/trials/h100.jsonl), and prints the weights. Both kinds count alike, and a group of
many kernels less for each of them. A kernel needs what its hungriest stretch needs, which is not
smooth: weights are changed at random, a few at once, and kept where fewer kernels are off by more
than the test allows (15% or 8 registers), or by as many by less.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from fusionplan.planner.costs.device import builtin
from fusionplan.planner.costs.registers import FEATURES, WEIGHTS, features, free, most, settled
from fusionplan.planner.costs.tile_cache import placed
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph.graph import from_json
from fusionplan.planner.nests.group_nests import schedule_group
from fusionplan.tuner.model_fit.accuracy import samples_of
from fusionplan.tuner.records import trial_sample

KERNELS = (
    Path(__file__).resolve().parent.parent / "tests" / "planner" / "costs" / "register_kernels.py"
)
SAMPLE = str(Path(__file__).resolve().parent / "trials" / "h100.jsonl")
SPILLS = 200  # Bytes above which the count of registers says nothing of the need.


def compiled(kernels: int) -> list[dict]:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(KERNELS), str(kernels), "1"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def tuned(path: str) -> Iterator[dict]:
    """Kernels without products of a store's trials, as `compiled` gives them."""
    with trial_sample.opened(path) as store:
        (device,) = {trial.device_key for trial in store.trials(level="kernel")}
        for sample in samples_of(store, device, builtin("h200")).samples:
            group = from_json(store.kernel(sample.kernel).payload["graph"])
            config = sample.config
            schedule = schedule_group(group, config.layout)
            nests = [] if isinstance(schedule, Refusal) else [k.nest for k in schedule.kernels]
            if sample.registers is None or len(nests) != 1 or nests[0].contractions:
                continue
            tiled, walks = placed(nests[0], config), config.programs > 0
            yield {
                "name": sample.kernel,
                "config": asdict(config),
                "features": features(tiled, config.num_warps, walks),
                "registers": sample.registers,
                "spill_bytes": sample.spill_bytes or 0,
            }


class KernelSample:
    """Of one kind; what is off, weighed by groups."""

    def __init__(self, kernels: list[dict]) -> None:
        kernels = [k for k in kernels if k["spill_bytes"] <= SPILLS]
        warps = [k["config"]["num_warps"] for k in kernels]
        self.stretches = np.array([row for k in kernels for row in k["features"]])
        self.first = np.cumsum([0, *(len(k["features"]) for k in kernels[:-1])])
        pairs = list(zip(kernels, warps, strict=True))
        self.free = np.array([free(k["features"], w) for k, w in pairs])
        self.most = np.array([most(w) for w in warps])
        self.used = np.array([k["registers"] for k in kernels])
        groups = [k["name"].split("/")[0] for k in kernels]
        count = Counter(groups)
        weights = np.array([count[group] ** -0.5 for group in groups])
        self.weights = weights / weights.sum()

    def off(self, weights: np.ndarray) -> np.ndarray:
        """By how many times what is allowed."""
        needs = np.maximum.reduceat(self.stretches @ weights, self.first)
        found = np.vectorize(settled)(np.maximum(needs, self.free))
        found = np.clip(found.astype(int), 16, self.most)
        return np.abs(found - self.used) / np.maximum(8, 0.15 * self.used)

    def loss(self, weights: np.ndarray) -> float:
        off = self.off(weights)
        near = 0.3 * np.minimum(off, 1) + 0.2 * np.minimum(off, 2.5)
        return float(((off > 1) + near) @ self.weights)


def fit(kinds: list[KernelSample], rounds: int = 8000) -> np.ndarray:
    weights, draw = np.array(WEIGHTS), np.random.default_rng(0)
    step = np.maximum(0.05, 0.1 * weights)
    least = sum(kind.loss(weights) for kind in kinds)
    for number in range(rounds):
        some = draw.choice(len(weights), draw.integers(1, 4))
        changed = weights.copy()
        changed[some] += draw.normal(size=len(some)) * step[some] * (1 - 0.8 * number / rounds)
        changed = np.maximum(0, changed)
        loss = sum(kind.loss(changed) for kind in kinds)
        if loss < least:
            least, weights = loss, changed
    return weights


if __name__ == "__main__":
    stores = [a for a in sys.argv[1:] if not a.isdigit()]
    number = next((int(a) for a in sys.argv[1:] if a.isdigit()), 400)
    tried = [kernel for store in stores or [SAMPLE] for kernel in tuned(store)]
    found = {"drawn": compiled(number) if number else [], "tuned": tried}
    kinds = {name: KernelSample(kernels) for name, kernels in found.items() if kernels}
    fitted = fit(list(kinds.values()))
    for name, weight in zip(FEATURES, fitted, strict=True):
        print(f"{name:18s} {weight:.2f}")
    for name, kind in kinds.items():
        before, after = (np.mean(kind.off(w) <= 1) for w in (np.array(WEIGHTS), fitted))
        print(f"{name}: {len(kind.used)} kernels, right {before:.1%} before, {after:.1%} now")
