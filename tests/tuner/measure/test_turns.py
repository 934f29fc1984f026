"""Turns of processes that time on one GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fusionplan.tuner.measure.turns import VARIABLE, current_gpu_turn, turn
from locked_files import is_free


def test_a_turn_is_for_one_and_may_be_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "new"))
    path = tmp_path / "new" / "gpu.lock"
    with turn("gpu"):
        assert not is_free(path)
        with turn("gpu"):
            assert not is_free(path)
        assert not is_free(path)
        assert not (tmp_path / "new" / "other.lock").exists()
    assert is_free(path)


def test_threads_of_one_process_take_turns_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    order = []

    def other() -> None:
        with turn("gpu"):
            order.append("other")

    with turn("gpu"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def test_without_a_folder_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with turn("gpu"):
        assert not list(tmp_path.iterdir())


def test_the_current_gpu_is_known_by_its_number_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}")
    )
    monkeypatch.delenv(VARIABLE, raising=False)
    with current_gpu_turn():
        pass
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with current_gpu_turn():
        assert not is_free(tmp_path / "GPU-3.lock")
    assert is_free(tmp_path / "GPU-3.lock")
