"""Every error is one line on stderr that says what to do, with its exit code, and no traceback."""

import sqlite3
from pathlib import Path

import pytest
import torch

NET = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""
FILES = {
    "broken.py": "import torch\n\n\ndef get_model(:\n    pass\n",
    "missing.py": "import torch\nimport no_such_module\n",
    "leaves.py": "import sys\n\nsys.exit(4)\n",
    "empty.py": NET + "\n\ndef helper(a):\n    return a\n",
    "raises.py": "def get_model():\n    text = 'no weights'\n    raise OSError(text)\n",
    "number.py": "model = 3\nexample_inputs = []\n",
    "shapes.py": NET.replace("x + 1", "x @ torch.ones(7, 7)")
    + "\n\nmodel = Net()\nexample_inputs = torch.ones(3, 5)\n",
    "set.py": NET + "\n\nmodel = Net()\nexample_inputs = {1, 2}\n",
    "no_inputs.py": NET + "\n\nmodel = Net()\n",
    "bad_inputs.py": NET + "\n\nmodel = Net()\n\n\ndef get_inputs():\n    return 1 / 0\n",
    "named.py": "import torch\n\nencoder = torch.nn.Linear(4, 4)\n",
    "numbered.py": NET + "\n\nmodel = Net()\nexample_inputs = {0: torch.ones(3)}\n",
    "arguments.py": NET.replace(
        "    def forward", "    def __init__(self, width):\n        pass\n\n    def forward"
    ),
    "constant.py": "WIDTH = 3\nNAMES = ['x']\n",
    "unmade.py": NET.replace("Net", "Model").replace(
        "    def forward", "    def __init__(self, width):\n        pass\n\n    def forward"
    ),
    "good.py": NET + "\n\nmodel = Net()\nexample_inputs = torch.ones(4, 8)\n",
}


BYTES = {
    "prose.txt": b"These are a few words about a model.\n",
    "zeros.py": b"\0\1\2\3",
    "latin.py": "name = 'größer'\n".encode("latin-1"),
}


@pytest.fixture(autouse=True)
def _files(write):
    for name, text in FILES.items():
        write(name, text)
    for name, content in BYTES.items():
        write(name, "").write_bytes(content)


def assert_told(result, code, *words):
    assert result.code == code, result
    assert result.out == ""
    last = result.err.splitlines()[-1]
    assert last.startswith("planner: "), result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in last, last


@pytest.mark.parametrize(
    "spec, words",
    [
        ("nowhere.py", ["nowhere.py", "no file"]),
        (".", ["folder"]),
        ("broken.py", ["broken.py, line 4"]),
        ("missing.py", ["missing.py, line 2", "no_such_module"]),
        ("leaves.py", ["leaves.py, line 3", "SystemExit"]),
        ("prose.txt", ["prose.txt, line 1", "invalid syntax", "give a Python file"]),
        ("zeros.py", ["zeros.py: ", "null bytes", "give a Python file"]),
        ("latin.py", ["latin.py", "codec", "give a Python file"]),
        ("empty.py", ["get_model()", "class Model", "Net (class)", "helper (function)"]),
        ("raises.py", ["raises.py, line 3", "OSError: no weights"]),
        ("number.py", ["int", "cannot be called"]),
        ("shapes.py", ["float32[3, 5]", "3x5", "7x7", "change the inputs or the model"]),
        ("set.py", ["set.py", "example_inputs", "of type set", "tuple"]),
        ("named.py", ["encoder (Linear)", "named.py:NAME"]),
        ("numbered.py", ["dictionary", "key 0 of type int", "names of the model's arguments"]),
        ("no_inputs.py", ["get_inputs()", "--inputs"]),
        ("bad_inputs.py", ["bad_inputs.py, line 13", "ZeroDivisionError"]),
        ("good.py:Missing", ["'Missing'", "Net (class)"]),
        ("arguments.py:Net", ["needs width"]),
        ("constant.py", ["nothing in the file could be used", "write def get_model()"]),
        ("unmade.py", ["class Model needs width", "get_model()", "get_init_inputs()"]),
    ],
)
def test_model(planner, spec, words):
    assert_told(planner("tune", spec, "--target", "h200", "--quiet"), 3, *words)


@pytest.mark.parametrize("spec", ["nowhere.py", "broken.py", "shapes.py"])
def test_model_of_explain(planner, spec):
    assert_told(planner("explain", spec), 3, spec if spec != "shapes.py" else "float32[3, 5]")


def test_inputs_option(planner):
    result = planner("tune", "good.py", "--inputs", "nowhere.py:f", "--quiet")
    assert_told(result, 3, "nowhere.py", "FILE.py:FUNCTION", "'float32[8, 1024]'")


@pytest.mark.parametrize(
    "inputs, words",
    [
        ("float33[3]", ["'float33'", "bfloat16", "float32"]),
        ("float32[3] float32", ["'float32[3] float32'", "'float32[8, 1024], int64[8]'"]),
        ("float32[3,]x", ["is not a type and a shape"]),
        ("float32[n]", ["is not a type and a shape"]),
    ],
)
def test_shapes_option(planner, inputs, words):
    result = planner("tune", "good.py", "--inputs", inputs, "--target", "h200", "--quiet")
    assert_told(result, 3, *words)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--device", "abacus"], ["'abacus'", "cuda"]),
        (["--device", "meta"], ["meta", "cuda"]),
        (["--target", "z80"], ["'z80'", "h200"]),
    ],
)
def test_device(planner, arguments, words):
    assert_told(planner("tune", "good.py", "--quiet", *arguments), 4, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_device(planner):
    result = planner("tune", "good.py", "--quiet", "--device", "cuda")
    assert_told(result, 4, "no CUDA device", "--target")


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "good.py", "--trials", "0"],
        ["tune", "good.py", "--trials", "-3"],
        ["tune", "good.py", "--trials", "many"],
        ["tune", "good.py", "--seconds", "0"],
        ["tune", "good.py", "--seconds", "-1"],
        ["tune", "good.py", "--seconds", "nan"],
        ["tune", "good.py", "--no-such-option"],
        ["tune"],
        ["sing"],
        ["history", "--outcome", "lucky"],
        ["history", "--limit", "0"],
    ],
)
def test_usage(planner, arguments):
    assert_told(planner(*arguments), 2)


def test_plan(planner, filled):
    assert_told(planner("show", "zzzz"), 5, "'zzzz'", "chain")


def test_empty_store_has_no_plan(planner, tmp_path):
    from fusionplan.db import Store

    Store.open(tmp_path / "plans.db").close()
    assert_told(planner("show"), 5, "no plan")


def test_ambiguous_plan(planner, filled):
    assert_told(planner("show", ""), 5)


@pytest.mark.parametrize("command", ["show", "history", "accuracy"])
def test_no_store(planner, command):
    assert_told(planner(command), 6, "plans.db")


@pytest.mark.parametrize("command", ["show", "history", "accuracy"])
def test_no_folder_of_a_store_is_made_to_read_it(planner, tmp_path, command):
    path = tmp_path / "no" / "such" / "plans.db"
    assert_told(planner(command, "--store", path), 6, str(path), "tune something first")
    assert not (tmp_path / "no").exists()


@pytest.mark.process
@pytest.mark.parametrize("command", [["tune", "good.py", "--quiet"], ["accuracy", "--refit"]])
def test_read_only_store(planner, filled, tmp_path, frozen_folder, command):
    """What is in it can still be read, and stays as it was."""
    filled.close()
    folder = tmp_path / "frozen"
    folder.mkdir()
    path = (tmp_path / "plans.db").rename(folder / "plans.db")
    before = path.read_bytes()
    frozen_folder(folder)
    told = planner(*command, "--store", path)
    assert_told(told, 6, str(path), "cannot be written", "PLANNER_STORE")
    shown = planner("show", "chain", "--store", path)
    assert (shown.code, shown.err) == (0, "")
    assert path.read_bytes() == before


def damaged(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def newer(path: Path) -> None:
    from fusionplan.db import Store

    Store.open(path).close()
    connection = sqlite3.connect(path)
    (table,) = connection.execute(
        "SELECT name FROM sqlite_master WHERE sql LIKE '%version_num%'"
    ).fetchone()
    connection.execute(f"UPDATE \"{table}\" SET version_num = '9999'")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize("spoil, word", [(damaged, "damaged"), (newer, "9999")])
@pytest.mark.parametrize(
    "command", [["tune", "good.py"], ["explain", "good.py"], ["show"], ["history"], ["accuracy"]]
)
def test_unusable_store_stays_as_it_is(planner, tmp_path, spoil, word, command):
    path = tmp_path / "plans.db"
    spoil(path)
    before = path.read_bytes()
    assert_told(planner(*command), 6, word)
    assert path.read_bytes() == before


def test_store_that_cannot_be_made(planner, tmp_path):
    (tmp_path / "file").touch()
    result = planner("tune", "good.py", "--store", tmp_path / "file" / "plans.db")
    assert_told(result, 6, "plans.db")


def test_damaged_plan(planner, filled, tmp_path):
    """The record's digest is right, and yet it is no plan."""
    from dataclasses import replace

    record = filled.find_plan("chain")
    filled.save_plan(replace(record, payload={"groups": 3}))
    assert_told(planner("show", "chain"), 6, "bbbb2222")


def test_internal_error(planner, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("a wheel came off\nand rolled away")

    monkeypatch.setattr("fusionplan.db.Store.open", fails)
    result = planner("show")
    assert_told(result, 1, "RuntimeError: a wheel came off and rolled away", "report")
    assert len(result.err.splitlines()) == 1


def test_an_error_of_the_tuner_is_internal():
    from fusionplan.cli.errors import INTERNAL, exit_code
    from fusionplan.tuner.trial.outcome import TunerError

    assert exit_code(TunerError("a worker does not start")) == TunerError.exit_code == INTERNAL


def test_debug_shows_the_traceback(planner, monkeypatch):
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    result = planner("show")
    assert result.code == 6
    assert "Traceback" in result.err


def test_codes_are_in_the_help(planner):
    result = planner("--help")
    assert result.code == 0
    for code in (0, 1, 2, 3, 4, 5, 6, 130):
        assert f"{code}: " in result.out


def test_no_command_prints_the_help(planner):
    result = planner()
    assert result.code == 0
    assert "doctor" in result.out


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments, code",
    [
        (["tune", "shapes.py", "--target", "h200", "--quiet"], 3),
        (["show"], 6),
        (["tune", "good.py", "--trials", "0"], 2),
    ],
)
def test_as_a_process(planner_process, arguments, code):
    result = planner_process(*arguments)
    assert_told(result, code)
    assert len(result.err.splitlines()) == 1, result.err


def test_a_full_memory_is_the_devices(capsys):
    from fusionplan.cli.errors import DEVICE, report

    assert report(torch.OutOfMemoryError("CUDA out of memory.\nTried a lot")) == DEVICE
    told = capsys.readouterr().err
    assert told.startswith("planner: the device's memory is full: give a smaller batch")
    assert told.count("\n") == 1
