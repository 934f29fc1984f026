"""`planner plans`: every plan in the store, on one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..db import PlanRecord, Store
from . import render, stored
from .options import JsonOption, StoreOption


@dataclass(frozen=True, slots=True)
class _Listed:
    record: PlanRecord
    device: str
    stage: str
    inputs: str

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "key": record.key,
            "name": record.name,
            "graph_key": record.graph_key,
            "stage": self.stage,
            "inputs": self.inputs,
            "device": self.device,
            "evidence": record.evidence,
            "measured_s": record.payload.get("measured"),
            "predicted_s": record.payload.get("predicted"),
            "speedup": record.speedup,
            "versions": record.versions,
            "updated_at": record.updated_at.isoformat(),
        }


def plans(
    store: StoreOption = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Show only plans whose name or file starts with TEXT."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="The maximum number of rows.")
    ] = 100,
    json: JsonOption = False,
) -> None:
    """List the plans in the store, the newest first: key, name, inputs, device, time, evidence.

    `planner show NAME` shows one of them.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        devices = {device.key: device.name for device in opened.devices()}
        records = [r for r in opened.plans() if name is None or _is_named(r, name)][:limit]
        found = [
            _Listed(
                record,
                devices.get(record.device_key, record.device_key),
                *stored.about(record, stored.graph_of(opened, record.graph_key)),
            )
            for record in records
        ]
        location = opened.location
    if json:
        render.print_json({"plans": [each.to_json() for each in found]})
    elif not found:
        render.out().print(f"no plans in {location}: planner tune makes them")
    else:
        _print(found)


def _is_named(record: PlanRecord, name: str) -> bool:
    return record.name.startswith((name, stored.title(name)))


def _print(found: list[_Listed]) -> None:
    figures = ("time", "speed-up")
    columns = ("key", "name", "stage", "inputs", "device", "evidence", *figures, "saved")
    made = render.table(
        *columns,
        right=figures,
        wide=("name", "inputs", "device"),
        extra=("device", "saved", "stage"),
    )
    for each in found:
        payload = each.record.payload
        seconds = payload.get("measured") or payload.get("predicted")
        made.add_row(
            each.record.key[: render.KEY],
            each.record.name,
            each.stage,
            each.inputs,
            each.device,
            each.record.evidence,
            render.duration(seconds if isinstance(seconds, (int, float)) else None),
            render.ratio(each.record.speedup),
            f"{each.record.updated_at:%Y-%m-%d %H:%M}",
        )
    render.out().print(made)
