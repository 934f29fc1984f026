"""Bytecode is kept in a folder of the user's where torch has none."""

import importlib
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from fusionplan.planner import bytecode
from fusionplan.planner.bytecode import environment, kept_bytecode
from fusionplan.tuner.workers.processes import child_environment


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a torch, and another module, of which there is no bytecode, where Python is
    told to write none."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "torch.py").write_text("VERSION = 1\n")
    (folder / "module_of_torch.py").write_text("VERSION = 1\n")
    found = ModuleSpec("torch", None, origin=str(folder / "torch.py"))
    monkeypatch.setattr(bytecode, "find_spec", lambda name: found)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches" / "fusionplan" / "bytecode"


def keep(installed: Path) -> None:
    """As a process of a tune does."""
    text = f"import sys; sys.path.insert(0, {str(installed)!r}); import torch, module_of_torch"
    subprocess.run([sys.executable, "-c", text], env=child_environment(), check=True)


@pytest.mark.process
def test_processes_of_a_tune_keep_it(installed: Path, folder: Path) -> None:
    keep(installed)
    assert {path.name.partition(".")[0] for path in folder.rglob("*.pyc")} > {
        "torch",
        "module_of_torch",
    }
    assert not (installed / "__pycache__").exists()


@pytest.mark.process
def test_what_is_kept_bytecode(
    installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is set afterwards."""
    keep(installed)
    (kept,) = folder.rglob("module_of_torch.*.pyc")
    monkeypatch.syspath_prepend(installed)
    with kept_bytecode():
        module = importlib.import_module("module_of_torch")
        assert sys.dont_write_bytecode
        assert child_environment()["PYTHONPYCACHEPREFIX"] == str(folder)
    assert module.__cached__ == str(kept)
    assert sys.pycache_prefix is None
    del sys.modules["module_of_torch"]


@pytest.mark.usefixtures("installed")
def test_without_a_folder_nothing_is_set(folder: Path) -> None:
    with kept_bytecode():
        assert sys.pycache_prefix is None
    assert not folder.exists()


def test_where_torch_has_bytecode_nothing_is_set(installed: Path) -> None:
    assert environment()
    beside = installed / "__pycache__"
    beside.mkdir()
    (beside / f"torch.{sys.implementation.cache_tag}.pyc").touch()
    assert not environment()
    with kept_bytecode():
        assert sys.pycache_prefix is None


@pytest.mark.usefixtures("installed")
def test_where_python_was_told_to_keep_it_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "other"))
    assert not environment()


@pytest.mark.usefixtures("installed")
def test_there_may_be_no_folder_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert not environment()


@pytest.mark.usefixtures("installed")
def test_where_others_may_write_nothing_is_read(folder: Path) -> None:
    """What they put there would be run."""
    assert environment()
    with kept_bytecode():
        assert sys.pycache_prefix == str(folder)
    folder.chmod(0o777)
    assert not environment()
    with kept_bytecode():
        assert sys.pycache_prefix is None


@pytest.mark.usefixtures("installed")
def test_blocks_at_the_same_time_leave_nothing_set(folder: Path) -> None:
    """In whatever order they end, as in two threads."""
    assert environment()
    first, second = kept_bytecode(), kept_bytecode()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert sys.pycache_prefix is None
