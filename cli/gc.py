"""`planner gc`: take out of the store what nobody needs any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from ..db import Doomed, Store
from . import render
from .errors import UsageError
from .options import JsonOption, StoreOption

_NAMES = ("torch", "triton", "cuda", "codegen")

_AGE = re.compile(r"(\d+)([hdwy])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_UNITS["y"] = timedelta(days=365)


def gc(
    store: StoreOption = None,
    older: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove what was last saved longer ago than this: 12h, 30d, 8w or 1y.",
        ),
    ] = None,
    other_versions: Annotated[
        bool,
        typer.Option(
            "--other-versions",
            help="Remove what was made with other versions of torch, Triton, CUDA or fusionplan "
            "than those installed here.",
        ),
    ] = False,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Remove what belongs to this device: its name, or the first characters of its "
            "key.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed. Remove nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove plans and trials from the store, and the graphs and kernels that only they used.

    Without --of, graphs that processes kept for later ones are removed, too. They lie beside
    Triton's machine code.

    Give at least one option. What is removed matches all options that are given. Profiles of
    devices, and Optuna's own copy of the trials, are kept.
    """
    if older is None and of is None and not other_versions:
        raise UsageError("give at least one of --older, --other-versions and --of")
    before = None if older is None else datetime.now(UTC) - age(older)
    with Store.open(store, create=False) as opened:
        versions = tuple(filter(_is_other, opened.versions())) if other_versions else None
        doomed = Doomed(before, _device(opened, of), versions)
        gone = opened.collect(doomed, dry_run=dry_run)
        location = opened.location
    kept = _kept_graphs(before, other_versions, dry_run) if of is None else 0
    if json:
        told = {"store": location, "dry_run": dry_run, "gone": asdict(gone), "kept_graphs": kept}
        render.print_json(told)
        return
    counts = render.counted(asdict(gone))
    word = "would go from" if dry_run else "gone from"
    render.out().print(f"{counts} {word} {location}", soft_wrap=True)
    if kept:
        word = "would go" if dry_run else "gone"
        render.out().print(f"{render.counted({'kept graphs': kept})} {word}", soft_wrap=True)


def _kept_graphs(before: datetime | None, other_versions: bool, dry_run: bool) -> int:
    """How many graphs went that processes kept for later ones."""
    from ..planner.runtime.dispatch.kept_files import collect

    limit = float("inf") if before is None else before.timestamp()
    return collect(lambda used: used < limit, other_versions, dry_run)


def age(text: str) -> timedelta:
    """`30d` as 30 days. Raises UsageError for anything else."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--older {text}: give a number with h, d, w or y, such as 30d")
    try:
        return int(found[1]) * _UNITS[found[2]]
    except OverflowError as error:
        raise UsageError(f"--older {text}: there is no such time") from error


def _device(store: Store, wanted: str | None) -> str | None:
    if wanted is None:
        return None
    known = store.devices()
    found = [d for d in known if wanted in (d.name, d.key)]
    found = found or [d for d in known if wanted and d.key.startswith(wanted)]
    if len(found) != 1:
        names = ", ".join(f"{d.name} ({d.key})" for d in found or known) or "none"
        raise UsageError(f"--of {wanted}: give one device of the store: {names}")
    return found[0].key


def _is_other(stored: Mapping[str, str]) -> bool:
    """Whether a plan or trial was made with another version than is installed. A plan that was made
    for a device elsewhere names no CUDA, and torch's release without its build; and settings are no
    versions."""
    current = _versions()
    known = [name for name in _NAMES if name in stored]
    return any(stored[name].split("+")[0] != current[name].split("+")[0] for name in known)


def _versions() -> dict[str, str]:
    from ..planner.versions import versions

    return versions()
