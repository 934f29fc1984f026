"""`planner calibrate`: measure what the cost model counts with."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..db import Store
from . import render
from .errors import UsageError
from .options import DeviceOption, JsonOption, StoreOption

if TYPE_CHECKING:
    from ..tuner.measure.calibrate import Calibration


def calibrate(
    store: StoreOption = None,
    device: DeviceOption = None,
    within: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            help="Start no new measurement after this time, in seconds. At most 60.",
        ),
    ] = 60.0,
    json: JsonOption = False,
) -> None:
    """Measure the device: bandwidth, launch time, arithmetic and matrix products. The figures are
    stored as the profile of the device, and later tunes use it. `planner accuracy --undo` removes
    it.

    This needs a CUDA device; without one the exit code is 4.
    """
    if not (0 < within <= 60.0 and math.isfinite(within)):
        raise UsageError(f"--seconds {within:g}: give a number above zero, at most 60")
    with Store.open(store) as opened:
        found = _measured(device, within)
        from ..tuner.records.ledger import device_record

        if opened.device(found.profile.key) is None:
            opened.put_device(device_record(found.profile))
        opened.add_calibration(found.record())
        location = opened.location
    if json:
        render.print_json(
            {
                "device": found.profile.name,
                "profile": found.profile.to_json(),
                "figures": [asdict(f) for f in found.figures],
                "skipped": list(found.skipped),
                "seconds": found.seconds,
            }
        )
        return
    _print(found, location)


def _measured(device: str | None, seconds: float) -> Calibration:
    from ..planner.errors import DeviceError
    from ..tuner.measure.calibrate import DeviceMeter
    from ..tuner.measure.calibrate import calibrate as measure
    from ..tuner.session.place import place_of

    place = place_of(device, None)
    if place.device.type != "cuda":
        raise DeviceError(
            "there is no CUDA device to calibrate: run this where there is one. `planner tune "
            "--target GPU` plans for a GPU that is not here, with its built-in profile"
        )
    meter = DeviceMeter(place.device, place.profile.l2_bytes)
    return measure(meter, place.profile, seconds=seconds)


def _print(found: Calibration, location: str) -> None:
    out = render.out()
    figures = ("before", "measured")
    made = render.table("figure", *figures, "unit", right=figures)
    for f in found.figures:
        made.add_row(f.name, f"{f.before:.4g}", f"{f.measured:.4g}", f.unit)
    out.print(made)
    for text in found.skipped:
        out.print(f"not measured: {text}")
    out.print(f"{found.profile.name}: measured in {found.seconds:.1f} s, kept in {location}")
