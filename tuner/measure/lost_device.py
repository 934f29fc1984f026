"""A GPU that does nothing any more: fallen off the bus, or broken until it is reset."""

from __future__ import annotations

import torch

from ...planner.errors import line_of

_ELEMENTS = 64


def why_lost(device: torch.device) -> str | None:
    """Why the device computes nothing in this process any more; None where it does. It asks for a
    sum whose result is known: where that fails, whatever failed before says nothing of a kernel.
    """
    try:
        found = float(torch.ones(_ELEMENTS, device=device).sum())
    except torch.OutOfMemoryError:
        return None  # It is there, and full.
    except RuntimeError as error:
        return line_of(error)
    return None if found == _ELEMENTS else f"it makes {found:g} of a sum of {_ELEMENTS} ones"
