"""Training steps over several GPUs, rehearsed by two processes without one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fusionplan.bench import spread

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
def test_two_processes_measure_a_step() -> None:
    given = ["fsdp", "--device", "cpu", "--tiny", "--limit", "0"]  # one round
    given += ["--ways", "eager", "ours by the model"]
    command = [sys.executable, "-P", str(SCRIPT), *given]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # What torchrun says to each: it would import torch itself for that.
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        world["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | world | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [each.communicate(timeout=280) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert [each.returncode for each in ranks] == [0, 0], said
    table = [line for out, _ in said for line in out.splitlines() if " (1 rounds)" in line]
    assert len(table) == 2
    assert "2 plans" in table[1]
