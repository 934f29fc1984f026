"""fusionplan: decides which operations of a PyTorch model share a kernel, and remembers it.

The names load on first use, so that `import fusionplan.db` needs neither torch nor triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import executors, load, plans
    from .planner.plan import Plan
    from .tuning import Tuned, tune

__version__ = "0.1.0"
__all__ = ["Plan", "Tuned", "__version__", "executors", "load", "plans", "tune"]

_HOME = {
    "Plan": ".planner.plan",
    "executors": ".api",
    "load": ".api",
    "plans": ".api",
    "Tuned": ".tuning",
    "tune": ".tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
