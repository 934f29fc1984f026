"""Names of launches for a profiler: the kernel, and the lines of the user's code behind it.

Kernels of equal layers are one kernel, so that its own name can name no line. While torch's
profiler runs (or `torch.autograd.profiler.emit_nvtx`, for Nsight), each launch stands in a range
whose name does. Within a replayed CUDA graph there are no launches to name:
PLANNER_PROFILE=launches has plans launch their kernels one by one while a profiler runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

from ...capture.source_lines import SourceLine

MOST_LINES = 4
"""Lines in the name of a range; a group of more says so."""

is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether a profiler of torch's runs. It costs some 40 ns."""


VARIABLE = "PLANNER_PROFILE"


def by_launches() -> bool:
    """Whether the user wants to see launches under a profiler, not the replay of a CUDA graph."""
    return os.environ.get(VARIABLE) == "launches"


def label(kernel: str, nodes: Sequence[int], lines: Mapping[int, SourceLine]) -> str:
    """The name of the range around the launch of a kernel that computes these nodes."""
    places = list(dict.fromkeys(lines[node].place for node in nodes if node in lines))
    more = [f"and {len(places) - MOST_LINES} more"] * (len(places) > MOST_LINES)
    return " ".join([kernel, ", ".join([*places[:MOST_LINES], *more])]).rstrip()


def within_range(launch: Callable[..., None], name: str) -> Callable[..., None]:
    """The launch, in a range of that name."""

    def ranged(*arguments: Any) -> None:
        with record_function(name):
            launch(*arguments)

    return ranged
