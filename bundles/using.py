"""A bundle as a place to find plans in, and its machine code as kernels that need no compiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..db.records import DeviceRecord, PlanRecord
from ..planner.cures import warn
from ..planner.errors import BundleError
from ..planner.runtime.machine_code import host_code, ready
from ..planner.runtime.machine_code.compile import interpreted
from ..planner.versions import differences
from .contents import Code, Contents, open_bundle
from .signing import parsed, trusted


@dataclass(frozen=True, slots=True)
class BundledPlans:
    """Answers what `api` asks of a store."""

    contents: Contents

    def plan(self, graph_key: str, device_key: str, versions: dict[str, str]) -> PlanRecord | None:
        found = self.plans(graph_key=graph_key, device_key=device_key, versions=versions)
        return next(iter(found), None)

    def plans(
        self,
        *,
        graph_key: str | None = None,
        bucket_key: str | None = None,
        device_key: str | None = None,
        versions: dict[str, str] | None = None,
    ) -> list[PlanRecord]:
        """The plans that match all that is given, the latest saved first."""
        found = [
            plan
            for plan in self.contents.records.plans
            if graph_key in (None, plan.graph_key)
            and bucket_key in (None, plan.bucket_key)
            and device_key in (None, plan.device_key)
            and versions in (None, plan.versions)
        ]
        return sorted(found, key=lambda plan: plan.updated_at, reverse=True)

    def device(self, key: str) -> DeviceRecord | None:
        return next((each for each in self.contents.records.devices if each.key == key), None)


_OPENED: dict[tuple[str, int, int, int], Contents] = {}
_LOCK = threading.Lock()


def use(path: str | Path) -> BundledPlans:
    """The plans of a bundle, whose machine code this process uses from now on, where it was made by
    the versions at hand; else a warning says what differs. A process reads a file once. Raises
    BundleError where its signature is not one that the user trusts."""
    file = Path(path).expanduser()
    try:
        found = os.stat(file)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror or error}") from error
    which = os.path.realpath(file), found.st_ino, found.st_size, found.st_mtime_ns
    keys = trusted()
    with _LOCK:
        contents = _OPENED.get(which)
        if contents is None or parsed(contents.signer) not in keys:
            contents = open_bundle(file, keys)
            if contents.code is not None and not interpreted():
                _use_code(file, contents.code)
            _OPENED[which] = contents
    return BundledPlans(contents)


def _use_code(file: Path, code: Code) -> None:
    here = ready.maker()
    wrong = differences(_comparable(code.maker, here), _comparable(here, code.maker))
    if wrong:
        text = f"the machine code in {file} is not used, and kernels are compiled"
        warn("bundle", f"{text}: {'; '.join(wrong)}", stacklevel=5)
        return
    ready.add(code.kernels)
    try:
        host_code.put(code.host)
    except (OSError, ValueError) as error:
        text = f"modules of Triton's in {file} are not used, and are compiled: {error}"
        warn("bundle", text, stacklevel=5)


def _comparable(of: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Without ptxas where there is none: machine code that is ready needs none."""
    return {name: value for name, value in of.items() if name != "ptxas" or name in other}
