"""Sites of workers without a device: a measurement sleeps, and says in a file that it was begun.

Worker processes import this module by name. $FLEET_LOG is the file; $FLEET_DEVICE, where it is set,
the name of the device that is pretended; $FLEET_SECONDS what a measurement takes.
"""

import os
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from fusionplan.planner.costs.device import builtin
from fusionplan.tuner.fleet import worker_process
from fusionplan.tuner.fleet.site import WorkerSite
from fusionplan.tuner.trial.outcome import Candidate
from fusionplan.tuner.workers.lab import Group
from tuner_fakes import FakeLab

H200 = builtin("h200")


def seconds_of(group: Group, candidate: Candidate) -> float:
    """The same in every process; no two configs take the same."""
    if candidate.config is None:
        return 1.0
    blocks = dict(candidate.config.blocks)
    return 0.1 + 0.01 * candidate.config.num_warps + 1e-5 * sum(blocks.values())


def measured(group: Group, candidate: Candidate, takes_s: float) -> float:
    """A measurement that takes its time, written down as it begins."""
    if log := os.environ.get("FLEET_LOG"):
        line = f"{os.getpid()} {group.key} {candidate}\n"
        with open(log, "a", encoding="utf-8") as file:
            file.write(line)
    time.sleep(takes_s)
    return seconds_of(group, candidate)


def open_site(compilers: int | None) -> WorkerSite:
    """A site as a worker process opens it."""
    name = os.environ.get("FLEET_DEVICE", H200.name)
    takes_s = float(os.environ.get("FLEET_SECONDS", "0.05"))
    lab = FakeLab(partial(measured, takes_s=takes_s))
    return WorkerSite(replace(H200, name=name), lambda: nullcontext(lab))


if __name__ == "__main__":
    sys.exit(worker_process.main(open_site=open_site))
