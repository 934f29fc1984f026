"""Adds trials first, first+1, ...; prints number and id of each once the store has taken it.

Run by the tests as `python writer.py LOCATION FIRST COUNT`.
"""

import sys

from fusionplan.db import DeviceRecord, Store, TrialRecord


def main(location: str, first: int, count: int) -> None:
    with Store.open(location) as store:
        store.put_device(DeviceRecord("dev-1", "NVIDIA H200", 132, 151_000_000_000, "9.0", {}))
        for number in range(first, first + count):
            trial = TrialRecord(
                study="config",
                level="kernel",
                subject="kernel-1",
                device_key="dev-1",
                versions={"torch": "2.11.0"},
                config={"BLOCK_M": number},
                outcome="timed",
                timing="cold",
                measured_s=1e-6 * (1 + number),
            )
            print(number, store.add_trial(trial), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
