"""The economy of the search, measured against exhaustive and random search on small spaces.

`python -m fusionplan.bench.economy` (scripts/search_economy) measures every config of some small
spaces on the GPU, lets the search and random searches look among them, and writes
docs/search-economy.md. The measurements are kept as JSON, so that a search can be replayed
anywhere: `--replay FILE`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from ..planner.config import Config
from ..planner.costs.device import DeviceProfile, profile_of
from ..planner.covers.cover import best_cover
from ..planner.errors import FusionplanError, Refusal
from ..planner.graph.graph import Graph, from_json, key, to_json
from ..planner.groups.group import subgraph
from ..planner.lower import kernel_name
from ..planner.space.space import Space, space_of
from ..tuner.capture.capture_model import capture_model
from ..tuner.trial.outcome import ATEN, Candidate, ProgramResources, Timed
from ..tuner.workers.lab import Group, Lab, WorkerLab
from .economy_report import write
from .measure import machine
from .replay import Economy, MeasuredConfig, curve, random_curve, searched
from .run import commit
from .workloads import ROOT, WORKLOADS, make

SPACES = (
    "log_relu_add",
    "sigmoid_tanh",
    "layernorm_residual",
    "softmax_rows",
    "rotary",
    "linear_smallk_gelu",
    "matmul_rowmax",
    "attn_out_residual_ln",
)
CONFIGS = 150
BUDGET = 30
"""Trials of a search, of which the project promises to come within 3% of exhaustive search."""

RANDOM = 200
"""Random searches of a space; what is told of them is their median."""


@dataclass(frozen=True, slots=True)
class MeasuredSpace:
    """A space in which every config was measured. group: as JSON; aten_s: of the group by ATen."""

    name: str
    group: dict[str, Any]
    aten_s: float
    trials: tuple[MeasuredConfig, ...]

    @property
    def best_s(self) -> float:
        return min(t.seconds for t in self.trials if t.seconds is not None)


@dataclass(frozen=True, slots=True)
class SpaceRecording:
    """Measurements of a search space, with the machine and the device that was planned for. made:
    when, and with what."""

    machine: str
    profile: DeviceProfile
    spaces: tuple[MeasuredSpace, ...]
    made: str = ""


_RECORDING: TypeAdapter[SpaceRecording] = TypeAdapter(SpaceRecording)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: nothing could be measured, or the file is no recording; 2: usage."""
    options = _options(arguments)
    try:
        recording = _read(options.replay) if options.replay else _recorded(options)
        found = [economy(space, recording.profile, options.trials) for space in recording.spaces]
        write(found, ", ".join(filter(None, [recording.machine, recording.made])), options.out)
    except FusionplanError as error:
        print(f"economy: {error}", file=sys.stderr)
        return 1
    print(options.out / "search-economy.md")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spaces", nargs="*", metavar="SPACE", help=", ".join(SPACES))
    parser.add_argument("--configs", type=int, default=CONFIGS, help="of each space")
    parser.add_argument("--trials", type=int, default=BUDGET, help="of each search")
    parser.add_argument("--json", type=Path, default=Path("economy.json"), help="measurements")
    parser.add_argument("--replay", type=Path, default=None, help="measurements made before")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the report")
    options = parser.parse_args(arguments)
    for name in options.spaces:
        if name not in WORKLOADS:
            parser.error(f"{name!r} is no workload: give one of {', '.join(SPACES)}")
    return options


# --- measuring ---


def _recorded(options: argparse.Namespace) -> SpaceRecording:
    if not torch.cuda.is_available():
        raise FusionplanError("spaces are measured on a GPU; --replay FILE needs none")
    device = torch.device("cuda", torch.cuda.current_device())
    profile = profile_of(device)
    made: list[MeasuredSpace] = []
    with WorkerLab(str(device), profile.capability) as lab:
        for name in options.spaces or SPACES:
            made.append(record(name, lab, profile, str(device), options.configs))
            here = machine(device)
            when = f"{datetime.now(UTC):%Y-%m-%d}, torch {here.torch}, triton {here.triton}"
            found = SpaceRecording(here.device, profile, tuple(made), f"{when}, commit {commit()}")
            # After each, so that an interruption keeps what was measured.
            options.json.write_text(json.dumps(_RECORDING.dump_python(found, mode="json")))
            print(f"{name}: {len(made[-1].trials)} configs, {made[-1].best_s * 1e6:.1f} us")
    return found


def record(
    name: str, lab: Lab, profile: DeviceProfile, device: str, configs: int = CONFIGS
) -> MeasuredSpace:
    """Measure every config of a small space of a workload's largest group."""
    model, call = make(WORKLOADS[name], device)
    group = _largest(capture_model(model, call).parts[0].captured.graph, profile)
    space = space_of(group.graph, profile)
    if isinstance(space, Refusal):
        raise FusionplanError(f"{name} has no kernel: {space}")
    aten = lab.measure(group, ATEN)
    trials = _measured(group, small(space, configs), lab)
    if not isinstance(aten, Timed) or all(trial.seconds is None for trial in trials):
        raise FusionplanError(f"{name}: nothing of it could be measured")
    return MeasuredSpace(name, dict(to_json(group.graph)), aten.seconds, trials)


def _largest(graph: Graph, profile: DeviceProfile) -> Group:
    groups = [subgraph(graph, nodes).graph for nodes in best_cover(graph, profile)]
    largest = max(groups, key=lambda group: len(group.nodes))
    return Group.of(largest, kernel_name(largest))


def small(space: Space, configs: int) -> list[Config]:
    """Configs at even distances among all that the compiler would be given: good ones and bad."""
    whole = [c for c in space.enumerate() if not isinstance(space.judge(c), Refusal)]
    step = max(1.0, len(whole) / configs)
    return [whole[int(place * step)] for place in range(min(configs, len(whole)))]


def _measured(group: Group, configs: Sequence[Config], lab: Lab) -> tuple[MeasuredConfig, ...]:
    """Each compiled, all at once, and then timed, alone on the device."""
    compiling = [lab.compile(group, config) for config in configs]
    found = []
    for config, pending in zip(configs, compiling, strict=True):
        compiled = pending.result()
        if not isinstance(compiled, ProgramResources):
            found.append(MeasuredConfig(config, None, 0.0, 0.0, compiled.reason))
            continue
        began = time.monotonic()
        outcome = lab.measure(group, Candidate.generated(config))
        measure_s = time.monotonic() - began
        if isinstance(outcome, Timed):
            trial = MeasuredConfig(config, outcome.seconds, compiled.compile_s, measure_s)
        else:
            trial = MeasuredConfig(config, None, compiled.compile_s, measure_s, outcome.reason)
        found.append(trial)
    return tuple(found)


def _read(path: Path) -> SpaceRecording:
    try:
        return _RECORDING.validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FusionplanError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise FusionplanError(f"{path} is no recording: {error.errors()[0]['msg']}") from error


# --- looking at it ---


def economy(space: MeasuredSpace, profile: DeviceProfile, trials: int = BUDGET) -> Economy:
    """The search and random searches among the measured configs of one space."""
    graph = from_json(space.group)
    taken = searched(Group.of(graph, space.name), profile, space.trials, space.aten_s, trials)
    ours, clock = curve(taken, trials)
    spread = random_curve(space.trials, trials, RANDOM, random.Random(key(graph)))
    return Economy(space.name, len(space.trials), space.best_s, ours, spread[0], clock, spread[1])


if __name__ == "__main__":
    sys.exit(main())
