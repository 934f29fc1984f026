"""The library's log: Python's `logging` under the name "fusionplan", and the variable that turns it
on.

PLANNER_LOGS is a list of areas, separated by commas: `tune` tells what it does, `+tune` in detail,
`-tune` errors alone. `all` is every area. A program that sets up logging itself needs none of it.
"""

from __future__ import annotations

import logging
import os
import sys

AREAS = {
    "all": "fusionplan",
    "tune": "fusionplan.tuner",
    "plans": "fusionplan.api",
    "runtime": "fusionplan.planner.runtime",
    "capture": "fusionplan.planner.capture",
}
"""Areas of PLANNER_LOGS, and the loggers that they stand for."""

VARIABLE = "PLANNER_LOGS"

_LEVELS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}


def configure(wanted: str | None = None) -> None:
    """Let the areas speak, on stderr; None is what the variable says. What cannot be understood is
    told once and left out: an import must not fail for it."""
    text = os.environ.get(VARIABLE, "") if wanted is None else wanted
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        return
    root = logging.getLogger("fusionplan")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    for item in items:
        sign, area = (item[0], item[1:]) if item[0] in "+-" else ("", item)
        if area in AREAS:
            logging.getLogger(AREAS[area]).setLevel(_LEVELS[sign])
        else:
            root.warning("%s: no area %r; areas are %s", VARIABLE, area, ", ".join(AREAS))
