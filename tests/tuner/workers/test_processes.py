"""The environment of processes that a tune starts."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from fusionplan.tuner.workers.processes import child_environment, started, worker_log


@pytest.fixture
def torch_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a torch of which there is no bytecode, where Python is told to write none."""
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "torch.py").write_text("VERSION = 1\n")
    torch = ModuleType("torch")
    torch.__file__ = str(installed / "torch.py")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return installed


@pytest.mark.process
def test_bytecode_is_kept_where_torch_has_none(torch_at: Path, tmp_path: Path) -> None:
    text = f"import sys; sys.path.insert(0, {str(torch_at)!r}); import torch"
    with worker_log() as log:
        process = started([sys.executable, "-c", text], child_environment(), log)
        assert process.wait(60) == 0
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
    found = [*(tmp_path / "caches" / "fusionplan" / "bytecode").rglob("torch.*.pyc")]
    assert len(found) == 1
    assert not (torch_at / "__pycache__").exists()


def test_bytecode_that_is_there_is_read(torch_at: Path) -> None:
    assert "PYTHONPYCACHEPREFIX" in child_environment()
    kept = torch_at / "__pycache__"
    kept.mkdir()
    (kept / f"torch.{sys.implementation.cache_tag}.pyc").touch()
    assert "PYTHONPYCACHEPREFIX" not in child_environment()


@pytest.mark.usefixtures("torch_at")
def test_without_a_folder_for_it_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert "PYTHONPYCACHEPREFIX" not in child_environment()
