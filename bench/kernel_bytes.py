"""`python -m fusionplan.bench.kernel_bytes`: bytes of single kernels, by the model and by ncu.

Of every group in a store that a kernel of ours computed, the fastest config runs once under Nsight
Compute, each of its launches beginning with an empty cache. What it reads is counted. What it
writes is the size of its results, each of which is stored once: of them ncu sees only that part
leave the cache which does so before the end, and what enters the cache it counts at both halves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..db import Store, StoreError
from ..planner.config import Config
from ..planner.costs.device import DeviceProfile, profile_of
from ..planner.errors import FusionplanError, Refusal
from ..planner.graph.graph import Graph, from_json
from ..planner.nests.group_nests import schedule_group
from ..tuner.model_fit.accuracy import FAMILIES, Sample, samples_of
from ..tuner.session.place import place_of
from ..tuner.trial.inputs import DATA_SETS, empty, make
from ..tuner.trial.outcome import Candidate
from ..tuner.trial.running import load, output_types
from ..tuner.trial.wire import config_from_json, config_to_json
from ..tuner.workers.lab import Group, WorkerLab
from . import ncu

LEAST = 10**6
"""Bytes of a kernel that counts."""
NEAR = 0.10
METRICS = (ncu.READ, ncu.TIME)


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch. kernel: the key of its group; expected: bytes by the model; read: bytes from the
    memory, by ncu; stored: bytes of its results; seconds by ncu."""

    kernel: str
    family: str
    name: str
    expected: int
    read: int
    stored: int
    seconds: float

    @property
    def bytes(self) -> int:
        return self.read + self.stored

    @property
    def is_near(self) -> bool:
        return abs(self.expected / max(self.bytes, 1) - 1) <= NEAR


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: no store, no device, nothing to watch, no ncu, or it failed; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", default=None, help="path or database URL")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--most", type=int, default=400, help="groups, the slowest first")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    parser.add_argument("--jobs", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.jobs is not None:
        _child(json.loads(options.jobs.read_text()), torch.device(options.device))
        return 0
    try:
        found = measure(options.store, place_of(options.device, None).device, options.most)
    except (FusionplanError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    print(markdown(found))
    return 0


def measure(store: str | None, device: torch.device, most: int) -> list[Counted]:
    """The launches of the fastest kernels in the store. Raises FusionplanError."""
    profile = profile_of(device)
    with Store.open(store, create=False) as opened:
        samples = fastest(samples_of(opened, profile.key, profile).samples)[:most]
        jobs = [_job(opened, one) for one in samples]
    if not jobs:
        raise FusionplanError(f"the store has no kernel that {profile.name} was timed with: tune")
    _compiled(jobs, profile, str(device))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps(jobs))
        module = [sys.executable, "-P", "-m", "fusionplan.bench.kernel_bytes"]
        said, told = ncu.under([*module, "--jobs", str(path), "--device", str(device)], METRICS)
    sizes = {
        job["kernel"]: results(from_json(job["group"]), config_from_json(job["config"]))
        for job in jobs
    }
    try:
        ran = json.loads(said)
    except ValueError as error:
        raise ncu.NcuError(f"the program under ncu gave no result: {said[-200:]!r}") from error
    return matched(samples, sizes, ran, ncu.launches(told, METRICS))


def fastest(samples: Sequence[Sample]) -> list[Sample]:
    """The fastest of each group, the slowest groups first."""
    best: dict[str, Sample] = {}
    for one in samples:
        known = best.get(one.kernel)
        if known is None or one.measured_s < known.measured_s:
            best[one.kernel] = one
    return sorted(best.values(), key=lambda one: -one.measured_s)


def matched(
    samples: Sequence[Sample],
    sizes: Mapping[str, Sequence[int]],
    ran: Mapping[str, Sequence[str]],
    watched: Sequence[ncu.ProfiledLaunch],
) -> list[Counted]:
    """Each launch with what the cost model expects of it. By key of the group: sizes, what its
    launches store; ran, their names, in the order in which they ran. Raises NcuError where ncu
    saw others."""
    expected = {one.kernel: one for one in samples}
    found, rest = [], iter(watched)
    for key, names in ran.items():
        sample = expected[key]
        for name, work, stored in zip(names, sample.works, sizes[key], strict=True):
            seen = next(rest, None)
            if seen is None or seen.name != name:
                raise ncu.NcuError(f"ncu saw {seen and seen.name} where {name} was launched")
            read, seconds = (seen.counted[metric] for metric in METRICS)
            numbers = work.hbm_bytes, round(read), stored, seconds
            found.append(Counted(key, sample.family, name, *numbers))
    return found


def results(group: Graph, config: Config) -> list[int]:
    """Bytes that each launch of a group stores."""
    found = schedule_group(group, config.layout)
    assert not isinstance(found, Refusal), found.reason  # of a sample, which is scheduled
    return [sum(o.type.nbytes for o in kernel.nest.outputs) for kernel in found.kernels]


def _job(store: Store, sample: Sample) -> dict[str, Any]:
    record = store.kernel(sample.kernel)
    assert record is not None
    return {
        "kernel": sample.kernel,
        "group": record.payload["graph"],
        "config": config_to_json(sample.config),
    }


def _compiled(jobs: Sequence[Mapping[str, Any]], profile: DeviceProfile, device: str) -> None:
    """Into Triton's cache, by many processes: under ncu one alone would take long."""
    with WorkerLab(device, profile.capability) as lab:
        pending = [
            lab.compile(
                Group.of(from_json(job["group"]), job["kernel"]), config_from_json(job["config"])
            )
            for job in jobs
        ]
        for one in pending:
            one.result()  # what fails to compile is told where it is to run


def _child(jobs: Sequence[Mapping[str, Any]], device: torch.device) -> None:
    """Under ncu: each group once, with the profiler on. Prints which kernels ran."""
    ran: dict[str, list[str]] = {}
    for job in jobs:
        try:
            names = _run(job, device)
        except (FusionplanError, RuntimeError, ValueError) as error:
            print(f"{job['kernel']}: {error}", file=sys.stderr)
            continue
        if names:
            ran[job["kernel"]] = names
        torch.cuda.empty_cache()
    print(json.dumps(ran))


def _run(job: Mapping[str, Any], device: torch.device) -> list[str]:
    """The names of the kernels of a group that ran; none where it has no kernel any more."""
    group = from_json(job["group"])
    loaded = load(group, Candidate.generated(config_from_json(job["config"])), device)
    if isinstance(loaded, Refusal) or loaded.kernels is None:
        return []
    outputs = [empty(kind, device) for kind in output_types(group)]
    run = loaded.bind(make(group, next(iter(DATA_SETS)), device, 0), outputs)
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        try:
            run()
            torch.cuda.synchronize(device)
        finally:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
    return [kernel.name for kernel in loaded.kernels.program.kernels]


def markdown(found: Sequence[Counted]) -> str:
    """By family, and the kernels that the model knows worst."""
    large = [one for one in found if one.bytes >= LEAST]
    rows = ["| family | kernels above 1 MB | within 10% | median of model / ncu |"]
    rows.append("|---" * 4 + "|")
    for family in ("all", *FAMILIES):
        own = [one for one in large if family in ("all", one.family)]
        if own:
            near = sum(one.is_near for one in own) / len(own)
            median = statistics.median(one.expected / one.bytes for one in own)
            rows.append(f"| {family} | {len(own)} | {near:.0%} | {median:.2f} |")
    far = sorted(large, key=lambda one: -abs(one.expected / one.bytes - 1))
    worst = [one for one in far if not one.is_near][:12]
    if worst:
        rows += ["", "| kernel | family | model MB | read MB, by ncu | results MB | us |"]
        rows.append("|---" * 6 + "|")
    for one in worst:
        mb = " | ".join(f"{b / 1e6:.1f}" for b in (one.expected, one.read, one.stored))
        rows.append(f"| {one.name[:48]} | {one.family} | {mb} | {one.seconds * 1e6:.1f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())
