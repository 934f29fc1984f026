"""planner gc: what goes, what stays, and that a dry run changes nothing."""

import json
import os

import pytest
from fusionplan.planner.runtime.dispatch import kept_files
from triton import knobs


def gone(planner, *arguments):
    result = planner("gc", *arguments, "--json")
    assert result.code == 0, result
    return json.loads(result.out)["gone"]


def counts(store):
    graphs = sum(store.graph(p.graph_key) is not None for p in store.plans())
    return len(store.plans()), len(store.trials()), graphs


ALL = {"plans": 2, "trials": 5, "kernels": 1, "graphs": 1}


@pytest.mark.parametrize(
    "arguments", [["--older", "1d"], ["--of", "NVIDIA H200"], ["--other-versions"]]
)
def test_everything(planner, filled, arguments):
    """All of it is old, of one device, and made with versions that are not these."""
    assert gone(planner, *arguments, "--dry-run") == ALL
    assert counts(filled) == (2, 5, 2)
    assert gone(planner, *arguments) == ALL
    assert counts(filled) == (0, 0, 0)
    assert [d.name for d in filled.devices()] == ["NVIDIA H200"]
    assert filled.problems() == []


def test_all_conditions_count(planner, filled):
    assert gone(planner, "--of", "NVIDIA H200", "--older", "900y")["plans"] == 0
    assert counts(filled) == (2, 5, 2)


def test_what_a_plan_needs_stays(planner, filled, monkeypatch):
    """The plan of these versions stays, and with it its graph and its kernel."""
    (current,) = [p.versions for p in filled.plans() if p.name == "chain"]
    monkeypatch.setattr("fusionplan.cli.gc._versions", lambda: current)
    assert gone(planner, "--other-versions") == {"plans": 1, "trials": 0, "kernels": 0, "graphs": 0}
    assert counts(filled) == (1, 5, 1)
    assert planner("show", "chain", "--nest").code == 0


class TestKeptGraphs:
    @pytest.fixture
    def files(self, monkeypatch, tmp_path):
        """Two graphs that processes kept, one of them last used in 2001, and one of another
        version; beside them something that is none."""
        monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
        kept_files.write("old", "{}")
        kept_files.write("new", "{}")
        with monkeypatch.context() as changed:
            changed.setattr(kept_files, "_maker", lambda: "another")
            kept_files.write("other", "{}")
        (tmp_path / "cache/fusionplan/compiled.json").write_text("{}")
        os.utime(kept_files.place("old"), (10**9, 10**9))
        return lambda: sorted(f.name.split(".")[0] for f in (tmp_path / "cache").rglob("*.json"))

    @pytest.mark.parametrize(
        "arguments, gone",
        [
            (["--older", "1d"], {"old"}),
            (["--other-versions"], {"other"}),
            (["--other-versions", "--older", "1d"], set()),
            (["--older", "1d", "--of", "NVIDIA H200"], set()),
        ],
    )
    def test_go_by_the_same_conditions(self, planner, filled, files, arguments, gone):
        everything = ["compiled", "new", "old", "other"]
        assert files() == everything
        for more in (["--dry-run"], []):
            told = json.loads(planner("gc", *arguments, *more, "--json").out)
            assert told["kept_graphs"] == len(gone)
            assert files() == (everything if more else sorted({*everything} - gone))
        said = planner("gc", *arguments, "--dry-run").out
        assert "kept graph" not in said

    def test_are_counted_in_words(self, planner, filled, files):
        assert "1 kept graph would go" in planner("gc", "--older", "1d", "--dry-run").out

    def test_what_is_read_counts_as_used(self, planner, filled, files):
        assert kept_files.read("old") == "{}"
        assert json.loads(planner("gc", "--older", "1d", "--json").out)["kept_graphs"] == 0


@pytest.mark.parametrize(
    "arguments, word",
    [
        ([], "--older"),
        (["--older", "soon"], "30d"),
        (["--older", "99999999999y"], "no such time"),
        (["--of", "abacus"], "NVIDIA H200"),
    ],
)
def test_usage(planner, filled, arguments, word):
    result = planner("gc", *arguments)
    assert result.code == 2
    assert word in result.err


def test_no_store(planner):
    assert planner("gc", "--older", "1d").code == 6


@pytest.mark.parametrize(
    "stored, other",
    [
        ({}, False),
        ({"torch": "2.12.0"}, True),
        ({"codegen": "0"}, True),
        ({"cuda": "none"}, True),
        ({"matmul": "high"}, False),
    ],
)
def test_what_another_version_is(monkeypatch, stored, other):
    from fusionplan.cli import gc

    current = {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0", "codegen": "14"}
    monkeypatch.setattr(gc, "_versions", lambda: current)
    assert gc._is_other(current | stored) == other
    # As a plan has them that was made where its device is not at hand.
    assert not gc._is_other({"torch": "2.11.0", "triton": "3.6.0", "codegen": "14"})
