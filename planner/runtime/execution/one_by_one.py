"""A second form of a boxed call, for inputs that are given one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ATTRIBUTE = "_fusionplan_one_by_one"


def set_one_by_one(boxed: Any, same: Callable[..., Any] | None) -> None:
    """Notes of a boxed call what does the same for inputs that its caller holds, with gradients
    off; None: nothing does."""
    if same is not None:
        setattr(boxed, _ATTRIBUTE, same)


def one_by_one(boxed: Any) -> Callable[..., Any] | None:
    """What `set_one_by_one` has noted of a boxed call."""
    found: Callable[..., Any] | None = getattr(boxed, _ATTRIBUTE, None)
    return found
