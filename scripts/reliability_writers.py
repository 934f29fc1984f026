"""What writes to a store while `reliability.py` does things to it, each in a process of its own:

python scripts/reliability_writers.py WRITER LOCATION FIRST COUNT
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

from fusionplan.db import DeviceRecord, GraphRecord, PlanRecord, Store, TrialRecord

VERSIONS = {"torch": "2.11.0", "codegen": "1"}
SHARERS = 8
"""Processes that share trials out."""


def trial(number: int) -> TrialRecord:
    return TrialRecord(
        study="config",
        level="kernel",
        subject="kernel-1",
        device_key="device",
        versions=VERSIONS,
        config={"number": number},
        outcome="timed",
        timing="cold",
        measured_s=1e-6 * (1 + number),
    )


def plan() -> PlanRecord:
    return PlanRecord(
        key="plan-1",
        graph_key="graph",
        device_key="device",
        versions=VERSIONS,
        name="plan",
        evidence="measured",
        payload={"groups": list(range(40))},
    )


def filled(location: str, trials: int = 0) -> None:
    with Store.open(location) as store:
        store.put_device(DeviceRecord("device", "NVIDIA H200", 132, 1, "90", {}))
        store.put_graph(GraphRecord("graph", "graph", 1, {}))
        saved = plan()
        store.save_plan(saved)
        for number in range(trials):
            store.add_trial(trial(number))


# What the children do


def write(location: str, first: int, count: int) -> None:
    """Adds trials, and prints each once the store has taken it."""
    with Store.open(location) as store:
        for number in range(first, first + count):
            print(number, store.add_trial(trial(number)), flush=True)


def share(location: str, seed: int, count: int) -> None:
    """Claims trials in an order of its own, prints each that it measures, and adds it."""
    order, holder = list(range(count)), f"holder {seed}"
    random.Random(seed).shuffle(order)
    with Store.open(location) as store:
        while order:
            for number in list(order):
                if store.claim(trial(number), holder, 20.0):
                    print(number, flush=True)
                    time.sleep(0.002)
                    store.add_trial(trial(number))
                    order.remove(number)
                elif any(t.config["number"] == number for t in store.trials()):
                    order.remove(number)


def share_by_another_clock(location: str, seed: int, count: int) -> None:
    """The same on a host whose clock is months before or behind."""
    from fusionplan.db import records

    months = timedelta(days=30 * (seed - SHARERS // 2))
    real, now = time.time, datetime.now

    class Moved(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return now(tz) + months

    time.time = lambda: real() + months.total_seconds()
    records.datetime = Moved
    share(location, seed, count)


def tune(location: str, seed: int, count: int) -> None:
    """A tune of a small function; it prints the evidence of its plan."""
    import fusionplan
    import torch

    x, b = torch.randn(4, 32), torch.randn(32)
    print(flush=True)
    tuned = fusionplan.tune(
        lambda x, b: torch.softmax(x + b, -1),
        (x, b),
        trials=count,
        seconds=60,
        store=location,
        progress=False,
    )
    print(tuned.plan.evidence, flush=True)


def study(location: str, seed: int, count: int) -> None:
    """The end of a tune: it brings Optuna's tables up to the store's trials."""
    from fusionplan.tuner.records import optuna_export
    from fusionplan.tuner.records.ledger import Ledger

    optuna_export.CLAIM_S = 3.0  # A killed one's claim is free after that.
    with Store.open(location) as store:
        ledger = Ledger(store, "device", dict(VERSIONS), "graph")
        ledger.studies.add("config")
        print("begun", flush=True)
        print(optuna_export.mirror(store, ledger), flush=True)


CHILDREN: dict[str, Callable[[str, int, int], None]] = {
    "study": study,
    "write": write,
    "share": share,
    "share by another clock": share_by_another_clock,
    "tune": tune,
}


def child(what: str, location: object, first: int, count: int, **options: object):
    command = [sys.executable, __file__, what, str(location), str(first), str(count)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **options,  # type: ignore[call-overload]
    )


def acknowledged(output: str) -> dict[int, int]:
    """A line cut short by a kill acknowledges nothing."""
    lines = [line for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return dict(tuple(map(int, line.split())) for line in lines)  # type: ignore[misc]


def kept(location: object) -> dict[int, int]:
    with Store.open(str(location)) as store:
        assert store.problems() == []
        found = store.trials()
        assert len({t.config["number"] for t in found}) == len(found)
        return {t.config["number"]: t.id or 0 for t in found}


def main() -> None:
    what, location, first, count = sys.argv[1:]
    CHILDREN[what](location, int(first), int(count))


if __name__ == "__main__":
    main()
