"""`python -m fusionplan.bench.startup`: how long a new process takes to its first result.

Each way runs a workload once in a process of its own, by a stored plan or by torch.compile with
warm caches, in turns. A figure is the wall time of the process beyond that of an eager one: what
compiling, or loading the plan, costs.
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

from .started import COMPILED, EAGER, OURS
from .workloads import EXAMPLES, ROOT, WORKLOADS, Workload

WAYS = (EAGER, COMPILED, OURS)
RUNS = 5
LIMIT_S = 300.0


@dataclass(slots=True)
class Startup:
    """seconds: of every run, by way; wall time of the process. failed: what a process said."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    failed: str = ""

    def beyond_eager(self, way: str) -> float:
        return statistics.median(self.seconds[way]) - statistics.median(self.seconds[EAGER])

    @property
    def ratio(self) -> float:
        """Ours over torch.compile's."""
        return self.beyond_eager(OURS) / self.beyond_eager(COMPILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a process failed; 2: usage."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--store", default="", help="path or database URL")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each way (default: {RUNS})")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    options = parser.parse_args(arguments)
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"{name!r} is no workload: give {', '.join(WORKLOADS)}")
    if options.runs < 1:
        parser.error(f"--runs {options.runs} is below one")
    found = []
    for name in options.workloads or [workload.name for workload in EXAMPLES]:
        found.append(measured(WORKLOADS[name], options.device, options.store, options.runs))
        if found[-1].failed:
            print(f"{name}: {found[-1].failed}", file=sys.stderr)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    print(table(found))
    return int(any(each.failed for each in found))


def measured(workload: Workload, device: str, store: str, runs: int) -> Startup:
    """A first run of each way fills the caches, and does not count."""
    found = Startup(workload.name)
    for turn in range(runs + 1):
        for way in WAYS:
            begin = time.monotonic()
            done = _started(workload, device, way, store)
            if done.returncode:
                found.failed = f"{way}: {_said(done)}"
                return found
            if turn:
                found.seconds[way].append(time.monotonic() - begin)
    return found


def _started(
    workload: Workload, device: str, way: str, store: str
) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("started.py")
    named = [str(ROOT / workload.file), workload.model, workload.inputs, device, way, store]
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
    rows = [
        "| workload | eager s | torch.compile, warm: + s | stored plan: + s | ratio |",
        "|---" * 5 + "|",
    ]
    for each in found:
        if each.failed:
            rows.append(f"| {each.name} | {each.failed} | | | |")
            continue
        eager = statistics.median(each.seconds[EAGER])
        more = [f"{each.beyond_eager(way):.2f}" for way in (COMPILED, OURS)]
        rows.append(f"| {each.name} | {eager:.2f} | {' | '.join(more)} | {each.ratio:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main())
