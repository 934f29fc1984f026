"""The entry of a process that compiles modes of torch.compile (see `mode_process`): before anything
of that is imported, it forks a process for Inductor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from ..workers import fork_server
from .inductor_workers import SpareProcess


def main(arguments: Sequence[str] | None = None) -> int:
    # A process that has imported more may have threads, or use CUDA.
    compiles = fork_server.is_forked and torch.version.cuda
    spare = SpareProcess() if compiles else None
    from . import mode_process

    return mode_process.main(arguments, spare)


if __name__ == "__main__":
    sys.exit(main())
