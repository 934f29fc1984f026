"""Work in a child process that is begun again without what killed it.

A kernel that breaks the device breaks it for the whole process: nothing else can be measured there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable

import torch

UNABLE = 75
"""The exit code of a child that cannot use the device, as the parent had opened it before."""

_PR_SET_PDEATHSIG = 1


def begin_again(after: Callable[[int], bool]) -> int | None:
    """Forks. In the child: None, and it does the work. In the parent: the child's exit code when it
    has ended. after: given that code, unless it is 0; whether another child shall begin. The parent
    does the work itself, and gets None, if a child cannot use the device."""
    while True:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        child = os.fork()
        if not child:
            _end_with(parent)
            if torch.cuda._is_in_bad_fork():
                os._exit(UNABLE)
            return None
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == UNABLE:
            return None
        if code == 0 or not after(code):
            return code if code >= 0 else 128 - code  # as a shell says it


def _end_with(parent: int) -> None:
    """This process is killed when its parent has ended, however that ends."""
    with contextlib.suppress(OSError, AttributeError):  # of Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
