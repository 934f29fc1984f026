"""Writes the sample of trials that the cost model is fitted to, and reads it into a store.

    python scripts/trial_sample.py write STORE...   # every store's trials of the device, to SAMPLE
    python scripts/trial_sample.py load STORE       # a new store with what SAMPLE holds

--sample FILE is another sample than that of the tree, --keep leaves in what FILE has already.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from fusionplan.db import Store
from fusionplan.db.records import Snapshot
from fusionplan.tuner.records import trial_sample

SAMPLE = Path(__file__).resolve().parent / "trials" / "h100.jsonl"


def write(sample: Path, stores: Iterable[str], keep: bool) -> None:
    """Write what the stores know of the device of the first."""
    found: list[Snapshot] = []
    if keep:
        found.append(trial_sample.read(sample.read_text().splitlines()))
    for place in stores:
        with Store.open(place, create=False) as store:
            found.append(store.snapshot())
    device = found[0].devices[0].key
    lines = list(trial_sample.written(found, device))
    sample.write_text("".join(f"{line}\n" for line in lines))
    print(f"{sample}: {len(lines) - 1} groups, {sample.stat().st_size / 1e6:.2f} MB")


def load(sample: Path, place: str) -> None:
    with Store.open(place) as store:
        merged = store.merge(trial_sample.read(sample.read_text().splitlines()))
    print(f"{place}: {merged.trials.added} trials of {merged.kernels.added} groups")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("write", "load"))
    parser.add_argument("stores", nargs="+", metavar="STORE")
    parser.add_argument("--sample", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.what == "write":
        write(options.sample, options.stores, options.keep)
    else:
        load(options.sample, *options.stores)
