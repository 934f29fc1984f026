"""Inductor's choices are compiled once: with one ptxas, under one key of Triton's cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fusionplan.tuner.decision.baselines import Baselines
from fusionplan.tuner.progress.progress import Silent
from fusionplan.tuner.workers import lab
from fusionplan.tuner.workers.assembler import as_in_workers, chosen
from fusionplan.tuner.workers.pool import WorkerRole
from triton.backends.nvidia.compiler import get_ptxas, get_ptxas_version

pytestmark = pytest.mark.process

SETTING = "TRITON_PTXAS_PATH"
SM_90 = 90


@pytest.fixture
def of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A ptxas beside torch, of a version that nobody has."""
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text('#!/bin/sh\necho "Cuda compilation tools, release 77.1, V77.1.7"\n')
    ptxas.chmod(0o755)
    return ptxas


@pytest.mark.process
def test_it_is_torchs_own_inside_and_tritons_outside(of_torch: Path) -> None:
    before = get_ptxas_version(SM_90)
    with as_in_workers():
        assert get_ptxas(SM_90).path == str(of_torch)
        assert "release 77.1" in get_ptxas_version(SM_90)
    assert SETTING not in os.environ
    assert get_ptxas_version(SM_90) == before
    assert "77.1" not in before


@pytest.mark.process
def test_a_failure_inside_leaves_nothing(of_torch: Path) -> None:
    with pytest.raises(RuntimeError), as_in_workers():
        raise RuntimeError
    assert SETTING not in os.environ
    assert "77.1" not in get_ptxas_version(SM_90)


@pytest.mark.process
def test_what_inductor_set_is_nobodys_choice(
    of_torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so where it compiles in this process; Triton knows its own version by then."""
    before = get_ptxas_version(SM_90)
    monkeypatch.setenv(SETTING, str(of_torch))
    assert chosen() is None
    with as_in_workers():
        assert "release 77.1" in get_ptxas_version(SM_90)
    assert SETTING not in os.environ
    assert get_ptxas_version(SM_90) == before


def test_what_the_user_chose_stays(of_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = get_ptxas(SM_90).path
    monkeypatch.setenv(SETTING, path)
    with as_in_workers():
        assert os.environ[SETTING] == path
    assert os.environ[SETTING] == path == chosen()


def test_without_one_of_torchs_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with as_in_workers():
        assert SETTING not in os.environ


def test_kernels_of_plans_are_compiled_outside(of_torch: Path) -> None:
    """Else those of a whole step would be compiled again, under other keys."""
    seen: dict[str, bool] = {}

    def call(name: str) -> Callable[[int], None]:
        return lambda turn: seen.update({name: SETTING in os.environ})

    Baselines({"default": call("default")}, Silent()).warm()
    Baselines({"ours": call("ours")}, Silent(), nullcontext).warm()
    assert seen == {"default": True, "ours": False}


def test_a_worker_that_is_started_again_keeps_tritons(
    of_torch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, WorkerRole]] = []
    monkeypatch.setattr(lab, "Pool", given.append)
    lab.WorkerLab("cpu", SM_90, interpret=True)
    with as_in_workers():
        assert SETTING in os.environ
        assert [role.env[SETTING] for role in given[0].values()] == [None, None]
