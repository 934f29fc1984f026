"""`python -m fusionplan.bench.startup`: how long a new process takes to its first result.

Each way runs a workload twice in a process of its own, by a stored plan, by a bundle with machine
code or by torch.compile with warm caches, in turns. A figure is the time from the start of the
process to its first result, beyond that of an eager one: what compiling, or loading the plan,
costs. How long the process takes to end is no part of it. A second table says where the time of our
ways goes, by phase.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..planner.runtime.phases import PHASES as SECONDS
from .started import BUNDLED, COMPILED, EAGER, OURS
from .workloads import EXAMPLES, ROOT, WORKLOADS, Workload

WAYS = (EAGER, COMPILED, OURS)
PHASES = (
    "torch",
    "import",
    "Dynamo",
    "trace",
    "lookup",
    "plan",
    "generate",
    "compile",
    "load",
    "build",
    "run",
)
"""torch, import: of torch, then of Dynamo and ours. Dynamo: the rest of the first call. run: the
second call. Others: see `planner.runtime.phases`."""
STARTED = {
    **WORKLOADS,
    "gpt2": Workload(
        "gpt2",
        "GPT-2 small, 4 x 512 words",
        "bench/gpt2_small.py",
        least_bytes=0,
        model="gpt2",
        inputs="gpt2_inputs",
        kernels=None,
    ),
}
RUNS = 5
LIMIT_S = 300.0


@dataclass(slots=True)
class Startup:
    """seconds: of every run, by way, from the start of the process to its first result. phases: of
    every run, by way and phase. failed: what a process said."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: str = ""
    phases: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def beyond_eager(self, way: str) -> float:
        return statistics.median(self.seconds[way]) - statistics.median(self.seconds[EAGER])

    def phase(self, way: str, name: str) -> float:
        """The median of its seconds."""
        return statistics.median(each[name] for each in self.phases[way])

    @property
    def ratio(self) -> float:
        """Ours over torch.compile's."""
        return self.beyond_eager(OURS) / self.beyond_eager(COMPILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a process failed; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(STARTED))
    parser.add_argument("--store", default="", help="path or database URL")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--bundles", type=Path, default=None, help="a folder with WORKLOAD.plan, of planner bundle"
    )
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each way (default: {RUNS})")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    options = parser.parse_args(arguments)
    for name in options.workloads:
        if name not in STARTED:
            parser.error(f"{name!r} is no workload: give {', '.join(STARTED)}")
    if options.runs < 1:
        parser.error(f"--runs {options.runs} is below one")
    found = []
    for name in options.workloads or [workload.name for workload in EXAMPLES]:
        bundle = "" if options.bundles is None else str(options.bundles / f"{name}.plan")
        found.append(measured(STARTED[name], options.device, options.store, options.runs, bundle))
        if found[-1].failed:
            print(f"{name}: {found[-1].failed}", file=sys.stderr)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    print(table(found))
    print(f"\n{phase_table(found)}")
    return int(any(each.failed for each in found))


def measured(workload: Workload, device: str, store: str, runs: int, bundle: str = "") -> Startup:
    """A first run of each way fills the caches, and does not count."""
    ways = (*WAYS, BUNDLED) if bundle else WAYS
    found = Startup(workload.name, {way: [] for way in ways}, phases={way: [] for way in ways})
    for turn in range(runs + 1):
        for way in ways:
            begin = time.time()
            done = _started(workload, device, way, store, bundle)
            if done.returncode:
                found.failed = f"{way}: {_said(done)}"
                return found
            if turn:
                told = json.loads(done.stdout.splitlines()[-1])
                found.seconds[way].append(told["at"] - begin)
                found.phases[way].append(phases(told))
    return found


def phases(told: dict[str, float]) -> dict[str, float]:
    """What a process told, as `PHASES`; what only we tell is 0 of other ways."""
    ours = {name: told.get(name, 0.0) for name in SECONDS}
    rest = told["first"] - told["second"] - sum(ours.values())
    return {
        "torch": told["torch"],
        "import": told["import"],
        "Dynamo": max(0.0, rest),
        **ours,
        "run": told["second"],
    }


def _started(
    workload: Workload, device: str, way: str, store: str, bundle: str
) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("started.py")
    named = [str(ROOT / workload.file), workload.model, workload.inputs, device, way, store, bundle]
    return subprocess.run(
        # -P: the folder of the script does not come first on the import path.
        [sys.executable, "-P", str(script), *named],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The exception that a process ended with; torch prints advice behind it."""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return next((x for x in reversed(lines) if re.match(r"[\w.]+: ", x)), lines[-1])


def table(found: Sequence[Startup]) -> str:
    """Markdown: seconds to the first result."""
    more = "torch.compile, warm: + s | stored plan: + s | ratio | bundle: + s"
    rows = [f"| workload | eager s | {more} |", "|---" * 6 + "|"]
    for each in found:
        if each.failed:
            rows.append(f"| {each.name} | {each.failed} | | | | |")
            continue
        eager = statistics.median(each.seconds[EAGER])
        figures = [f"{each.beyond_eager(way):.2f}" for way in (COMPILED, OURS)]
        bundle = f"{each.beyond_eager(BUNDLED):.2f}" if BUNDLED in each.seconds else ""
        cells = [each.name, f"{eager:.2f}", *figures, f"{each.ratio:.2f}", bundle]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def phase_table(found: Sequence[Startup]) -> str:
    """Markdown: median seconds of each phase, for each way but eager."""
    rows = [f"| workload | way | {' | '.join(PHASES)} |", "|---" * (2 + len(PHASES)) + "|"]
    for each in found:
        for way in each.phases:
            if way != EAGER and each.phases[way]:
                cells = [f"{each.phase(way, name):.2f}" for name in PHASES]
                rows.append(f"| {each.name} | {way} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())
