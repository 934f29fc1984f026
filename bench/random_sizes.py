"""`python -m fusionplan.bench.random_sizes`: one tune for all sizes, beside plans for each size.

Each function is tuned once, at one size that varies; what the tune has kept, and why, is printed.
Then it is called at random sizes, by that plan, by the cost model's plan for the very size, and by
torch.compile(dynamic=True), in turns. On a GPU the host's time of a call is printed, too.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..api import load, plans
from ..db.store import Store
from ..planner.config import branches
from ..planner.costs.device import profile_of
from ..planner.errors import FusionplanError
from ..planner.plan import Plan
from ..planner.runtime.machine_code.compile import compilations
from ..tuner.measure.timing import stopwatch_for
from ..tuner.progress.progress import Silent
from ..tuning import tune
from .command_line import parser_of, run_each
from .host import microseconds
from .sizes import FUNCTIONS

LEAST, MOST = 2, 8192
TUNED_AT = 1024
COUNT = 200
ROUNDS = 15
SECONDS = 60.0
HOST_CALLS = 300
"""Calls of which the host's time is taken."""


@dataclass(frozen=True, slots=True)
class RandomSize:
    """One function at one size: seconds of a call by the plan for all sizes, by the model's plan
    for this size, and by torch.compile. compiled: kernels that the first call compiled."""

    name: str
    size: int
    wide_s: float
    own_s: float
    compiled_s: float
    compiled: int

    def __str__(self) -> str:
        us = [f"{each * 1e6:8.1f}" for each in (self.wide_s, self.own_s, self.compiled_s)]
        return (
            f"{self.name:12} {self.size:6} all sizes {us[0]} us, this size {us[1]} us, "
            f"torch.compile {us[2]} us; compiled {self.compiled}"
        )


def drawn(count: int, most: int, seed: int = 0) -> list[int]:
    """Random sizes, as many below as above the geometric mean of the least and the most."""
    own = random.Random(seed)
    span = math.log(most / LEAST)
    return [min(most, round(LEAST * math.exp(own.random() * span))) for _ in range(count)]


class _Notes(Silent):
    """Prints the notes of a tune."""

    def __init__(self, name: str) -> None:
        self._name = name

    def note(self, text: str) -> None:
        print(f"{self._name:12} note: {text}", flush=True)


def told(plan: Plan) -> Iterator[str]:
    """The groups of a plan with their trees, and the contest that it was kept by."""
    yield f"kept: {plan.evidence}, groups: {len(plan.groups)}, at sizes {plan.at}"
    for group in plan.groups:
        yield f"{group.lowering}: {group.config or group.options}"
        for at, config in [] if group.sizes is None else branches(group.sizes):
            yield f"{group.lowering}: {at}: {config}"
    if plan.contest is None:
        return
    yield f"contest: {plan.contest.winner}"
    for each in plan.contest.contestants:
        cold, busy = each.cold_s * 1e6, each.busy_s * 1e6
        yield f"contest: {each.name}: cold {cold:.1f} us, busy {busy:.1f} us, {each.behind:.3f}"
    for way, why in plan.contest.left_out:
        yield f"contest: without {way}: {why}"


def timed(
    name: str, sizes: Sequence[int], device: torch.device, seconds: float, rounds: int
) -> Iterator[RandomSize]:
    """One function at each of the sizes. Raises FusionplanError where its result is not eager's."""
    function, shapes, dim = FUNCTIONS[name]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    stopwatch = stopwatch_for(device, profile_of(device).l2_bytes)

    def inputs(size: int, varies: bool = True) -> list[torch.Tensor]:
        made = [torch.randn(s, device=device, dtype=dtype) for s in shapes(size)]
        for x in made if varies else ():
            if x.shape[dim] == size:
                torch._dynamo.mark_dynamic(x, dim)
        return made

    limits = torch._dynamo.config.patch(recompile_limit=2 * len(sizes) + 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), limits:
        store = str(Path(folder) / "plans.db")
        torch._dynamo.reset()
        tune(
            function, tuple(inputs(min(TUNED_AT, max(sizes)))), seconds=seconds, store=store,
            progress=_Notes(name),
        )  # fmt: skip
        with Store.open(store) as opened:
            kept = [Plan.from_json(record.payload) for record in opened.plans()]
        for line in (line for plan in kept for line in told(plan)):
            print(f"{name:12} {line}", flush=True)
        wide = load(function, store=store, on_miss="model", evidence="any")
        compiled = torch.compile(lambda *given: function(*given))  # noqa: PLW0108 - of its own
        for size in sizes:
            own = load(
                lambda *given: function(*given),  # noqa: PLW0108 - of its own
                dynamic=False,
                store=str(Path(folder) / "none.db"),
                on_miss="model",
                evidence="any",
            )
            varying, fixed = inputs(size), inputs(size, varies=False)
            before = compilations()
            result = wide(*varying)
            count = compilations() - before
            if not torch.allclose(result, function(*varying), rtol=2e-2, atol=2e-2):
                raise FusionplanError(f"{name} at {size}: the result is not eager's")
            calls: list[Callable[[], Any]] = [
                lambda: wide(*varying),  # noqa: B023 - called here
                lambda: own(*fixed),  # noqa: B023
                lambda: compiled(*varying),  # noqa: B023
            ]
            for call in calls:
                call()
            if size == min(sizes) and device.type == "cuda":
                host = [f"{microseconds(call, device, calls=HOST_CALLS):.1f}" for call in calls]
                print(f"{name:12} {size:6} host us of a call: {', '.join(host)} (in this order)")
            laps = zip(*(stopwatch.laps(calls) for _ in range(rounds)), strict=True)
            wide_s, own_s, compiled_s = map(statistics.median, laps)
            yield RandomSize(name, size, wide_s, own_s, compiled_s, count)
        lost = [plan for plan in plans(wide) if plan.evidence != "measured"]
        print(f"{name:12} graphs without the measured plan: {len(lost)} of {len(plans(wide))}")


def summary(name: str, found: Sequence[RandomSize]) -> str:
    """Geometric means over the sizes of one function."""
    beside = (("plans for each size", "own_s"), ("torch.compile(dynamic)", "compiled_s"))
    ratios = []
    for said, other in beside:
        logs = [math.log(each.wide_s / getattr(each, other)) for each in found]
        ratios.append(f"{math.exp(statistics.fmean(logs)):.3f} x {said}")
    return f"{name:12} {len(found)} sizes: {', '.join(ratios)}"


def _timed_and_told(name: str, device: torch.device, options: argparse.Namespace) -> None:
    sizes = drawn(options.count, options.most)
    found: list[RandomSize] = []
    end = math.inf
    for each in timed(name, sizes, device, options.seconds, options.rounds):
        if not found:
            end = time.monotonic() + options.limit
        found.append(each)
        print(each, flush=True)
        if time.monotonic() > end:
            break
    print(summary(name, found), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a result was wrong, or there is no device; 2: usage."""
    parser = parser_of(__doc__, FUNCTIONS, ROUNDS)
    parser.add_argument("--count", type=int, default=COUNT, help=f"of sizes (default: {COUNT})")
    parser.add_argument("--most", type=int, default=MOST, help=f"largest size (default: {MOST})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each tune")
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds of each function behind its tune"
    )
    return run_each(parser, arguments, FUNCTIONS, _timed_and_told)


if __name__ == "__main__":
    sys.exit(main())
