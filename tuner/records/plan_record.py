"""A plan as a record of the store."""

from __future__ import annotations

import hashlib
import json

from ...db.errors import StoreCorrupt
from ...db.records import PlanRecord
from ...db.store import Store
from ...planner.origin import ABOUT, Origin
from ...planner.plan import Plan


def plan_record(
    plan: Plan,
    device_key: str,
    name: str,
    bucket: str | None = None,
    origin: Origin | None = None,
) -> PlanRecord:
    """The plan as the store keeps it; one for each graph, device and versions. bucket: see
    `varying`. origin: for people."""
    current = dict(plan.versions)
    identity = json.dumps([plan.graph_key, device_key, sorted(current.items())])
    return PlanRecord(
        key=hashlib.sha256(identity.encode()).hexdigest()[:32],
        graph_key=plan.graph_key,
        device_key=device_key,
        versions=current,
        name=name or plan.graph_key[:12],
        evidence=plan.evidence,
        payload=plan.to_json() | ({ABOUT: origin.to_json()} if origin else {}),
        speedup=plan.speedup,
        bucket_key=bucket,
    )


def plan_in(store: Store, record: PlanRecord) -> Plan:
    """The plan in a record. Raises StoreCorrupt for a record that is no plan."""
    try:
        return Plan.from_json(record.payload)
    except ValueError as error:
        raise StoreCorrupt(
            f"Plan {record.key} in {store.location} cannot be read ({error}): tune it again."
        ) from error
