"""planner key, trust, export, import and bundle, as a user runs them."""

import json
from dataclasses import replace

import pytest
from fusionplan.bundles.contents import Contents, open_bundle, write
from fusionplan.bundles.signing import private_key, trusted
from fusionplan.cli.import_ import is_better
from fusionplan.db import PlanRecord, Store

VERSIONS = {"torch": "2.11.0"}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "fusionplan"


@pytest.fixture
def exported(planner, filled, tmp_path):
    """One plan of the store, in a bundle."""
    result = planner("export", "chain", "-o", "plans.bundle", "--json")
    assert result.code == 0, result
    return tmp_path / "plans.bundle", json.loads(result.out)


def test_a_key_is_made_once_and_only_its_owner_reads_it(planner, home):
    first = planner("key")
    assert first.out.startswith("ed25519:")
    assert planner("key").out == first.out
    assert (home / "bundle-key.pem").stat().st_mode & 0o777 == 0o600
    assert planner("trust").out == f"{first.out.strip()} own\n"


def test_keys_are_trusted_and_no_longer(planner, monkeypatch, tmp_path):
    public = planner("key").out.strip()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert planner("trust").out.startswith("no keys in ")
    assert planner("trust", public, "--name", "build server").out == f"{public} build server\n"
    assert json.loads(planner("trust", "--json").out)["keys"] == {public: "build server"}
    assert planner("trust", public, "--remove").out.startswith("no keys in ")
    assert planner("trust", public, "--remove").code == 2
    assert planner("trust", "ssh-rsa AAAA").code == 8
    assert planner("trust", "--remove").code == 2


def test_export_tells_what_it_wrote(exported, filled):
    path, told = exported
    assert told["file"] == "plans.bundle"
    assert told["bytes"] == path.stat().st_size
    counts = {name: told[name] for name in ("devices", "graphs", "kernels", "trials", "plans")}
    assert counts == {"devices": 1, "graphs": 1, "kernels": 1, "trials": 5, "plans": 1}


def test_import_adds_and_then_keeps(planner, exported, tmp_path, filled):
    path, _ = exported
    assert "5 trials" in planner("import", path, "--dry-run").out
    assert not (tmp_path / "new.db").exists()
    for verb in ("added", "kept"):
        merged = json.loads(planner("import", path, "--store", "new.db", "--json").out)["merged"]
        assert {name: each[verb] for name, each in merged.items()} == {
            "devices": 1,
            "graphs": 1,
            "kernels": 1,
            "trials": 5,
            "plans": 1,
        }
    with Store.open(tmp_path / "new.db") as new:
        assert new.find_plan("chain").payload == filled.find_plan("chain").payload
        assert new.count_trials() == 5
    assert planner("show", "chain", "--store", "new.db").code == 0
    assert "kept" in planner("import", path, "--store", "new.db").out


def test_an_altered_bundle_is_one_error_with_its_own_code(planner, exported, tmp_path):
    path, _ = exported
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    result = planner("import", path, "--store", "new.db")
    assert result.code == 8
    assert result.err == f"planner: {path}: it was altered, or cut short; nothing of it was used\n"
    assert result.out == ""
    assert not (tmp_path / "new.db").exists()
    told = json.loads(planner("import", path, "--store", "new.db", "--json").out)
    assert told["error"]["name"] == "bundle"


def test_a_key_that_is_not_trusted_is_named_with_the_cure(planner, exported, monkeypatch, tmp_path):
    path, told = exported
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    result = planner("import", path)
    assert result.code == 8
    assert told["signer"] in result.err
    assert "planner trust" in result.err


@pytest.mark.parametrize("text", [b"", b"PK\3\4", b"fusionplan bundle 1\n", b"\0" * 5000])
def test_what_is_no_bundle(planner, tmp_path, text):
    (tmp_path / "x").write_bytes(text)
    assert planner("import", "x").code == 8


@pytest.mark.process
def test_files_that_cannot_be_read_or_written(planner, filled, tmp_path):
    assert planner("import", "nowhere").code == 8
    result = planner("export", "chain", "-o", "no/folder/plans.bundle")
    assert result.code == 8
    assert "cannot be written" in result.err
    assert planner("export", "nothing of this name").code == 5


def test_a_store_that_is_not_what_its_keys_say_is_not_exported(planner, filled):
    """The plan "old" has a payload of other versions."""
    result = planner("export")
    assert result.code == 8
    assert "plan aaaa1111 is another" in result.err


def record(evidence, measured):
    payload = {"measured": measured}
    common = {"key": "k", "graph_key": "g", "device_key": "d", "versions": VERSIONS, "name": "n"}
    return PlanRecord(evidence=evidence, payload=payload, **common)


@pytest.mark.parametrize(
    "stored, given, wins",
    [
        (("modelled", None), ("measured", 2e-3), True),
        (("measured", 1e-3), ("modelled", None), False),
        (("measured", 1e-3), ("searched", 1e-6), False),
        (("measured", 1e-3), ("measured", 9e-4), True),
        (("measured", 1e-3), ("measured", 1e-3), False),
        (("measured", 1e-3), ("measured", 2e-3), False),
        (("measured", None), ("measured", 2e-3), False),
        (("searched", 2e-3), ("searched", 1e-3), False),
    ],
)
def test_which_plan_is_better(stored, given, wins):
    assert is_better(record(*stored), record(*given)) is wins


class TestBundle:
    @pytest.fixture
    def stored(self, planner, small, quick):
        """A plan of the model that the cost model made."""
        assert planner("tune", small, "--device", "cpu", "--target", "h200").code == 0
        return small

    @pytest.mark.dynamo
    def test_a_model_without_a_plan(self, planner, small, filled):
        result = planner("bundle", small, "--device", "cpu", "--target", "h200")
        assert result.code == 5
        assert "why-miss" in result.err

    @pytest.mark.dynamo
    def test_only_measured_plans_unless_asked(self, planner, stored, monkeypatch):
        options = ("--device", "cpu", "--target", "h200")
        result = planner("bundle", stored, *options)
        assert result.code == 5
        assert "no measured plan" in result.err
        assert planner("bundle", stored, *options, "--evidence", "some").code == 2

    @pytest.mark.dynamo
    def test_plans_and_machine_code(self, planner, stored, monkeypatch, tmp_path):
        """With a compiler that stands in for Triton's: in this process the interpreter is on."""
        from fusionplan.bundles import making
        from fusionplan.planner.runtime.machine_code.ready import MachineCode

        compiled = []

        def compile_kernel(source, target, aligned=True):
            compiled.append((source.name, target.capability, aligned))
            return len(compiled)

        def machine_code(number):
            return MachineCode(f"{number:064x}", compiled[number - 1][0], {}, bytes([number]))

        monkeypatch.setattr(making, "compile_kernel", compile_kernel)
        monkeypatch.setattr(making, "machine_code", machine_code)
        options = ("--device", "cpu", "--target", "h200", "--evidence", "any", "-o", "m.plan")
        result = planner("bundle", stored, *options, "--json")
        assert result.code == 0, result
        told = json.loads(result.out)
        assert compiled
        assert all(capability == 90 for _, capability, _ in compiled)
        assert {aligned for *_, aligned in compiled} == {True, False}
        assert told["machine_code"] == len(compiled)
        shown = json.loads(planner("import", "m.plan", "--dry-run", "--json").out)
        assert shown["about"]["model"] == "small"
        assert shown["machine_code"] == len(compiled)
        assert [p["name"] for p in shown["plans"]] == ["small"]
        assert planner("bundle", stored, *options).out.count("signed by ed25519:") == 1

    @pytest.mark.dynamo
    def test_graphs_are_in_it_where_the_model_runs(self, planner, small, filled, monkeypatch):
        """Here by a plan that says: as eager."""
        from fusionplan.bundles import making
        from fusionplan.cli import bundle
        from fusionplan.planner.graph.graph import key
        from fusionplan.planner.plan import Plan

        chain = filled.find_plan("chain")

        def planned(store, graph, device, name, evidence):
            return chain, Plan(key(graph), device, (), "measured", ())

        monkeypatch.setattr(bundle, "_plan", planned)
        monkeypatch.setattr(making, "kernels", lambda graph, plan: ())
        for target, count in ((["--target", "h200"], 0), ([], 1)):
            result = planner("bundle", small, "--device", "cpu", "--json", *target)
            assert result.code == 0, result
            assert json.loads(result.out)["opened_graphs"] == count
            assert len(open_bundle("model.plan", trusted()).opened) == count
        said = planner("bundle", small, "--device", "cpu").out
        assert "1 graph that a process takes over without AOTAutograd" in said


def test_a_plan_of_the_store_is_not_replaced_by_a_worse_one(planner, exported, tmp_path, filled):
    path, _ = exported
    better = filled.find_plan("chain")
    payload = better.payload | {"measured": 1e-9}
    filled.save_plan(replace(better, payload=payload))
    result = planner("import", path, "--json")
    assert result.code == 0, result
    assert json.loads(result.out)["merged"]["plans"] == {"added": 0, "replaced": 0, "kept": 1}
    assert filled.find_plan("chain").payload["measured"] == 1e-9


@pytest.mark.process
def test_a_number_that_no_store_takes_is_a_fault_of_the_bundle(planner, exported, tmp_path):
    path, _ = exported
    found = open_bundle(path, trusted())
    first, *others = found.records.trials
    trials = (replace(first, registers=2**70), *others)
    write(path, Contents(replace(found.records, trials=trials)), private_key())
    for more in ((), ("--dry-run",)):
        result = planner("import", path, "--store", "new.db", *more)
        assert result.code == 8
        assert "registers is 1180591620717411303424" in result.err
    assert not (tmp_path / "new.db").exists()
