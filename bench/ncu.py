"""Bytes of one call as Nsight Compute (ncu) counts them: its command line, and what it prints."""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from ..planner.errors import DeviceError, FusionplanError
from .result import PREDICTED, CountedTraffic, Missing, Predicted

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, TIME = "lts__t_bytes.sum", "gpu__time_duration.sum"
METRICS = (READ, WRITTEN, L2, TIME)

USUAL = "/usr/local/cuda/bin/ncu"

_UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_UNITS |= {"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0}
_UNITS |= {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class NcuError(FusionplanError):
    """ncu counted nothing that can be used."""


def find() -> str:
    """The program. Raises DeviceError where there is none."""
    found = shutil.which("ncu") or (USUAL if os.access(USUAL, os.X_OK) else None)
    if found is None:
        raise DeviceError(f"no program ncu on PATH nor {USUAL}: install NVIDIA Nsight Compute")
    return found


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """One kernel that ncu watched, and what it counted, in bytes and seconds by metric."""

    name: str
    counted: Mapping[str, float]


def watch(program: Sequence[str]) -> CountedTraffic | Missing:
    """Run a program of ours that turns the profiler on for one call and prints what the model
    expects. Raises DeviceError without ncu, NcuError when it fails."""
    said, told = under(program, METRICS)
    try:
        predicted = PREDICTED.validate_json(said)
    except ValidationError as error:
        raise NcuError(f"the program under ncu gave no result: {said[-200:]!r}") from error
    return predicted if isinstance(predicted, Missing) else summed(told, predicted)


def under(program: Sequence[str], metrics: Sequence[str]) -> tuple[str, str]:
    """What the program prints, and what ncu logs of the kernels that it launches while it has the
    profiler on. Raises DeviceError without ncu, NcuError when it fails."""
    ncu = find()
    with TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        done = subprocess.run(
            command(ncu, log, program, metrics),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        told = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if done.returncode:
        raise NcuError(f"ncu ended with exit code {done.returncode}{_complaint(told)}")
    return done.stdout, told


def command(ncu: str, log: Path, program: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The kernels between the calls that start and stop the profiler, in base units; the clocks
    are left as they are. What ncu itself says goes to the log."""
    options = ["--profile-from-start", "off", "--clock-control", "none"]
    options += ["--target-processes", "application-only", "--metrics", ",".join(metrics)]
    options += ["--csv", "--print-units", "base", "--log-file", str(log)]
    return [ncu, *options, *program]


def summed(text: str, predicted: Predicted) -> CountedTraffic:
    """The sums over the kernels in ncu's output. Raises NcuError where it has none, or where a
    metric was not counted."""
    kernels = launches(text, METRICS)
    sums = {m: sum(one.counted[m] for one in kernels) for m in METRICS}
    read, written, l2 = (round(sums[m]) for m in (READ, WRITTEN, L2))
    return CountedTraffic(read, written, l2, sums[TIME], len(kernels), predicted)


def launches(text: str, metrics: Sequence[str]) -> list[ProfiledLaunch]:
    """The kernels in ncu's output, in the order of their launches. Raises NcuError where there is
    none, or where a metric was not counted."""
    names: dict[str, str] = {}
    found: dict[str, dict[str, float]] = {}
    for row in _rows(text, metrics):
        names[row["ID"]] = row["Kernel Name"]
        found.setdefault(row["ID"], {})[row["Metric Name"]] = _value(row)
    if not found:
        raise NcuError(f"ncu saw no kernel{_complaint(text)}")
    for counted in found.values():
        missing = [metric for metric in metrics if metric not in counted]
        if missing:
            raise NcuError(f"ncu did not count {missing[0]} of every kernel")
    return [ProfiledLaunch(names[number], found[number]) for number in found]


def _rows(text: str, metrics: Sequence[str]) -> list[dict[str, str]]:
    """One for each kernel and metric. Lines of ncu's own, and of the program's, come before."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        if line.startswith('"ID",'):
            table = [row for row in lines[start:] if row.startswith('"')]
            return [row for row in csv.DictReader(table) if row.get("Metric Name") in metrics]
    return []


def _value(row: Mapping[str, str]) -> float:
    number, unit = row["Metric Value"].replace(",", ""), row["Metric Unit"]
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise NcuError(f"ncu gave {row['Metric Name']} as {number!r} in {unit!r}")
    return value


def _complaint(text: str) -> str:
    """The last error that ncu told, as the rest of a sentence."""
    found = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    return f": {found[-1].removeprefix('==ERROR==').strip()}" if found else ""
