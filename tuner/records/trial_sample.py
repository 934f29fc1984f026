"""A sample of trials as text that is kept in the tree: one line a group, with the model it is from.

The cost model is fitted to it and judged by it where no store is at hand. The first line is the
device; each other line is a group, its graph as `graph.parse` reads it, and its timed kernels:

    {"model": "gpt2", "kernel": "5e0f...", "versions": {...}, "day": "2026-11-25",
     "graph": ["%0 = input() : float32[4, 8]", ...],
     "trials": [[{"blocks": {"x0": 64}, "num_warps": 4, ...}, 12.4, 40, 0], ...]}

A trial is its candidate, microseconds, registers and bytes spilled for each thread.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...db import Store
from ...db.records import DeviceRecord, GraphRecord, KernelRecord, Snapshot, TrialRecord
from ...planner.errors import PlanError
from ...planner.graph.graph import from_json, to_json
from ...planner.graph.parse import parse
from ...planner.lowerings.registry import TRITON, lowering_of
from ..trial.outcome import Candidate
from .ledger import TIMING

STUDY = "sample"
SUFFIX = ".jsonl"


def written(stores: Iterable[Snapshot], device_key: str) -> Iterator[str]:
    """The lines of a sample: every group whose kernels were timed on the device. Of a config tried
    twice the later time counts. A group whose text is not read as the same graph is left out."""
    device: DeviceRecord | None = None
    models: dict[str, str] = {}
    kernels: dict[str, KernelRecord] = {}
    trials: dict[str, dict[str, TrialRecord]] = defaultdict(dict)
    for store in stores:
        device = next((d for d in store.devices if d.key == device_key), device)
        models |= {graph.key: graph.name for graph in store.graphs}
        kernels = {kernel.key: kernel for kernel in store.kernels} | kernels
        for trial in sorted(store.trials, key=lambda trial: trial.created_at):
            wanted = trial.level, trial.outcome, trial.device_key
            if wanted == ("kernel", "timed", device_key) and _is_generated(trial):
                trials[trial.subject][json.dumps(trial.config, sort_keys=True)] = trial
    if device is None:
        return
    yield json.dumps({"device": asdict(device)})
    model_of = {key: models.get(kernels[key].graph_key, "") for key in trials.keys() & kernels}
    for key, model in sorted(model_of.items(), key=lambda each: each[::-1]):
        lines = _graph_lines(kernels[key])
        if lines is not None:
            yield _group_line(key, model, lines, list(trials[key].values()))


def _graph_lines(kernel: KernelRecord) -> list[str] | None:
    try:
        graph = from_json(kernel.payload["graph"])
        text = str(graph)
        return text.splitlines() if str(parse(text)) == text else None
    except (KeyError, ValueError, PlanError):
        return None


def _group_line(key: str, model: str, graph: list[str], trials: list[TrialRecord]) -> str:
    last = trials[-1]
    data = {
        "model": model,
        "kernel": key,
        "versions": last.versions,
        "day": f"{last.created_at:%Y-%m-%d}",
        "graph": graph,
        "trials": [
            [
                {name: value for name, value in trial.config.items() if name != "lowering"},
                float(f"{1e6 * (trial.measured_s or 0.0):.5g}"),
                trial.registers,
                trial.spill_bytes,
            ]
            for trial in trials
        ],
    }
    return json.dumps(data)


def read(lines: Iterable[str]) -> Snapshot:
    """The records of a sample, as a store takes them with `merge`: each model counts as a graph of
    its own. Raises ValueError on a line that is none."""
    data = [json.loads(line) for line in lines if line.strip()]
    if not data or "device" not in data[0]:
        raise ValueError("no sample of trials: the first line names no device")
    device = DeviceRecord(**data[0]["device"])
    models = sorted({group["model"] for group in data[1:]})
    return Snapshot(
        (device,),
        tuple(GraphRecord(model, model, 0, {}) for model in models),
        tuple(_kernel(group) for group in data[1:]),
        tuple(trial for group in data[1:] for trial in _trials(group, device.key)),
        (),
    )


def _is_generated(trial: TrialRecord) -> bool:
    return lowering_of(Candidate.from_json(trial.config)) is TRITON


@contextmanager
def opened(place: str | Path) -> Iterator[Store]:
    """A store's trials, or those of a sample (FILE.jsonl), which are put into a store for the time.
    Raises StoreError, OSError, or ValueError for a file that is no sample."""
    if Path(place).suffix != SUFFIX:
        with Store.open(place, create=False) as store:
            yield store
        return
    given = read(Path(place).read_text().splitlines())
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.db") as store:
        store.merge(given)
        yield store


def _kernel(group: dict[str, Any]) -> KernelRecord:
    graph = parse("\n".join(group["graph"]))
    return KernelRecord(group["kernel"], group["model"], "", {"graph": to_json(graph)})


def _trials(group: dict[str, Any], device_key: str) -> Iterator[TrialRecord]:
    made = TrialRecord(
        study=STUDY,
        level="kernel",
        subject=group["kernel"],
        device_key=device_key,
        versions=group["versions"],
        config={},
        outcome="timed",
        timing=TIMING,
        created_at=datetime.fromisoformat(group["day"]).replace(tzinfo=UTC),
    )
    for config, us, registers, spilled in group["trials"]:
        yield replace(
            made,
            config={"lowering": TRITON.name, **config},
            measured_s=us * 1e-6,
            registers=registers,
            spill_bytes=spilled,
        )
