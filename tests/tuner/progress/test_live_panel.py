"""What a tune shows: how far it is, in a terminal of any width; and PLANNER_LOGS."""

import io
import logging
import os
import subprocess
import sys

import pytest
from fusionplan.planner.config import Config
from fusionplan.terminal import data_console
from fusionplan.tuner.progress.live_panel import LiveProgress, reporting
from fusionplan.tuner.progress.notebook_bar import NotebookBar
from fusionplan.tuner.progress.progress import Logged, RecordedProgress, Silent, TrialDone
from fusionplan.tuner.trial.outcome import Candidate, Timed, TimedOut

CANDIDATE = Candidate("triton", Config((("x0", 64),), num_warps=4, num_stages=1))


def done(outcome, reused=False):
    return TrialDone("g", "fused_add", 3, 20, CANDIDATE, outcome, 1e-5, 2e-5, reused)


def view(progress, width):
    console = data_console(io.StringIO(), width)
    console.print(progress._view())
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 40])
def test_panel(width, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fusionplan.tuner.progress.live_panel.time.monotonic", lambda: now[0])
    progress = LiveProgress(data_console(io.StringIO(), width), seconds=180)
    progress.phase("model", "compiling max-autotune, 4 of 5")
    progress.trial(done(Timed(2e-5, 1e-7, 10), reused=True))
    progress.trial(done(TimedOut("at the limit")))
    now[0] += 50
    text = view(progress, width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("model compiling max-autotune, 4 of 5", "best so far 20 us", "1 timed_out"):
        assert word in text, text
    assert ("50 of 180 s, at most 130 s left" in text) == (width == 80)
    now[0] += 150
    assert "20 over" in view(progress, 80)


def test_lines_where_there_is_no_terminal():
    console = data_console(io.StringIO(), 80)
    with LiveProgress(console, 60) as progress:
        progress.phase("search", "up to 64 trials")
        progress.note("a name with \x1b[2J in it")
    assert console.file.getvalue() == "search: up to 64 trials\nnote: a name with \\x1b[2J in it\n"


def test_a_bar_in_a_notebook(monkeypatch, capsys):
    monkeypatch.setattr("fusionplan.tuner.progress.live_panel.is_notebook", lambda: True)
    with reporting(None, 60) as told:
        assert isinstance(told.progress, NotebookBar)
        told.phase("search", "up to 64 trials")
        told.trial(done(Timed(2e-5, 1e-7, 10)))
        told.note("a name with \x1b[2J in it")
    out, err = capsys.readouterr()
    assert "search: up to 64 trials" in err
    assert "0 of 60 s" in err
    assert "trial 1, best so far of fused_add 20 us" in err
    assert "note: a name with \\x1b[2J in it" in out + err
    assert "\x1b[2J" not in out + err


def test_python_chooses(monkeypatch, capsys):
    monkeypatch.setattr("fusionplan.tuner.progress.live_panel.is_notebook", lambda: False)
    own = RecordedProgress()
    for given, kind in (
        (own, RecordedProgress),
        (False, Silent),
        (None, Silent),
        (True, LiveProgress),
    ):
        with reporting(given, 60) as told:
            assert isinstance(told, Logged)
            assert isinstance(told.progress, kind)
            told.note("seen")
    assert own.of("note") == ["seen"]
    assert capsys.readouterr().err.splitlines() == ["note: seen"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reporting(None, 60) as told:
        assert isinstance(told.progress, LiveProgress)


def test_every_event_is_logged():
    lines = []

    class Keeps(logging.Handler):
        def emit(self, record):
            lines.append(f"{record.levelname} {record.getMessage()}")

    logger, handler = logging.getLogger("fusionplan.tuner.progress.progress"), Keeps()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        told = Logged(Silent())
        told.phase("search", "up to 64 trials")
        told.trial(done(Timed(2e-5, 1e-7, 10)))
        told.group_done("fused_add", CANDIDATE, 2e-5)
        told.note("a note")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert [line.split()[0] for line in lines] == ["INFO", "DEBUG", "INFO", "INFO"]
    assert "trial 3 of 20" in lines[1]
    assert "predicted 10 us, best so far 20 us" in lines[1]


@pytest.mark.process
@pytest.mark.parametrize(
    "value, shown",
    [
        ("tune", ["i tuner"]),
        ("+tune", ["d tuner", "i tuner"]),
        ("all", ["i tuner", "i api"]),
        ("+all,-plans", ["d tuner", "i tuner"]),
        ("nonsense", ["no area 'nonsense'"]),
        ("", []),
    ],
)
def test_variable(value, shown):
    script = (
        "import logging, fusionplan\n"
        "for name in ('tuner', 'api'):\n"
        "    log = logging.getLogger(f'fusionplan.{name}')\n"
        "    log.debug('d %s', name)\n"
        "    log.info('i %s', name)\n"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=dict(os.environ) | {"PLANNER_LOGS": value},
        capture_output=True,
        text=True,
        check=True,
    ).stderr.splitlines()
    assert len(found) == len(shown), found
    for line, word in zip(found, shown, strict=True):
        assert word in line
