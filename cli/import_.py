"""`planner import`: plans of a bundle into a store, which loses nothing by it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..db import Merged, PlanRecord, Store
from . import render
from .export import words
from .options import JsonOption, StoreOption

if TYPE_CHECKING:
    from ..bundles.contents import Contents


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file that `planner export` or `planner bundle` wrote."
        ),
    ],
    store: StoreOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what the file holds and who signed it. Write nothing."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Add the plans and trials of a bundle to the store, all of them or none.

    The bundle must be signed by a key that you trust (`planner trust`). If it is not, or if the
    file was changed, the exit code is 8 and nothing is imported. A stored plan is replaced only by
    one with more evidence, or by a faster one if both were measured. Trials that the store already
    has are skipped, and its profiles of devices stay. Machine code is not imported.
    """
    from ..bundles.contents import open_bundle
    from ..bundles.signing import parsed, trusted
    from ..db.exchange import storable
    from ..planner.errors import BundleError

    keys = trusted()
    found = open_bundle(file, keys)
    try:
        storable(found.records)
    except ValueError as error:
        raise BundleError(f"{file}: {error}; nothing of it was used") from error
    known = keys[parsed(found.signer)]
    name = f"{known} ({found.signer})" if known else found.signer
    if dry_run:
        _tell(file, found, name, json)
        return
    with Store.open(store) as opened:
        merged = opened.merge(found.records, is_better)
        location = opened.location
    if json:
        render.print_json({"store": location, "signer": found.signer, "merged": asdict(merged)})
        return
    render.out().print(f"{file} of {name}, into {location}", soft_wrap=True)
    render.out().print(table(merged))


def is_better(stored: PlanRecord, given: PlanRecord) -> bool:
    """Whether the plan is to take the place of the stored one: by more evidence, or by less time
    where both were measured."""
    from ..planner.plan import RANK

    here, there = RANK[stored.evidence], RANK[given.evidence]
    if here != there or given.evidence != "measured":
        return there > here
    before, now = stored.payload.get("measured"), given.payload.get("measured")
    return isinstance(before, float) and isinstance(now, float) and now < before


def table(merged: Merged) -> object:
    """What was added, replaced and kept of each kind."""
    made = render.table("", "added", "replaced", "kept", right=("added", "replaced", "kept"))
    for name, each in asdict(merged).items():
        made.add_row(name, str(each["added"]), str(each["replaced"]), str(each["kept"]))
    return made


def _tell(file: Path, found: Contents, name: str, json: bool) -> None:
    kernels = 0 if found.code is None else len(found.code.kernels)
    if json:
        plans = [
            {"key": p.key, "name": p.name, "evidence": p.evidence} for p in found.records.plans
        ]
        about = {"file": str(file), "signer": found.signer, "about": dict(found.about)}
        maker = None if found.code is None else dict(found.code.maker)
        render.print_json(about | {"plans": plans, "machine_code": kernels, "made_by": maker})
        return
    render.out().print(f"{file} of {name}: {words(found.records)}", soft_wrap=True)
    if found.code is not None:
        made = render.pairs(dict(found.code.maker))
        render.out().print(f"machine code of {kernels} kernels, made with {made}", soft_wrap=True)
