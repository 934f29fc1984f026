"""Brings the trials of several stores into one, for `planner accuracy`.

    python scripts/merge_stores.py OUT STORE... [--codegen N...]

--codegen: only trials of these versions of the code generator, as `planner accuracy` names them.
Stores of an older schema are migrated when they are opened: give copies where that matters.
"""

import argparse
from collections.abc import Collection
from dataclasses import replace

from fusionplan.db import Store


def bring(source: Store, target: Store, codegen: Collection[str] = ()) -> int:
    """Copy devices, kernels, their graphs and trials, all or of those versions; how many trials
    there were."""
    for device in source.devices():
        target.put_device(device)
    trials, known = source.trials(), set()
    if codegen:
        trials = [trial for trial in trials if trial.versions.get("codegen") in codegen]
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--codegen", nargs="+", default=[], help="versions, as in 7 8")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("stores", nargs="+", metavar="STORE")
    options = parser.parse_args()
    with Store.open(options.out) as target:
        for place in options.stores:
            with Store.open(place, create=False) as source:
                print(f"{place}: {bring(source, target, options.codegen)} trials")
