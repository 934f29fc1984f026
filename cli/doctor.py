"""`planner doctor`: whether everything that planner needs is there and works."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Literal

import typer

from ..db import Store, StoreError, StoreMissing
from ..db.location import resolve
from . import render
from .errors import DEVICE, INTERNAL, STORE
from .options import JsonOption, StoreOption

CheckStatus = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. "note": planner works without it, with less. code: the exit code if broken."""

    name: str
    status: CheckStatus
    text: str
    code: int = INTERNAL


def doctor(
    store: StoreOption = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Check only versions, the driver, and whether the store opens. torch is not "
            "imported, nothing is compiled, and the records are not checked.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check versions, device, compiler and store. The exit code is 0 if planner can work."""
    examinations = QUICK if quick else EXAMINATIONS
    checks = [check for examine in examinations for check in _examined(examine)]
    checks += store_checks(store, quick)
    broken = [check for check in checks if check.status == "broken"]
    if json:
        render.print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        made = render.table("check", "state", "found", wide=("found",))
        made.styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
        for check in checks:
            made.add_row(check.name, check.status, check.text)
        render.out().print(made)
    if broken:
        names = ", ".join(check.name for check in broken)
        print(f"planner: broken: {names}; see the text beside each", file=sys.stderr)
        raise typer.Exit(broken[0].code)


def _examined(examine: Callable[[], list[Check]]) -> list[Check]:
    """What an examination finds; that it fails is a finding too."""
    name = examine.__name__
    try:
        return examine()
    except Exception as error:  # noqa: BLE001 - a doctor must not fall ill of what it finds
        text = " ".join(str(error).split())[:300]
        return [Check(name, "broken", f"{type(error).__name__}: {text}", DEVICE)]


def versions() -> list[Check]:
    """Python and the packages that planner stands on."""
    recent = sys.version_info >= (3, 11)
    found = [Check("python", "ok" if recent else "broken", platform.python_version())]
    for package in ("torch", "triton", "optuna", "sqlalchemy"):
        try:
            found.append(Check(package, "ok", metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append(Check(package, "broken", f"not installed: pip install {package}"))
    return found


def device() -> list[Check]:
    """The CUDA device, its driver, and what of it can be watched."""
    import torch

    from ..planner.costs.device import profile_of
    from ..planner.errors import DeviceError

    build = torch.version.cuda
    found = [Check("cuda", "ok" if build else "note", build or "this torch is built without CUDA")]
    if not torch.cuda.is_available():
        text = "no CUDA device: planner tune plans by the cost model (evidence: modelled)"
        return [*found, Check("device", "note", text)]
    for index in range(torch.cuda.device_count()):
        try:
            profile = profile_of(torch.device("cuda", index))
        except DeviceError as error:
            found.append(Check(f"cuda:{index}", "note", str(error)))
            continue
        text = (
            f"{profile.name}, compute capability {profile.capability / 10}, "
            f"{profile.sm_count} SMs, {profile.memory_bytes / 2**30:.0f} GiB"
        )
        if profile.estimated:
            text += "; its rates are estimated, `planner calibrate` measures them"
        found.append(Check(f"cuda:{index}", "ok", text))
    return [*found, *driver()]


def driver() -> list[Check]:
    """The driver's version by NVML, which also tells clocks and temperature."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - NVML is a convenience: any failure is only told
        text = f"NVML does not answer, so clocks are not recorded: {error}"
        return [Check("driver", "note", text)]
    try:
        return [Check("driver", "ok", str(pynvml.nvmlSystemGetDriverVersion()))]
    finally:
        pynvml.nvmlShutdown()


def compiler() -> list[Check]:
    """A small kernel, compiled for Hopper without a device, and what its machine code uses."""
    import triton

    from ..planner.codegen.source import Buffer, KernelSource
    from ..planner.runtime.machine_code.compile import (
        Target,
        compile_kernel,
        interpreted,
        resources,
    )

    ptxas = triton.knobs.nvidia.ptxas
    found = [Check("ptxas", "ok", f"{ptxas.version} at {ptxas.path}")]
    if interpreted():
        text = "TRITON_INTERPRET is set: kernels run on the CPU, slowly, and none is compiled"
        return [*found, Check("interpreter", "note", text)]
    buffers = (Buffer("in", 0, "float32"), Buffer("out", 0, "float32"))
    source = KernelSource("doctor", _KERNEL, buffers, 1, 4, 1)
    with triton.knobs.compilation.scope():
        # What lies in Triton's cache would prove nothing.
        triton.knobs.compilation.always_compile = True
        used = resources(compile_kernel(source, Target(capability=90)))
    text = f"compiles for sm_90 ({used.registers} registers, {used.cubin_bytes} bytes)"
    return [*found, Check("compiler", "ok", text), Check("interpreter", "ok", "off")]


_KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def doctor(x, y):
    i = tl.arange(0, 1024)
    tl.store(y + i, tl.load(x + i) + 1.0)
"""

EXAMINATIONS = (versions, device, compiler)
QUICK = (versions, driver)


def store_checks(location: str | None, quick: bool = False) -> list[Check]:
    """The store: where it is, whether it can be used, and, unless it is to be quick, all that is
    wrong with it."""
    try:
        place = resolve(location)
    except StoreError as error:
        return [Check("store", "broken", str(error), STORE)]
    if place.path is not None and not place.path.exists():
        return [_future(place.path)]
    try:
        with Store.open(location, create=False, read_only=True) as opened:
            if quick:
                return [Check("store", "ok", f"{opened.location}: it opens")]
            problems = opened.problems()
            rows = opened.counts()
            counts = f"plans: {rows['plan']}, studies: {opened.count_studies()}"
            found = [Check("store", "ok", f"{opened.location}: {counts}, trials: {rows['trial']}")]
            found += [Check("store contents", "broken", text, STORE) for text in problems]
            if not problems:
                found.append(_optuna(opened))
    except StoreMissing:
        return [Check("store", "ok", f"{place.shown}: empty, planner tune makes the store in it")]
    except StoreError as error:
        return [Check("store", "broken", str(error), STORE)]
    if place.path is not None and not os.access(place.path, os.W_OK):
        found.append(Check("store writable", "note", "no: plans can be read, not made"))
    return found


def _future(path: os.PathLike[str]) -> Check:
    """A store that is not there yet: whether it could be made."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
        return Check("store", "ok", f"{path}: not made yet; `planner tune` makes it")
    return Check("store", "broken", f"{path}: cannot be made, {folder} is not writable", STORE)


def _optuna(store: Store) -> Check:
    """Whether Optuna's tables are in the same database, for optuna-dashboard to open."""
    from sqlalchemy import create_engine, inspect

    engine = create_engine(store.url)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if "studies" in tables:
        return Check("optuna storage", "ok", "in the same database")
    return Check("optuna storage", "ok", "no study in the store yet")
