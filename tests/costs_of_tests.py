"""What makes a test slow, and which tests may do it.

A test that starts Dynamo, runs a kernel in Triton's interpreter or starts a process carries the
mark of it; `scripts/test --fast` runs those without a mark. A test without one that does any of it
fails, in the fast run and in the whole one, so that the fast run stays fast.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

MARKS = {
    "dynamo": "starts torch.compile's capture",
    "interpreter": "runs kernels in Triton's interpreter",
    "process": "starts another process, as the real compiler does",
}


class Watch:
    """A plugin of pytest: sees which of the three a test does, and fails one without a mark."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def pytest_collection_finish(self) -> None:
        self._watch(subprocess.Popen, "__init__", "process")
        if "torch" not in sys.modules:  # no test of these needs it
            return
        import torch._dynamo.symbolic_convert as dynamo
        import triton.runtime.interpreter as interpreter

        self._watch(dynamo.InstructionTranslator, "__init__", "dynamo")
        self._watch(interpreter.GridExecutor, "__call__", "interpreter")

    def _watch(self, of: Any, name: str, mark: str) -> None:
        original: Callable[..., Any] = getattr(of, name)

        @functools.wraps(original)
        def watched(*given: Any, **named: Any) -> Any:
            self.seen.add(mark)
            return original(*given, **named)

        setattr(of, name, watched)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        outcome = yield
        report = outcome.get_result()
        if report.when == "setup":
            return
        # What the end of the last test does may be the session's, such as stopping a server.
        seen, self.seen = self.seen if report.when == "call" else set(), set()
        is_marked = any(item.get_closest_marker(mark) for mark in (*MARKS, "slow"))
        if seen and not is_marked and report.passed:
            does = " and ".join(MARKS[mark] for mark in sorted(seen))
            marks = " or ".join(f"pytest.mark.{mark}" for mark in sorted(seen))
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} {does}, and is not marked so: {marks}"
