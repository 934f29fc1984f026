"""`planner report`: of a model, of a stored plan, as JSON, and its errors."""

import json
import sys
from dataclasses import replace

import pytest
from fusionplan.db import Store
from fusionplan.report.plots import MISSING, library

APART = """\
import torch


def model(x):
    y = torch.exp(x).sum(-1)
    return torch.exp(y[2:]) + 1


example_inputs = torch.ones(8, 64)
"""


@pytest.mark.dynamo
def test_of_a_model_without_a_store(planner, write, tmp_path):
    file = write("apart.py", APART)
    result = planner("report", file, "--target", "h200", "-o", "page.html")
    assert result.code == 0, result
    assert result.out.startswith("written to page.html, ")
    assert "there is no store" in result.err
    assert not (tmp_path / "plans.db").exists()
    text = (tmp_path / "page.html").read_text()
    assert "apart.py:5: y = torch.exp(x).sum(-1)" in text
    assert "Nothing was measured" in text
    assert "window: sum_1 is a reduction read through a slice" in text


@pytest.mark.dynamo
def test_without_plotly_the_command_says_so(planner, small, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # importing it fails
    library.cache_clear()
    result = planner("report", small, "--target", "h200", "-o", "page.html")
    library.cache_clear()
    assert result.code == 0, result
    assert result.err.splitlines()[-1] == f"note: {MISSING}"
    assert "pip install plotly" in MISSING


@pytest.mark.dynamo
def test_the_default_is_report_html(planner, small, tmp_path):
    assert planner("report", small, "--target", "h200").code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.dynamo
def test_of_a_stored_plan(planner, quick, small, tmp_path):
    assert planner("tune", small, "--target", "h200").code == 0
    with Store.open(tmp_path / "plans.db", create=False) as store:
        (record,) = store.plans()
    for wanted in ([], ["small"], [record.key[:8]]):
        result = planner("report", *wanted, "-o", "page.html")
        assert result.code == 0, result
        text = (tmp_path / "page.html").read_text()
        assert f"stored as {record.key[:12]}" in text
        assert "small.py:7: return torch.log(torch.relu(x + b) + 1)" in text
    older = replace(record, payload={k: v for k, v in record.payload.items() if k != "about"})
    with Store.open(tmp_path / "plans.db") as store:
        store.save_plan(older)
    assert planner("report", "small", "-o", "page.html").code == 0
    assert "make the report of the model" in (tmp_path / "page.html").read_text()
    result = planner("report", small, "--target", "h200", "-o", "page.html")
    assert result.code == 0, result
    text = (tmp_path / "page.html").read_text()
    assert f"stored as {record.key[:12]}" in text
    assert "small.py:7: return torch.log(torch.relu(x + b) + 1)" in text
    assert "float32[8, 32]" in text
    modelled = planner("report", small, "--target", "h200", "--modelled", "--json")
    (graph,) = json.loads(modelled.out)["graphs"]
    assert (graph["plan_key"], graph["runs"]) == (None, [])


@pytest.mark.dynamo
def test_json_is_the_same_data(planner, small, tmp_path):
    result = planner("report", small, "--target", "h200", "--json")
    assert result.code == 0, result
    assert not (tmp_path / "report.html").exists()
    data = json.loads(result.out)
    (graph,) = data["graphs"]
    (step,) = graph["steps"]
    assert step["operations"] == ["add", "relu", "add", "log"]
    assert step["source"] == ["small.py:7: return torch.log(torch.relu(x + b) + 1)"]
    assert step["measured_s"] is None
    assert [value["name"] for value in step["gone"]] == ["add", "relu", "add_1"]
    assert planner("report", small, "--target", "h200", "--json", "-o", "page.html").code == 0
    assert (tmp_path / "page.html").exists()


@pytest.mark.dynamo
def test_a_store_that_cannot_be_written(
    planner, quick, small, tmp_path, frozen_folder, monkeypatch
):
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setenv("PLANNER_STORE", str(folder / "plans.db"))
    assert planner("tune", small, "--target", "h200").code == 0
    frozen_folder(folder)
    before = (folder / "plans.db").read_bytes()
    assert planner("report", "-o", tmp_path / "page.html").code == 0
    assert (folder / "plans.db").read_bytes() == before


@pytest.mark.parametrize(
    "arguments, code, word",
    [
        (["nothing"], 5, "nothing"),
        (["nowhere.py"], 5, "nowhere.py"),
        (["chain", "--modelled"], 2, "--modelled is for a model's file"),
        (["--training"], 2, "--training is for a model's file"),
        (["chain", "-o", "no/folder/page.html"], 2, "no/folder/page.html cannot be written"),
        (["small.py", "--target", "z80"], 4, "'z80'"),
        (["chain", "--no-such-option"], 2, "option"),
    ],
)
def test_errors(planner, filled, small, arguments, code, word):
    result = planner("report", *arguments)
    assert result.code == code, result
    assert result.out == ""
    (line,) = [x for x in result.err.splitlines() if x.startswith("planner: ")]
    assert word in line


def test_a_plan_whose_kernels_are_of_another_version(planner, filled, tmp_path):
    """The plan of the store has a kernel key that no trial of today has."""
    result = planner("report", "chain", "-o", "page.html")
    assert result.code == 0, result
    text = (tmp_path / "page.html").read_text()
    assert "1.30x" in text
    assert "max-autotune" in text
    assert "What lost, measured" in text
