"""A look at whether another process works on the GPU before times are measured."""

from __future__ import annotations

import time

import torch

_LOOKS = 5
_APART_S = 0.06
_BUSY_PERCENT = 10


def busy_warning(device: torch.device) -> str | None:
    """A warning when a GPU works although nothing of ours runs on it; None where it is idle, or
    where that cannot be known (no driver library, no permission, no GPU)."""
    if device.type != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    try:
        torch.cuda.synchronize(device)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        looks = []
        for _ in range(_LOOKS):
            time.sleep(_APART_S)
            looks.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    # What ran here a moment ago is still counted in the first looks.
    share = min(looks)
    if share < _BUSY_PERCENT:
        return None
    return (
        f"{device} is busy with another process ({share}% of the time): measured times will be "
        "too long and uncertain; wait for it to end, or give another --device"
    )
