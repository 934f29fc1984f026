"""How the command starts: what it imports, how it is called, what its help says."""

import json
import os
import resource
import subprocess
import sys

import pytest

LIGHT = (
    ["--help"],
    ["-h"],
    ["--version"],
    ["tune", "-h"],
    ["plans"],
    ["show"],
    ["show", "chain", "--json"],
    ["show", "--graph"],
    ["history"],
    ["history", "--best"],
    ["doctor", "--quick"],
)


@pytest.mark.process
def test_no_torch_where_none_is_needed(planner_process, filled):
    """All in one process: what one of them imports, the next would find."""
    filled.close()
    script = (
        "import sys\nfrom fusionplan.cli.main import main\n"
        f"codes = [main(a) for a in {LIGHT!r}]\n"
        "print('codes', codes, [m for m in ('torch', 'triton', 'optuna') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == f"codes {[0] * len(LIGHT)} []", done.stderr
    assert "bbbb2222" in done.stdout


@pytest.mark.process
def test_a_look_at_the_store_is_quick(filled, tmp_path):
    """In seconds of the processor, for others may have it; once Python has compiled the modules. On
    a slow machine more: less than torch takes to be imported, which is a second elsewhere."""
    filled.close()
    env = os.environ | {"PLANNER_STORE": filled.location}
    if env.pop("PYTHONDONTWRITEBYTECODE", ""):
        env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")

    def seconds(*command):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-P", *command],
            env=env,
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    for command, most_s in (("history", 1.0), ("show", 1.0), ("--help", 0.5)):
        ours = "-m", "fusionplan", command
        seconds(*ours)
        took = [seconds(*ours)]
        while took[-1] >= most_s and len(took) < 3:
            took.append(seconds(*ours))
        if min(took) >= most_s:
            most_s *= 0.8 * min(seconds("-c", "import torch") for _ in range(2))
        assert min(took) < most_s, (command, took)


@pytest.mark.process
def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fusionplan", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout[:8]) == (0, "planner "), done.stderr


def test_help_is_not_markup(planner):
    told = planner("-h")
    assert told.code == 0
    assert "[tool.planner]" in told.out
    assert "<bool>" not in planner("tune", "-h").out
    assert planner("--help").out == told.out


def test_every_command_has_its_module(planner):
    from fusionplan.cli.main import COMMANDS

    for name in COMMANDS:
        result = planner(name, "-h")
        assert result.code == 0, result
        assert result.out.startswith(f"Usage: planner {name}")


def test_no_garbage_is_collected_while_modules_are_imported(monkeypatch):
    import gc

    from fusionplan.cli import main

    seen = []
    real = main.import_module
    monkeypatch.setattr(
        main, "import_module", lambda *a: (seen.append(gc.isenabled()), real(*a))[1]
    )
    main.command("show")
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_slip_of_the_hand(planner):
    result = planner("histroy")
    assert result.code == 2
    assert "'history'" in result.err


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(planner_process, shell):
    """What the shell asks, and its answer: a command, and an option of one."""
    words = {"_PLANNER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    told = planner_process(
        _TYPER_COMPLETE_ARGS="planner hi", COMP_WORDS="planner hi", COMP_CWORD="1", **words
    )
    assert "history" in told.out, told


def test_errors_as_json(planner):
    result = planner("tune", "nowhere.py", "--json")
    data = json.loads(result.out)
    assert result.code == 3
    assert data["schema"] == 1
    assert (data["error"]["code"], data["error"]["name"]) == (3, "model")
    assert "nowhere.py" in data["error"]["message"]
    assert json.loads(planner("show", "--json").out)["error"]["name"] == "plan"
    assert json.loads(planner("history", "--json", "--limit", "x").out)["error"]["code"] == 2


@pytest.mark.process
def test_a_reader_that_leaves(filled):
    """planner plans | head -0: no traceback, and no complaint."""
    filled.close()
    command = f"{sys.executable} -P -m fusionplan history --kernel k --json | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_reference_is_of_this_code():
    """Renew it: python -m fusionplan.cli.reference > docs/commands.md"""
    from pathlib import Path

    from fusionplan.cli.reference import reference

    written = Path(__file__).parents[2] / "docs" / "commands.md"
    assert written.read_text() == reference()
