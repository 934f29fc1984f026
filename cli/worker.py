"""`planner worker`: share the searches of tunes that use the same store."""

from __future__ import annotations

from typing import Annotated

import typer

from ..db import Store
from . import render
from .errors import INTERRUPTED, UsageError
from .options import DeviceOption, JobsOption, StoreOption


def worker(
    store: StoreOption = None,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    exit_when_idle: Annotated[
        float | None,
        typer.Option(
            "--exit-when-idle",
            metavar="SECONDS",
            help="End after so many seconds without a search to share. Default: wait for ever.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Help the tunes that use the same store: compile and measure kernels for them, until Ctrl-C.

    A worker reads graphs from the store and does not run the models' code. It can be on another
    host than the tune. It helps only tunes for the same kind of GPU with the same versions. Each
    GPU has one worker.
    """
    if exit_when_idle is not None and not exit_when_idle >= 0:
        raise UsageError(f"--exit-when-idle {exit_when_idle:g}: give a number of seconds")
    from ..tuner.fleet.site import cuda_site
    from ..tuner.fleet.worker import FleetWorker, ProgressLines

    site = cuda_site(device or "cuda:0", jobs)
    console = render.err()

    def say(text: str) -> None:
        console.print(f"planner: {text}", markup=False, highlight=False, soft_wrap=True)

    with Store.open(store) as opened:
        say(f"worker on {site.profile.name}, for tunes of {opened.location}")
        shared = FleetWorker(opened, site, ProgressLines(say))
        try:
            shared.run(exit_when_idle)
        except KeyboardInterrupt:
            say(f"interrupted after {shared.measured} trials")
            raise typer.Exit(INTERRUPTED) from None
        say(f"{shared.measured} trials; nothing more to share")
