"""Runs tiny models of transformers' architectures by our kernels, and compares them with eager.

    python tests/models/architecture_sweep.py --done results.jsonl --seconds 600 --jobs 2

takes each architecture through a training step with a padding mask, and labels where it has a loss
of them; `--modes inference,bfloat16` through other calls. Results are added to the file, one line
each, and the next run goes on from them. No GPU is needed: kernels run in Triton's interpreter.
A model that transformers or eager refuses is told of as "left out".
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PLANNER_STORE": "/nonexistent"}
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from few_looks import look_little
from fusionplan import executors, plans
from fusionplan.backend import planner
from fusionplan.planner.covers import cover
from fusionplan.planner.cures import FusionplanWarning
from fusionplan.planner.graph.ops import is_compute
from models.conftest import OPTIONS, assert_accurate, step, tensors
from models.tiny_architectures import Tiny, build, kinds
from quick_interpreter import quicken

MODES = ("training", "inference", "bfloat16")
LONGEST_S = 300


def _given(kind: str, mode: str) -> Tiny:
    training = mode != "inference"
    tiny = build(kind, masked=True, labelled=training)
    tiny.model.train(training)
    return _as(tiny, torch.bfloat16) if mode == "bfloat16" else tiny


def _as(tiny: Tiny, dtype: torch.dtype) -> Tiny:
    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    model = copy.deepcopy(tiny.model).to(dtype)
    return Tiny(model, {name: cast(v) for name, v in tiny.inputs.items()}, tiny.labels)


def _call(tiny: Tiny, compiled: Any = None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    tiny.model.zero_grad(set_to_none=True)
    call = tiny.model if compiled is None else compiled
    if tiny.model.training:
        return step(call, tiny.model, tiny.inputs)
    with torch.no_grad():
        return [t.clone() for t in tensors(call(**tiny.inputs))]


def _exact(tiny: Tiny, eager: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """In float64, or in float32 where an operation of the model is not made for float64."""
    for dtype in (torch.float64, torch.float32):
        with contextlib.suppress(Exception):  # what the operation raises is torch's to choose
            found = _call(_as(tiny, dtype))
            if len(found) == len(eager):
                return [t.double() for t in found]
    return [t.double() for t in eager]


def compare(
    mine: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> None:
    """As `assert_accurate`; an infinity has to be where eager has it."""
    finite = [t.isfinite() for t in eager]
    for a, b, known in zip(mine, eager, finite, strict=True):
        assert torch.equal(a[~known].nan_to_num(), b[~known].nan_to_num()), "infinities differ"
    kept = [
        [t if known.all() or t.shape != known.shape else t.where(known, 0) for t, known in pairs]
        for pairs in (zip(some, finite, strict=True) for some in (mine, eager, exact))
    ]
    assert_accurate(*kept)


def judge(kind: str, mode: str) -> dict[str, Any]:
    """What came of one architecture in one mode, as data."""
    told: dict[str, Any] = {"kind": kind, "mode": mode, "operations": 0, "planning_s": 0.0}
    try:
        tiny = _given(kind, mode)
        eager = _call(copy.deepcopy(tiny))
    except Exception as error:  # noqa: BLE001 - such a model is of no use here
        return told | {"left_out": f"{type(error).__name__}: {error}"[:200]}
    planned = cover.modelled_plan

    def timed(graph: Any, device: Any) -> Any:
        start = time.process_time()
        plan = planned(graph, device)
        told["planning_s"] += time.process_time() - start
        told["operations"] += sum(map(is_compute, graph.nodes))
        return plan

    cover.modelled_plan = timed
    own = copy.deepcopy(tiny)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled = torch.compile(own.model, backend=planner, options=OPTIONS)
            mine = _call(own, compiled)
        told |= {"labels": tiny.labels, "graphs": len(plans(compiled))}
        told["kernels"] = sum(r.kernels_per_call * r.calls for r in executors(compiled))
        ours = [str(w.message) for w in caught if issubclass(w.category, FusionplanWarning)]
        if ours:
            told["warnings"] = ours
        compare(mine, eager, _exact(tiny, eager))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
        told["failed"] = f"{type(error).__name__}: {error}"[:400]
    return told


def _each(asked: Sequence[tuple[str, str]], done: Path, jobs: int, end: float) -> None:
    """Judges each in a process of its own, which has imported torch and transformers already."""
    running: dict[int, tuple[str, str]] = {}
    waiting = list(asked)
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < jobs and time.monotonic() < end:
            kind, mode = waiting.pop(0)
            process = os.fork()
            if not process:
                signal.alarm(LONGEST_S)
                told = judge(kind, mode)
                with done.open("a") as file:
                    print(json.dumps(told), file=file)
                os._exit(0)
            running[process] = kind, mode
        process, status = os.wait()
        kind, mode = running.pop(process)
        if status:
            told = {"kind": kind, "mode": mode, "failed": f"its process ended by {status}"}
            with done.open("a") as file:
                print(json.dumps(told), file=file)


def report(done: Path) -> str:
    """One line a mode, then the failures."""
    found = [json.loads(line) for line in done.read_text().splitlines()]
    lines = []
    for mode in dict.fromkeys(r["mode"] for r in found):
        ran = [r for r in found if r["mode"] == mode and "left_out" not in r]
        count = {
            name: sum(r.get(name, 0) for r in ran)
            for name in ("labels", "kernels", "operations", "planning_s")
        }
        lines.append(
            f"{mode}: {len(ran)} models, {count['labels']} with a loss, {count['kernels']} kernels,"
            f" {count['operations']} operations planned in {count['planning_s']:.0f} s,"
            f" {sum('failed' in r for r in ran)} failed,"
            f" {sum('warnings' in r for r in ran)} with a warning"
        )
    for r in found:
        if "failed" in r or "warnings" in r:
            lines.append(f"{r['kind']} {r['mode']}: {r.get('failed', '')} {r.get('warnings', '')}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", type=Path, required=True, help="results: read, then added to")
    parser.add_argument("--modes", default="training", help=f"with commas, of {', '.join(MODES)}")
    parser.add_argument("--only", help="names of architectures, with commas (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=600, help="begin none after so many")
    given = parser.parse_args(arguments)
    given.done.touch()
    lines = map(json.loads, given.done.read_text().splitlines())
    before = {(r["kind"], r["mode"]) for r in lines}
    names = given.only.split(",") if given.only else [*kinds()]
    asked = [(kind, mode) for kind in names for mode in given.modes.split(",")]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quicken()
    look_little(setattr)
    judge("bert", "inference")  # imports most of what all need
    torch._dynamo.reset()
    gc.freeze()
    end = time.monotonic() + given.seconds
    _each([one for one in asked if one not in before], given.done, given.jobs, end)
    print(report(given.done))
    lines = map(json.loads, given.done.read_text().splitlines())
    return 1 if any("failed" in r or "warnings" in r for r in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
