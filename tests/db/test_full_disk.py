"""A small sample of scripts/full_disk.py, on real disks that are full; docs/reliability.md has the
counts of large ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts/full_disk.py"


def may_mount() -> bool:
    """Whether this user may mount a disk in a namespace of its own."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    mount = "mount -t tmpfs tmpfs /tmp"
    try:
        command = ["unshare", "--mount", *own, "sh", "-c", mount]
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not may_mount(), reason="may not mount a disk")
def test_a_full_disk_loses_and_damages_nothing():
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), "store", "bundle", "--times", "2"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[3] for line in done.stdout.splitlines()] == ["2", "2"]
