"""Training steps over several GPUs, rehearsed by two processes without one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fusionplan.bench import spread
from ranks import said

SCRIPT = Path(__file__).with_name("rehearse_spread.py")


def test_time_that_several_cover_counts_once() -> None:
    assert spread.covered([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 5.0
    assert spread.covered([]) == 0.0


def test_a_span_is_from_first_to_last() -> None:
    assert spread.span([(5.0, 7.0, "a"), (1.0, 3.0, "b")]) == 6.0
    assert spread.span([]) == 0.0


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        spread.main(["none"])
    assert error.value.code == 2
    assert "'none' is none of fsdp, tp, ddp" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.slow
def test_two_processes_measure_a_step(tmp_path: Path) -> None:
    given = ["fsdp", "--device", "cpu", "--tiny", "--limit", "0"]  # one round
    given += ["--ways", "eager", "ours by the model"]
    command = [sys.executable, "-P", str(SCRIPT), str(tmp_path), *given]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run(
        command, env=world, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, (done.stderr, said(tmp_path, 2))
    printed = [line for out, _ in said(tmp_path, 2) for line in out.splitlines()]
    table = [line for line in printed if " (1 rounds)" in line]
    assert len(table) == 2
    assert "2 plans" in table[1]
