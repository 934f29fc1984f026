"""Brings the trials of several stores into one, for `planner accuracy`.

    python scripts/merge_stores.py OUT STORE...

Stores of an older schema are migrated when they are opened: give copies where that matters.
"""

import sys
from dataclasses import replace

from fusionplan.db import Store


def bring(source: Store, target: Store) -> int:
    """Copy devices, kernels, their graphs and all trials; how many trials there were."""
    for device in source.devices():
        target.put_device(device)
    trials, known = source.trials(), set()
    for trial in trials:
        if trial.level == "kernel" and trial.subject not in known:
            known.add(trial.subject)
            kernel = source.kernel(trial.subject)
            graph = source.graph(kernel.graph_key) if kernel else None
            if kernel and graph:
                target.put_graph(graph)
                target.put_kernel(kernel)
        target.add_trial(replace(trial, id=None))
    return len(trials)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with Store.open(sys.argv[1]) as target:
        for place in sys.argv[2:]:
            with Store.open(place, create=False) as source:
                print(f"{place}: {bring(source, target)} trials")
