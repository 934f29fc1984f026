"""A worker on another GPU of the tune's host: `python -m fusionplan.tuner.fleet.worker_process`.

The store is $PLANNER_STORE, so that no password is among the arguments. It starts while the tune
captures its model, and ends with the tune's last job, on SIGTERM, and when the process that started
it dies.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...db.store import Store
from ..workers.pipes import die_with_parent
from .site import WorkerSite, cuda_site
from .worker import FleetWorker, ProgressLines

OpenSite = Callable[[int | None], WorkerSite]
"""Makes the site, given how many compilers it may have."""


def open_cuda(compilers: int | None) -> WorkerSite:
    """The one GPU that this process may see, as those who started it chose."""
    return cuda_site(compilers=compilers)


def main(arguments: Sequence[str] | None = None, open_site: OpenSite = open_cuda) -> int:
    parser = argparse.ArgumentParser(prog="fusionplan.tuner.fleet.worker_process")
    parser.add_argument("--tune", required=True, help="the tune whose jobs are shared")
    parser.add_argument("--compilers", type=int, default=None)
    options = parser.parse_args(arguments)
    die_with_parent()
    signal.signal(signal.SIGTERM, _interrupt)
    site = open_site(options.compilers)
    try:
        with Store.open() as store:
            FleetWorker(store, site, ProgressLines(_say)).run(tune=options.tune, early=True)
    except KeyboardInterrupt:
        return 0
    return 0


def _interrupt(number: int, frame: Any) -> None:
    """Claims and processes are let go of on the way out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
