"""The store: devices and their calibrations, graphs, kernels, trials and plans, in SQLite or in any
SQLAlchemy database.

Plain records go in and come out; no torch, no planner, no tuner, no Optuna. Payloads are JSON with
a SHA-256 beside each: nothing that a store holds is ever executed.
"""

from .collect import Collected, Doomed
from .errors import (
    PlanNotFound,
    StoreCorrupt,
    StoreError,
    StoreNewer,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from .exchange import Counts, Merged, Snapshot
from .records import (
    CalibrationRecord,
    DeviceRecord,
    Evidence,
    GraphRecord,
    KernelRecord,
    Level,
    Outcome,
    PlanRecord,
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
    "StoreNewer",
    "StoreReadOnly",
    "StoreRefused",
    "StoreUnavailable",
    "StudySummary",
    "TrialRecord",
]
