"""Starts by what an earlier process traced (`started_cases.py`), in a process of their own: what
other tests have left in theirs may be a reason to trace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("started_cases.py")


@pytest.mark.process
def test_starts_by_an_earlier_trace() -> None:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", str(CASES)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, env=plain, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed[-1]) > 100
