"""`planner export`: plans and the evidence for them, in one signed file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..db import Merged, Snapshot, Store
from . import render, stored
from .options import JsonOption, OutputOption, StoreOption


def export(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLAN]...",
            help="The plans: names, files that were tuned, or the first characters of keys. "
            "Default: all plans of the store.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Path("plans.bundle"),
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write plans with their graphs, kernels' keys and trials to one file, signed with your key.

    `planner import` adds the plans to another store. fusionplan.load(model, bundle=FILE) runs a
    model by the file itself. The file has no machine code; `planner bundle` writes one that has. It
    also holds the profiles of the devices; a store that has profiles of its own keeps them.
    """
    from ..bundles.contents import Contents, plan_kernels, write
    from ..bundles.signing import private_key, shown

    with Store.open(store, create=False, read_only=True) as opened:
        found = [stored.find(opened, each) for each in plans or []]
        kernels = plan_kernels(each.plan.to_json() for each in found)
        chosen = [each.key for each in found] if plans else None
        records = opened.snapshot(chosen, sorted(kernels))
    private = private_key()
    size = write(output, Contents(records), private)
    told = {"file": str(output), "bytes": size, "signer": shown(private.public)} | counts(records)
    if json:
        render.print_json(told)
        return
    render.out().print(f"{output}: {words(records)}; {size:,} bytes", soft_wrap=True)
    render.out().print(f"signed by {told['signer']}", soft_wrap=True)


def counts(records: Snapshot) -> dict[str, int]:
    """How many there are of each kind."""
    return {name: len(getattr(records, name)) for name in Merged.__dataclass_fields__}


def words(records: Snapshot) -> str:
    """The same in words, for people."""
    return render.counted(counts(records))
