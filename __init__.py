"""fusionplan: decides which operations of a PyTorch model share a kernel, and remembers it.

The names load on first use, so that `import fusionplan.db` needs neither torch nor triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .logs import configure

if TYPE_CHECKING:
    from .api import Options, executors, load, plans, step
    from .db.errors import StoreError
    from .explaining import explain
    from .planner.cures import FusionplanWarning
    from .planner.errors import BundleError, DeviceError, FusionplanError, ModelError, PlanError
    from .planner.explanation import Explanation
    from .planner.plan import Plan
    from .tuned import Tuned
    from .tuner.progress.progress import Progress
    from .tuning import tune

__version__ = "0.1.0"
__all__ = [
    "BundleError",
    "DeviceError",
    "Explanation",
    "FusionplanError",
    "FusionplanWarning",
    "ModelError",
    "Options",
    "Plan",
    "PlanError",
    "Progress",
    "StoreError",
    "Tuned",
    "__version__",
    "executors",
    "explain",
    "load",
    "plans",
    "step",
    "tune",
]

_HOME = {
    "BundleError": ".planner.errors",
    "DeviceError": ".planner.errors",
    "Explanation": ".planner.explanation",
    "FusionplanError": ".planner.errors",
    "FusionplanWarning": ".planner.cures",
    "ModelError": ".planner.errors",
    "Options": ".api",
    "Plan": ".planner.plan",
    "PlanError": ".planner.errors",
    "Progress": ".tuner.progress.progress",
    "StoreError": ".db.errors",
    "Tuned": ".tuned",
    "executors": ".api",
    "explain": ".explaining",
    "load": ".api",
    "plans": ".api",
    "step": ".api",
    "tune": ".tuning",
}

configure()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from .planner.bytecode import kept_bytecode
    from .planner.collector import paused

    with paused(lasting=True), kept_bytecode():
        value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
