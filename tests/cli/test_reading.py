"""`show`, `history`, `doctor`, `--version` over a store as a tune leaves it."""

import json

import fusionplan
import pytest
from compiling import forked


def test_version(planner):
    result = planner("--version")
    assert (result.code, result.out) == (0, f"planner {fusionplan.__version__}\n")


def test_show_newest(planner, filled):
    result = planner("show")
    assert result.code == 0
    words = ("bbbb2222", "chain", "NVIDIA H200", "measured", "add relu", "x0=2 x1=128", "eager")
    for word in (*words, "2.40x", "speed-up 1.30x over max-autotune", "4 us", "5 us", "torch=2.11"):
        assert word in result.out, word


@pytest.mark.parametrize("wanted", ["old", "aaaa"])
def test_show_by_name_or_key(planner, filled, wanted):
    result = planner("show", wanted)
    assert result.code == 0
    assert "evidence: modelled" in result.out
    assert "nothing was measured" in result.out


def test_show_json(planner, filled):
    data = json.loads(planner("show", "--json").out)
    assert data["key"] == "bbbb2222"
    assert data["speedup"] == pytest.approx(1.3)
    assert data["baselines_s"]["eager"] == 1.2e-5
    assert data["plan"]["groups"][0]["lowering"] == "triton"


def test_show_graph_and_nest(planner, filled):
    graph = planner("show", "--graph").out
    assert "%3 = aten.relu.default(%2) : float32[64, 128]" in graph
    nest = planner("show", "--nest")
    assert nest.code == 0, nest
    assert "group 0" in nest.out
    assert "store output 0" in nest.out


def test_show_tile_programs_between_passes(planner, filled):
    first = planner("show", "--after", "place_blocks")
    assert first.code == 0, first
    assert "v2 [2 128] = add v0 v1" in first.out
    assert "wait" not in first.out
    last = planner("show", "--after", "last")
    assert "grid: 32 tiles" in last.out
    assert "wait\n" in last.out
    wrong = planner("show", "--after", "place_block")
    assert wrong.code == 2
    assert "--after place_block: no such pass; in order: place_blocks, select_mma" in wrong.err


def test_show_graph_that_is_not_there(planner, filled, monkeypatch):
    monkeypatch.setattr("fusionplan.cli.stored.graph_of", lambda store, key: None)
    assert planner("show").code == 0
    result = planner("show", "--graph")
    assert result.code == 5
    assert "tune the model again" in result.err


def test_history_lists_studies(planner, filled):
    result = planner("history")
    assert result.code == 0
    for word in ("fused_add_relu kkkk", "kernel", "5 us", "5 ", "1 "):
        assert word in result.out, word


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, count",
    [
        (["--kernel", "kkk"], 5),
        (["--kernel", "zzz"], 0),
        (["--study", "fused_add"], 5),
        (["--outcome", "wrong"], 1),
        (["--outcome", "timed"], 4),
        (["--best"], 3),
        (["--best", "--limit", "1"], 1),
        (["--study", "fused_add", "--limit", "2"], 2),
    ],
)
def test_history_filters(planner, filled, arguments, count):
    result = planner("history", "--json", *arguments)
    assert result.code == 0
    trials = json.loads(result.out)["trials"]
    assert len(trials) == count
    assert [t["id"] for t in trials] == sorted(t["id"] for t in trials)
    if count:
        assert trials[-1]["outcome"] in ("timed", "wrong")
    assert planner("history", *arguments).code == 0


def test_history_by_graph(planner, filled):
    plan = json.loads(planner("show", "--json").out)["plan"]
    result = planner("history", "--graph", plan["graph_key"][:10], "--json")
    assert len(json.loads(result.out)["trials"]) == 5


def test_history_says_why(planner, filled):
    assert "NaN" in planner("history", "--outcome", "wrong").out


@pytest.mark.process
def test_doctor(filled):
    filled.close()
    result = forked(["-m", "fusionplan.cli.main", "doctor", "--json"])
    assert result.returncode == 0, result
    data = json.loads(result.stdout)
    assert data["ok"]
    found = {check["name"]: check for check in data["checks"]}
    assert "sm_90" in found["compiler"]["text"]
    assert found["store"]["text"].endswith("plans: 2, studies: 1, trials: 5")
    assert {"python", "torch", "triton", "optuna", "cuda", "ptxas", "interpreter"} <= found.keys()


@pytest.mark.process
def test_doctor_without_a_store(planner):
    result = planner("doctor")
    assert result.code == 0, result
    assert "not made yet" in result.out


def test_doctor_with_an_empty_file(planner, tmp_path):
    """As mktemp leaves it: a tune makes a store of it."""
    (tmp_path / "plans.db").touch()
    result = planner("doctor", "--quick")
    assert result.code == 0, result
    assert "planner tune makes the store" in result.out


@pytest.mark.process
def test_doctor_with_a_fresh_server(planner, postgresql):
    """Somebody made the database, and nobody has tuned: nothing is broken."""
    from sqlalchemy import create_engine, text

    server = create_engine(postgresql(), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text("create database fresh"))
    fresh = server.url.set(database="fresh").render_as_string(hide_password=False)
    server.dispose()
    result = planner("doctor", "--quick", "--store", fresh)
    assert result.code == 0, result
    assert "planner tune makes the store" in result.out
    assert planner("show", "--store", fresh).code == 6


@pytest.mark.process
def test_doctor_with_a_damaged_store(planner, tmp_path):
    path = tmp_path / "plans.db"
    path.write_bytes(b"x" * 5000)
    result = planner("doctor", "--json")
    assert result.code == 6
    assert not json.loads(result.out)["ok"]
    assert "store" in result.err
    assert path.read_bytes() == b"x" * 5000


def test_doctor_with_a_broken_compiler(planner, monkeypatch):
    def compiler():
        raise RuntimeError("no ptxas")

    monkeypatch.setattr("fusionplan.cli.doctor.EXAMINATIONS", (compiler,))
    result = planner("doctor", "--json")
    assert result.code == 4
    (check, _) = json.loads(result.out)["checks"]
    assert check["text"] == "RuntimeError: no ptxas"
