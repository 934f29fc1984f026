"""Modules that are read when something of them is asked for."""

import importlib.util
import sys
import threading
from typing import Any

import pytest
from fusionplan.planner.capture.put_off import put_off

NAME = "a_large_module"
READ = "import sys\nsys.reads_of_a_large_module.append(1)\nclass Named: pass\n"


@pytest.fixture
def reads(tmp_path, monkeypatch):
    """How often the module was read."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text(READ)
    (folder / "inner.py").write_text("from a_large_module import Named\n")
    monkeypatch.syspath_prepend(tmp_path)
    found: list[int] = []
    monkeypatch.setattr(sys, "reads_of_a_large_module", found, raising=False)
    yield found
    for name in (NAME, f"{NAME}.inner"):
        sys.modules.pop(name, None)


def annotated() -> Any:
    return importlib.import_module(NAME).Named


def test_a_name_in_an_annotation_is_no_use(reads):
    with put_off(NAME, frozenset({"Named"})):
        assert annotated() is Any
        assert importlib.util.find_spec(NAME).name == NAME
        assert not reads
    module = importlib.import_module(NAME)
    assert not reads
    assert module.Named.__module__ == NAME
    assert reads == [1]
    assert importlib.import_module(NAME).Named is module.Named
    with pytest.raises(AttributeError, match="Other"):
        _ = module.Other
    assert reads == [1]


def test_another_thread_gets_what_the_name_stands_for(reads):
    got = []
    with put_off(NAME, frozenset({"Named"})):
        thread = threading.Thread(target=lambda: got.append(annotated()))
        thread.start()
        thread.join()
    assert got[0] is annotated()
    assert got[0] is not Any
    assert reads == [1]


def test_a_module_within_reads_the_whole(reads):
    with put_off(NAME, frozenset()):
        pass
    inner = importlib.import_module(f"{NAME}.inner")
    assert inner.Named is annotated()
    assert reads == [1]


def test_what_was_imported_before_or_is_not_there_stays_so(reads):
    module = importlib.import_module(NAME)
    with put_off(NAME, frozenset()), put_off("no_such_module", frozenset()):
        assert importlib.import_module(NAME) is module
        assert "no_such_module" not in sys.modules
    assert reads == [1]
