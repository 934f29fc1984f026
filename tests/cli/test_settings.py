"""Option over PLANNER_* variable over planner.toml over [tool.planner] in pyproject.toml."""

import pytest


@pytest.fixture
def asked(planner, monkeypatch):
    """What the command line asks of the search."""
    seen = []

    def search(request, progress):
        seen.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr("fusionplan.cli.tune._searched", search)

    def ask(*arguments):
        assert planner("tune", "model.py", *arguments).code == 130
        return seen[-1]

    return ask


PYPROJECT = '[tool.planner]\ntrials = 3\nseconds = 4.5\ndevice = "cpu"\ntarget = "a100"\n'


def test_nothing_is_set(asked):
    request = asked()
    assert (request.trials, request.seconds, request.device, request.target) == (None,) * 4


def test_precedence(asked, write, monkeypatch):
    write("pyproject.toml", PYPROJECT)
    request = asked()
    assert (request.trials, request.seconds) == (3, 4.5)
    assert (request.device, request.target) == ("cpu", "a100")
    write("planner.toml", "trials = 5\n")
    assert asked().trials == 5
    assert asked().seconds is None
    monkeypatch.setenv("PLANNER_TRIALS", "7")
    assert asked().trials == 7
    assert asked("--trials", "9").trials == 9


@pytest.mark.parametrize(
    "name, value, given",
    [("seconds", 2.5, "2.5"), ("device", "cpu", "cpu"), ("target", "h100", "h100")],
)
def test_variables(asked, monkeypatch, name, value, given):
    monkeypatch.setenv(f"PLANNER_{name.upper()}", given)
    assert getattr(asked(), name) == value


def test_store(planner, filled, write, monkeypatch, tmp_path):
    path = tmp_path / "plans.db"
    monkeypatch.delenv("PLANNER_STORE")
    write("planner.toml", f'store = "{path}"\n')
    assert planner("show").code == 0
    assert planner("history").code == 0
    monkeypatch.setenv("PLANNER_STORE", str(tmp_path / "elsewhere.db"))
    assert planner("show").code == 6
    assert planner("show", "--store", path).code == 0


@pytest.mark.parametrize(
    "text, word",
    [
        ("trials = ", "TOML"),
        ("speed = 3\n", "'speed'"),
        ('efort = "quick"\n', "did you mean 'effort'?"),
        ('trials = "many"\n', "trials"),
        ("trials = true\n", "trials"),
        ("store = 3\n", "store"),
        ('effort = "endless"\n', "quick, default, thorough"),
    ],
)
def test_faulty_file(planner, write, text, word):
    write("planner.toml", text)
    result = planner("show")
    assert result.code == 2
    assert "planner.toml" in result.err
    assert word in result.err
    assert len(result.err.splitlines()) == 1


def test_a_variable_that_is_none_is_told(planner, filled, monkeypatch):
    """The command goes on: the variable may be another program's."""
    monkeypatch.setenv("PLANNER_STROE", "x")
    monkeypatch.setenv("PLANNER_LOGS", "")
    result = planner("plans", "--json")
    assert result.code == 0
    assert result.err == (
        "planner: note: PLANNER_STROE is not a variable that planner reads "
        "(did you mean 'PLANNER_STORE'?)\n"
    )


def test_zero_in_the_file(planner, write):
    write("planner.toml", "trials = 0\n")
    assert planner("tune", "model.py").code == 2


def test_every_setting_has_its_option_variable_and_key(asked, write, monkeypatch):
    """What the documentation's table promises: one row, three ways."""
    import tomllib

    from fusionplan.cli.settings import SETTINGS

    for name, setting in SETTINGS.items():
        example = tomllib.loads(f"value = {setting.example}")["value"]
        write("planner.toml", f"{name} = {setting.example}\n")
        monkeypatch.delenv(setting.variable, raising=False)
        assert getattr(asked(), name) == example, name
        write("planner.toml", "")
        monkeypatch.setenv(setting.variable, str(example))
        assert getattr(asked(), name) == example, name
        monkeypatch.delenv(setting.variable)
        assert getattr(asked(f"--{name}", str(example)), name) == example, name


def test_settings_do_not_reach_options_of_another_meaning(planner, filled, write):
    """`accuracy --of` and `calibrate --seconds` are no settings."""
    write("planner.toml", 'device = "cuda:0"\nseconds = 500\n')
    assert "no device" not in planner("accuracy").err
    assert "--seconds" not in planner("calibrate").err
