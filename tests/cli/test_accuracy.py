"""planner accuracy and planner calibrate."""

from __future__ import annotations

import json
import shutil

import pytest
from fusionplan.cli.errors import DEVICE, OK, STORE, USAGE
from fusionplan.cli.main import main
from fusionplan.db import CalibrationRecord, GraphRecord, KernelRecord, Store, TrialRecord
from fusionplan.planner.costs.cost import Cost
from fusionplan.planner.costs.device import H200
from fusionplan.planner.graph.graph import Graph, Node, Ref, TensorType, key, to_json
from fusionplan.planner.space.space import Space, space_of
from fusionplan.tuner.model_fit.refit import with_factors
from fusionplan.tuner.records.ledger import device_record
from fusionplan.tuner.trial.outcome import Candidate

SLOWER = with_factors(H200, {"bandwidth": 0.5})


def chain(rows: int, operation: str) -> Graph:
    kind = TensorType((rows, 4096), (4096, 1), "float32")
    return Graph(
        (
            Node(0, "x", "input", type=kind),
            Node(1, "y", f"aten.{operation}.default", (Ref(0),), type=kind),
        ),
        (1,),
    )


@pytest.fixture
def place(tried, tmp_path):
    """A store of its own for each test."""
    return str(shutil.copy(tried, tmp_path))


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Trials of four workloads on an H200 with half the bandwidth."""
    path = tmp_path_factory.mktemp("tried") / "s.db"
    with Store.open(path) as store:
        store.put_device(device_record(H200))
        for number, operation in enumerate(("exp", "relu", "sin", "sqrt")):
            graph = chain(2048 << number, operation)
            space = space_of(graph, SLOWER)
            assert isinstance(space, Space)
            store.put_graph(GraphRecord(f"g{number}", "g", 2, {}))
            payload = {"graph": to_json(graph)}
            store.put_kernel(KernelRecord(key(graph), f"g{number}", "pointwise", payload))
            for config in list(space.enumerate())[:24]:
                cost = space.judge(config)
                if isinstance(cost, Cost):
                    store.add_trial(
                        TrialRecord(
                            study="s",
                            level="kernel",
                            subject=key(graph),
                            device_key=H200.key,
                            versions={},
                            config=Candidate("triton", config).to_json(),
                            outcome="timed",
                            timing="cold",
                            measured_s=cost.seconds,
                            registers=cost.registers,
                        )
                    )
    return path


def document(capsys, *arguments) -> dict:
    assert main([*arguments, "--json"]) == OK
    return json.loads(capsys.readouterr().out)


def test_the_shipped_and_the_fitted_profile_side_by_side(place, capsys):
    found = document(capsys, "accuracy", "--store", place)
    assert found["device"]["name"] == "NVIDIA H200"
    assert found["trials"] > 60
    assert [a["family"] for a in found["shipped"]] == ["all", "pointwise"]
    shipped, refitted = found["shipped"][0], found["refitted"][0]
    assert shipped["mape"] > 0.3
    assert refitted["mape"] < 0.1
    assert shipped["registers"] == shipped["learned"] == 1.0
    assert found["refit"]["is_better"] is True
    assert found["refit"]["factors"]["bandwidth"] == pytest.approx(0.5, rel=0.1)
    assert found["used"] is None  # looking changes nothing
    assert set(found["hopeless"]) == {"spilled", "foreseen", "slow", "foreseen_slow"}


def test_a_refit_is_kept_and_undone(place, capsys):
    found = document(capsys, "accuracy", "--refit", "--store", place)
    assert found["used"]["source"] == "refitted"
    assert document(capsys, "accuracy", "--store", place)["used"]["source"] == "refitted"
    assert main(["accuracy", "--store", place]) == OK
    assert "in use: the profile refitted" in capsys.readouterr().out
    undone = document(capsys, "accuracy", "--undo", "--store", place)
    assert undone == {"schema": 1, "undone": found["used"], "used": None}
    assert main(["accuracy", "--undo", "--store", place]) == USAGE
    assert "NVIDIA H200 has no calibration to undo" in capsys.readouterr().err


def test_undoing_a_fit_leaves_what_was_measured(place, capsys):
    record = CalibrationRecord(
        device_key=H200.key, source="measured", profile=H200.to_json(), evidence={"figures": {}}
    )
    with Store.open(place) as store:
        store.add_calibration(record)
    document(capsys, "accuracy", "--refit", "--store", place)
    assert main(["accuracy", "--undo", "--store", place]) == OK
    assert "the profile is the one measured" in capsys.readouterr().out


def test_tables_for_the_docs(place, capsys):
    assert main(["accuracy", "--markdown", "--store", place]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NVIDIA H200, measured 20")
    rows = [line for line in lines if line.startswith("| pointwise | ")]
    assert len(rows) == 2
    assert {line.count("|") for line in lines if line.startswith("|")} == {12}


def test_tables_for_people(place, capsys):
    assert main(["accuracy", "--store", place]) == OK
    out = capsys.readouterr().out
    for text in ("the shipped profile", "fitted to the trials", "pointwise", "Spearman", "top-5"):
        assert text in out
    assert "on unseen trials the fitted profile is better" in out
    assert "in use: the shipped profile" in out


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        (["accuracy", "--undo", "--refit"], USAGE, "contradict"),
        (["accuracy", "--of", "h900"], USAGE, "no device 'h900'"),
        (["calibrate", "--seconds", "61"], USAGE, "at most 60"),
        (["calibrate", "--device", "cpu"], DEVICE, "no CUDA device to calibrate"),
    ],
)
def test_what_is_asked_wrongly(place, capsys, arguments, code, text):
    assert main([*arguments, "--store", place]) == code
    assert text in capsys.readouterr().err


def test_an_empty_store_has_no_trials(tmp_path, capsys):
    path = str(tmp_path / "empty.db")
    Store.open(path).close()
    assert main(["accuracy", "--store", path]) == USAGE
    assert "no trials yet" in capsys.readouterr().err
    assert main(["accuracy", "--store", str(tmp_path / "none.db")]) == STORE
