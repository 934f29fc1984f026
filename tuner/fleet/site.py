"""The site of a worker: a GPU, which it has to itself, and the processes that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from ...planner.costs.device import DeviceProfile, profile_of
from ...planner.errors import DeviceError
from ..search.tuned_groups import CoverFunctions
from ..workers.forks import Forks
from ..workers.lab import Lab, WorkerLab, usual_compilers
from .gpu_claim import gpu_id


@dataclass(frozen=True, slots=True)
class WorkerSite:
    """The device of a worker. gpu: what tells it from all other GPUs, "" for none; lab: opens the
    place for candidates."""

    profile: DeviceProfile
    lab: Callable[[], AbstractContextManager[Lab]]
    gpu: str = ""
    cover: CoverFunctions = field(default_factory=CoverFunctions)


def cuda_site(device: str = "cuda:0", compilers: int | None = None) -> WorkerSite:
    """A GPU of this host by its name. Raises DeviceError where there is none."""
    found = torch.device(device)
    if found.type != "cuda":
        raise DeviceError(f"device {device}: a worker measures on a CUDA device")
    index, count = found.index or 0, torch.cuda.device_count()
    if not torch.cuda.is_available() or index >= count:
        raise DeviceError(f"device {device}: torch finds {count} CUDA devices on this host")
    name = f"cuda:{index}"
    profile = profile_of(torch.device(name))
    lab = partial(_lab, name, profile.capability, compilers)
    return WorkerSite(profile, lab, gpu_id(torch.device(name)))


@contextmanager
def _lab(device: str, capability: int, compilers: int | None) -> Iterator[Lab]:
    """A lab whose processes are forked from one that has imported torch: on a host of several
    GPUs all their processes would import it at the same time, which slows all of them."""
    forks = Forks.opened((compilers or usual_compilers()) + 1)
    try:
        with WorkerLab(device, capability, compilers=compilers, forks=forks) as lab:
            yield lab
    finally:
        if forks is not None:
            forks.close()


def compilers_of(jobs: int | None, processes: int) -> int | None:
    """Of so many processes that share this host, how many compilers each has. jobs: of all; None:
    what the cores allow; of one process alone what it finds best (None)."""
    if jobs is not None:
        return max(1, jobs // processes)
    if processes == 1:
        return None
    cores = len(os.sched_getaffinity(0))
    return max(1, min(12, cores // processes - 2))
