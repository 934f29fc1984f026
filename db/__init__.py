"""The store: devices and their calibrations, graphs, kernels, trials and plans, in SQLite or in any
SQLAlchemy database.

Plain records go in and come out; no torch, no planner, no tuner, no Optuna. Payloads are JSON with
a SHA-256 beside each: nothing that a store holds is ever executed.
The names load on first use: who only needs records does not wait for SQLAlchemy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .collect import Collected, Doomed
    from .errors import (
        PlanNotFound,
        StoreCorrupt,
        StoreError,
        StoreMissing,
        StoreNewer,
        StoreReadOnly,
        StoreRefused,
        StoreUnavailable,
    )
    from .records import (
        CalibrationRecord,
        Counts,
        DeviceRecord,
        Evidence,
        GraphRecord,
        JobRecord,
        KernelRecord,
        Level,
        Merged,
        Outcome,
        PlanRecord,
        Snapshot,
        StudySummary,
        TrialRecord,
    )
    from .search import About
    from .store import Store

__all__ = [
    "About",
    "CalibrationRecord",
    "Collected",
    "Counts",
    "DeviceRecord",
    "Doomed",
    "Evidence",
    "GraphRecord",
    "JobRecord",
    "KernelRecord",
    "Level",
    "Merged",
    "Outcome",
    "PlanNotFound",
    "PlanRecord",
    "Snapshot",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreMissing",
    "StoreNewer",
    "StoreReadOnly",
    "StoreRefused",
    "StoreUnavailable",
    "StudySummary",
    "TrialRecord",
]

_HOME = {
    "About": ".search",
    "CalibrationRecord": ".records",
    "Collected": ".collect",
    "Counts": ".records",
    "DeviceRecord": ".records",
    "Doomed": ".collect",
    "Evidence": ".records",
    "GraphRecord": ".records",
    "JobRecord": ".records",
    "KernelRecord": ".records",
    "Level": ".records",
    "Merged": ".records",
    "Outcome": ".records",
    "PlanNotFound": ".errors",
    "PlanRecord": ".records",
    "Snapshot": ".records",
    "Store": ".store",
    "StoreCorrupt": ".errors",
    "StoreError": ".errors",
    "StoreMissing": ".errors",
    "StoreNewer": ".errors",
    "StoreReadOnly": ".errors",
    "StoreRefused": ".errors",
    "StoreUnavailable": ".errors",
    "StudySummary": ".records",
    "TrialRecord": ".records",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
