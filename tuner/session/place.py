"""The place of a tune: the device that a model runs on, and the one that it is planned for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...planner.costs.device import DeviceProfile, builtin, profile_of
from ...planner.errors import DeviceError
from ...planner.runtime.machine_code.compile import interpreted

DEFAULT_TARGET = "h200"


@dataclass(frozen=True, slots=True)
class Place:
    """The device on which the model runs, and the one for which it is planned. measured: the plan's
    figures come from that device; else from the cost model."""

    device: torch.device
    profile: DeviceProfile
    measured: bool

    @property
    def is_elsewhere(self) -> bool:
        """Whether plans are for a GPU, and the model runs on the CPU."""
        return not self.measured and self.device.type == "cpu"


def place_of(device: str | torch.device | None, target: str | None) -> Place:
    """The device to run on and the profile to plan for. Raises DeviceError for an unknown or
    absent device, or an unknown target."""
    found = _device(device)
    if target is not None:
        return Place(found, builtin(target), False)
    if found.type == "cuda":
        return Place(found, profile_of(found), True)
    if interpreted():  # Triton's interpreter runs kernels on the CPU: a rehearsal
        return Place(found, profile_of(found), True)
    return Place(found, builtin(DEFAULT_TARGET), False)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"unknown device {device!r}: give cuda, cuda:N or cpu") from error
    if found.type not in ("cuda", "cpu"):
        raise DeviceError(f"device {found} cannot be planned for: give cuda, cuda:N or cpu")
    if found.type == "cpu":
        return found
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {found}: torch {torch.__version__} finds no CUDA device; --device cpu or "
            "--target h200 plans by the cost model"
        )
    count, index = torch.cuda.device_count(), found.index
    if index is not None and index >= count:
        raise DeviceError(f"there is no device {found}: give one of cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)
