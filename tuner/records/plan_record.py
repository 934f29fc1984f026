"""A plan as a record of the store."""

from __future__ import annotations

import hashlib
import json

from ...db.records import PlanRecord
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
