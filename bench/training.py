"""`python -m fusionplan.bench.training`: training steps, by a stored plan and by the baselines.

A step is the model's forward and backward pass on fixed inputs. Each way runs in turn in this
process; a figure is the median of its runs, and the memory that a step takes at its peak beyond
what was allocated before it (the gradients, which every way leaves behind, included).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..api import executors, load
from ..planner.errors import FusionplanError
from ..tuning import tune
from . import contractions, memory_bound

RUNS = 15

STEPS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[str], list[torch.Tensor]]]] = {
    "splade_head": (contractions.SpladeHead, contractions.splade_head_inputs),
    "attn_naive_softcap_alibi_causal": (
        contractions.AttentionSoftcap,
        contractions.attn_naive_softcap_alibi_causal_inputs,
    ),
    "attn_naive": (contractions.Attention, contractions.attn_naive_inputs),
    "linear_cross_entropy": (
        contractions.LinearCrossEntropy,
        contractions.linear_cross_entropy_inputs,
    ),
    "cross_entropy_128k": (memory_bound.CrossEntropy, memory_bound.cross_entropy_128k_inputs),
}


@dataclass(slots=True)
class StepTimes:
    """One workload. seconds, peak_bytes: by the way it runs; errors: of each gradient, relative to
    eager's, in the root mean square; kernels: of ours in a step."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    kernels: int = 0
    lowerings: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a workload failed; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--store", default=None, help="path or database URL")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each tune")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    options = parser.parse_args(arguments)
    for name in options.steps:
        if name not in STEPS:
            parser.error(f"{name!r} is no training step: give {', '.join(STEPS)}")
    found: list[StepTimes] = []
    status = 0
    for name in options.steps or STEPS:
        try:
            found.append(_measured(name, options.store, options.seconds))
        except FusionplanError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(step) for step in found], indent=1))
    print(table(found))
    return status


def table(steps: Sequence[StepTimes]) -> str:
    """Markdown: milliseconds and peak memory in MiB of every way."""
    ways = list(dict.fromkeys(way for step in steps for way in step.seconds))
    rows = ["| step | " + " | ".join(ways) + " | baseline / ours |", "|---" * (len(ways) + 2) + "|"]
    for step in steps:
        cells = [
            f"{step.seconds[w] * 1e3:.2f} ms, {step.peak_bytes[w] >> 20} MiB"
            if w in step.seconds
            else "-"
            for w in ways
        ]
        baselines = [s for way, s in step.seconds.items() if way != "ours"]
        ratio = min(baselines) / step.seconds["ours"] if "ours" in step.seconds else 0.0
        rows.append(f"| {step.name} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(rows)


def _measured(name: str, store: str | None, seconds: float) -> StepTimes:
    make, make_inputs = STEPS[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = make()
    inputs = [t.requires_grad_(t.is_floating_point()) for t in make_inputs("cuda")]
    gradient = torch.randn_like(model(*inputs))
    step = StepTimes(name)

    def once(call: Callable[..., Any]) -> list[torch.Tensor]:
        leaves = [t for t in (*model.parameters(), *inputs) if t.requires_grad]
        for leaf in leaves:
            leaf.grad = None
        call(*inputs).backward(gradient)
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def add(way: str, call: Callable[..., Any]) -> list[torch.Tensor]:
        result = [g.cpu() for g in once(call)]
        step.seconds[way] = _seconds(lambda: once(call))
        step.peak_bytes[way] = _peak(lambda: once(call))
        torch.cuda.empty_cache()
        return result

    wanted = add("eager", model)
    for mode in ("default", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        add(mode, torch.compile(model, mode=mode, dynamic=False))
    torch._dynamo.reset()
    tune(model, tuple(inputs), training=True, seconds=seconds, store=store, name=name)
    torch._dynamo.reset()
    ours = load(model, store=store)
    got = add("ours", ours)
    step.errors = [
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in zip(got, wanted, strict=True)
    ]
    ran = executors(ours)
    step.kernels = sum(executor.kernels_per_call for executor in ran)
    step.lowerings = sorted({g.lowering for executor in ran for g in executor.plan.groups})
    return step


def _seconds(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    laps = []
    for _ in range(RUNS):
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        laps.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(laps)


def _peak(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


if __name__ == "__main__":
    raise SystemExit(main())
