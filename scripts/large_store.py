"""Makes a store as years of tuning leave it, and times what is asked of it.

    python scripts/large_store.py OUT.db [--trials 100000] [--plans 2000]

The rows are written in bulk, in a fraction of the time that `Store.add_trial` takes. Seconds are
printed for each question, the least of three.
"""

import argparse
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fusionplan.db import About, DeviceRecord, Store
from fusionplan.db.payload import canonical, digest
from fusionplan.db.readers import reader

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "codegen": "14"}
DEVICE = "device-0"
EACH = 64
"""Trials of a kernel."""
FORMS = 50
"""Forms that the kernels share out."""


def fill(path: Path, trials: int, plans: int) -> None:
    """A new store at the path with so many trials and plans."""
    with Store.open(path) as store:
        store.put_device(DeviceRecord(DEVICE, "NVIDIA H200", 132, 151_000_000_000, "90", {}))
    with closing(sqlite3.connect(path)) as connection, connection:
        _rows(connection, "graph", (_graph(i) for i in range(plans)))
        _rows(connection, "plan", (_plan(i) for i in range(plans)))
        _rows(connection, "kernel", (_kernel(i, plans) for i in range(-(-trials // EACH))))
        _rows(connection, "trial", (_trial(i) for i in range(trials)))
        connection.execute("ANALYZE")


def _rows(connection: sqlite3.Connection, table: str, rows: Any) -> None:
    for number, row in enumerate(rows):
        if number == 0:
            marks = ", ".join(f":{name}" for name in row)
            statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
        connection.execute(statement, row)


def _digested(**payloads: Any) -> dict[str, str]:
    texts = {name: canonical(value) for name, value in payloads.items()}
    return texts | {f"{name}_sha256": digest(text) for name, text in texts.items()}


def _moment(number: int) -> str:
    second = number % 86400
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000000"
    return f"2026-{1 + number // 86400 % 12:02}-01 {clock}"


def _graph(i: int) -> dict[str, Any]:
    payload = _digested(payload={"nodes": [f"node {n}" for n in range(40)], "i": i})
    return {"key": f"graph-{i:05}", "name": f"model {i}", "nodes": 40} | payload


def _plan(i: int) -> dict[str, Any]:
    groups = [{"nodes": [n], "lowering": "triton", "config": {"x0": n}} for n in range(60)]
    moment = _moment(i)
    return {
        "key": f"plan-{i:05}",
        "graph_key": f"graph-{i:05}",
        "device_key": DEVICE,
        "name": f"model {i}",
        "evidence": "measured",
        "bucket_key": f"bucket-{i // 4:05}",
        "created_at": moment,
        "updated_at": moment,
    } | _digested(versions=VERSIONS, payload={"groups": groups, "i": i})


def _kernel(i: int, plans: int) -> dict[str, Any]:
    return {
        "key": f"kernel-{i:05}",
        "graph_key": f"graph-{i % max(1, plans):05}",
        "family": "pointwise",
        "form": digest(str(i % FORMS)),
    } | _digested(payload={"form": i % FORMS, "nodes": [f"node {n}" for n in range(10)]})


def _trial(i: int) -> dict[str, Any]:
    kernel = i // EACH
    timed = i % 10 != 0
    config = {"lowering": "triton", "blocks": [["x0", 1 << i % EACH % 12], ["r0", i % EACH]]}
    return {
        "study": f"fused_{kernel % 97} kernel-{kernel:05}",
        "level": "kernel",
        "subject": f"kernel-{kernel:05}",
        "device_key": DEVICE,
        "timing": "cold",
        "outcome": "timed" if timed else "miscompiled",
        "reason": None if timed else "no",
        "measured_s": 1e-5 * (1 + (i * 7919) % 101) if timed else None,
        "created_at": _moment(i),
    } | _digested(versions=VERSIONS, config=config)


def questions(path: Path, plans: int) -> dict[str, Callable[[], object]]:
    """What is asked of a store, by name."""

    def fresh() -> object:
        with Store.open(path, create=False, read_only=True) as store:
            return store.plan(f"graph-{plans // 2:05}", DEVICE, VERSIONS)

    def asked(question: Callable[[Store], object]) -> Callable[[], object]:
        def ask() -> object:
            with Store.open(path, create=False, read_only=True) as store:
                return question(store)

        return ask

    def kernel(store: Store) -> object:
        found = store.kernel("kernel-00007")
        assert found is not None
        return store.relatives(found, 64)

    return {
        "look-up at load, store opened for it": fresh,
        "look-up at load, store kept open": lambda: reader(path).plan(
            f"graph-{plans // 3:05}", DEVICE, VERSIONS
        ),
        "look-up of a bucket, store kept open": lambda: reader(path).plans(
            bucket_key="bucket-00001", device_key=DEVICE, versions=VERSIONS
        ),
        "history": asked(lambda s: s.studies(limit=50)),
        "history --study": asked(lambda s: s.trials(about=About("fused_3"), limit=50)),
        "history --graph": asked(lambda s: s.trials(about=About(graph="graph-00003"), limit=50)),
        "history --best": asked(lambda s: s.trials(best=True, limit=50, newest_first=True)),
        "all studies": asked(lambda s: s.studies()),
        "the newest plan": asked(lambda s: s.plans(limit=1)),
        "a plan by its name": asked(lambda s: s.find_plan("model 7")),
        "neighbours of a group": asked(kernel),
        "whether a fit is due": asked(
            lambda s: s.count_trials(level="kernel", device_key=DEVICE, outcome="timed")
        ),
        "the newest 2000 trials": asked(
            lambda s: s.trials(device_key=DEVICE, outcome="timed", limit=2000, newest_first=True)
        ),
        "opening for writing": lambda: Store.open(path).close(),
        "doctor": asked(lambda s: s.problems()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--plans", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.out.exists():
        fill(options.out, options.trials, options.plans)
    found = {}
    for name, ask in questions(options.out, options.plans).items():
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            ask()
            taken.append(time.perf_counter() - begin)
        found[name] = min(taken)
        if not options.json:
            print(f"{name:40} {1e3 * found[name]:9.1f} ms")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
