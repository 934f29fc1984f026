"""Workers that hang, crash, chatter and will not start; none of them imports torch here."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from fusionplan.tuner.trial.outcome import Crashed, TimedOut, TunerError
from fusionplan.tuner.workers.pool import Pool, WorkerRole
from process_ends import gone, is_alive

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, sys, time
print("a library says hello", flush=True)
print(json.dumps({"ready": True}), flush=True)
seen = 0
for line in sys.stdin:
    request = json.loads(line)
    match request["do"]:
        case "hang": time.sleep(600)
        case "die": os._exit(7)
        case "kill": os.kill(os.getpid(), 9)
        case "speak": sys.stderr.write("ImportError: the cause\\n"); sys.stderr.flush(); os._exit(1)
        case "bug": answer = {"error": "Traceback: a bug"}
        case "seldom":
            if seen: os._exit(9)
        case "doom":
            print(json.dumps({"id": request["id"], "pid": os.getpid()}), flush=True)
            os._exit(9)
        case "noise": print("progress: 10%", flush=True)
        case "garble": print('{"id": 1, "outco', flush=True)
        case "odd": print('[1, 2]', flush=True)
        case "leave": answer = {"outcome": "crashed", "reason": "sticky", "leaving": True}
        case _: pass
    if request["do"] not in ("bug", "leave"): answer = {"pid": os.getpid(), "n": request.get("n")}
    if request["do"] == "garble": continue
    seen += 1
    print(json.dumps({"id": request["id"], **answer}), flush=True)
    if request["do"] == "leave": sys.exit()
"""


def role(count: int = 1, limit_s: float = 5.0, script: str = SCRIPT) -> WorkerRole:
    return WorkerRole([sys.executable, "-S", "-c", script], count, limit_s)


def test_a_hang_is_killed_and_what_was_queued_behind_it_is_answered():
    with Pool({"w": role(limit_s=1.0)}) as pool:
        futures = [pool.submit("w", {"do": d, "n": i}) for i, d in enumerate(["", "hang", "", ""])]
        answers = [f.result(timeout=20) for f in futures]
    assert isinstance(answers[1], TimedOut)
    assert [a["n"] for i, a in enumerate(answers) if i != 1] == [0, 2, 3]
    assert answers[0]["pid"] != answers[2]["pid"] == answers[3]["pid"]


@pytest.mark.parametrize(
    "what, said",
    [("die", "exit status 7"), ("kill", "SIGKILL"), ("speak", "ImportError: the cause")],
)
def test_a_crash_costs_one_request(what: str, said: str):
    with Pool({"w": role()}) as pool:
        futures = [pool.submit("w", {"do": d, "n": i}) for i, d in enumerate([what, "", ""])]
        answers = [f.result(timeout=20) for f in futures]
    assert isinstance(answers[0], Crashed)
    assert said in answers[0].reason
    assert [a["n"] for a in answers[1:]] == [1, 2]


def test_what_nobody_waits_for_any_more_is_ended_and_the_rest_is_answered():
    """A worker that plans a section for a minute would be missing for as long."""
    over = threading.Event()
    with Pool({"w": role(limit_s=60.0)}) as pool:
        given_up = [pool.submit("w", {"do": "hang"}, given_up=over) for _ in range(2)]
        begun = time.monotonic()
        threading.Timer(1.0, over.set).start()
        assert pool.submit("w", {"do": "", "n": 3}).result(timeout=20)["n"] == 3
        assert time.monotonic() - begun < 15
        assert all(isinstance(each.result(timeout=1), TimedOut) for each in given_up)


def test_a_worker_that_leaves_is_replaced():
    with Pool({"w": role()}) as pool:
        first = pool.submit("w", {"do": ""}).result(timeout=20)
        left = pool.submit("w", {"do": "leave"}).result(timeout=20)
        second = pool.submit("w", {"do": ""}).result(timeout=20)
    assert left == {"outcome": "crashed", "reason": "sticky"}
    assert first["pid"] != second["pid"]


def test_a_worker_killed_between_requests_is_replaced():
    with Pool({"w": role()}) as pool:
        pid = pool.submit("w", {"do": ""}).result(timeout=20)["pid"]
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        assert pool.submit("w", {"do": "", "n": 1}).result(timeout=20)["n"] == 1


@pytest.mark.parametrize("what, said", [("bug", "a bug"), ("garble", "is no message")])
def test_an_odd_answer_costs_one_request(what: str, said: str):
    with Pool({"w": role()}) as pool:
        futures = [pool.submit("w", {"do": d, "n": i}) for i, d in enumerate(["", what, ""])]
        answers = [f.result(timeout=20) for f in futures]
    assert isinstance(answers[1], Crashed)
    assert said in answers[1].reason
    assert [a["n"] for a in answers[::2]] == [0, 2]


@pytest.mark.parametrize("what", ["noise", "odd"])
def test_what_others_print_is_passed_over(what: str):
    with Pool({"w": role()}) as pool:
        assert pool.submit("w", {"do": what, "n": 3}).result(timeout=20)["n"] == 3


def test_a_worker_that_dies_after_an_answer_takes_no_other_request_with_it():
    """The next request may be written before anybody has seen that the process is gone."""
    with Pool({"w": role()}) as pool:
        kinds = ["doom", ""] * 20
        futures = [pool.submit("w", {"do": d, "n": i}) for i, d in enumerate(kinds)]
        answers = [f.result(timeout=20) for f in futures]
    assert [a["n"] for a in answers[1::2]] == list(range(1, 40, 2))
    assert all("pid" in a for a in answers[::2])


def test_a_crash_in_a_used_process_is_tried_once_more_in_a_new_one():
    with Pool({"w": role()}) as pool:
        first = pool.submit("w", {"do": ""}).result(timeout=20)
        second = pool.submit("w", {"do": "seldom"}).result(timeout=20)
        third = pool.submit("w", {"do": ""}, alone=True).result(timeout=20)
    assert len({first["pid"], second["pid"], third["pid"]}) == 3


def test_who_ended_a_process_decides_whether_it_is_tried_later():
    with Pool({"w": role(limit_s=1.0)}) as pool:
        asked = [pool.submit("w", {"do": what}) for what in ("die", "kill", "hang")]
        exited, killed, hung = [future.result(timeout=20) for future in asked]
    assert [exited.transient, killed.transient, hung.transient] == [False, True, True]


def test_a_stopped_worker_that_is_sent_much_is_killed_in_time():
    with Pool({"w": role(limit_s=1.0)}) as pool:
        pid = pool.submit("w", {"do": ""}).result(timeout=20)["pid"]
        os.kill(pid, signal.SIGSTOP)
        late = pool.submit("w", {"do": "", "much": "x" * 4_000_000}).result(timeout=20)
        assert isinstance(late, TimedOut)
        assert gone(pid)
        assert pool.submit("w", {"do": "", "much": "x" * 4_000_000, "n": 1}).result(20)["n"] == 1


def test_no_interpreter_is_told_and_not_waited_for():
    nowhere = WorkerRole(["/nonexistent/python"], 1, 5.0)
    with Pool({"w": nowhere}) as pool:
        asked = [pool.submit("w", {"do": ""}) for _ in range(2)]
        for future in asked:
            with pytest.raises(TunerError, match="/nonexistent/python: No such file"):
                future.result(timeout=20)


def test_a_worker_that_cannot_be_started_again_fails_what_is_asked_of_it(tmp_path: Path):
    """As when the interpreter's environment is taken away in the middle."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    with Pool({"w": WorkerRole([str(link), "-S", "-c", SCRIPT], 1, 5.0)}) as pool:
        assert pool.submit("w", {"do": "", "n": 1}).result(timeout=20)["n"] == 1
        link.unlink()
        for _ in range(2):
            answer = pool.submit("w", {"do": "die"}).result(timeout=20)
            assert isinstance(answer, Crashed)
            assert answer.transient
            assert "does not start" in answer.reason


def test_no_folder_for_temporary_files_is_no_hindrance(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with Pool({"w": role()}) as pool:
        answer = pool.submit("w", {"do": "speak"}).result(timeout=20)
    assert "the cause" in answer.reason


FORKER = """
import os, sys
from fusionplan.tuner.workers.pool import Pool
for line in sys.stdin:
    script, out = line.split()
    pid = os.fork()
    if not pid:
        os.dup2(os.open(out, os.O_WRONLY), 1)
        exec(open(script).read(), {})
        sys.exit()  # as an interpreter ends
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("over", flush=True)
"""


class Parents:
    """Processes that have a pool, one at a time: forked from one that has imported it, and torch
    with it."""

    def __init__(self, folder: Path) -> None:
        self._folder, pipe = folder, subprocess.PIPE
        command = [sys.executable, "-c", FORKER]
        self._forker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def begin(self, text: str) -> tuple[int, TextIO]:
        """Its number, and what it prints."""
        script, out = self._folder / "script.py", self._folder / "out"
        script.write_text(text)
        out.unlink(missing_ok=True)
        os.mkfifo(out)
        assert self._forker.stdin is not None
        print(script, out, file=self._forker.stdin, flush=True)
        return int(self._line()), out.open()

    def wait(self) -> None:
        assert self._line() == "over\n"

    def _line(self) -> str:
        assert self._forker.stdout is not None
        return self._forker.stdout.readline()

    def close(self) -> None:
        self._forker.communicate()


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parents]:
    made = Parents(tmp_path_factory.mktemp("parents"))
    yield made
    made.close()


WITHOUT_FILES = """
import resource, sys
from fusionplan.tuner.trial.outcome import TunerError
from fusionplan.tuner.workers.pool import Pool, WorkerRole
used = resource.getrlimit(resource.RLIMIT_NOFILE)
import os
most = len(os.listdir("/proc/self/fd")) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (most, used[1]))
with Pool({"w": WorkerRole([sys.executable, "-c", "0"], 1, 5)}) as pool:
    try:
        pool.submit("w", {"do": ""}).result(timeout=20)
    except TunerError as error:
        print(error)
"""


def test_no_file_descriptors_is_told_and_not_waited_for(parents: Parents):
    _, out = parents.begin(WITHOUT_FILES)
    with out:
        said = out.read()
    parents.wait()
    assert "does not start" in said
    assert "Too many open files" in said


def test_a_worker_that_does_not_start_is_our_failure():
    broken = role(script="raise SystemExit('no such device')")
    with Pool({"w": broken}) as pool, pytest.raises(TunerError, match="no such device"):
        pool.submit("w", {"do": ""}).result(timeout=20)


def test_work_spreads_over_all_workers():
    with Pool({"w": role(count=2)}) as pool:
        stuck = pool.submit("w", {"do": "hang"})
        others = [pool.submit("w", {"do": "", "n": i}).result(timeout=20)["n"] for i in range(5)]
        assert others == list(range(5))
        assert not stuck.done()
        pids = pool.pids()
    assert all(gone(pid) for pid in pids)
    assert stuck.done()


def test_closing_cancels_what_waits_and_refuses_more():
    pool = Pool({"w": role()})
    running, waiting = pool.submit("w", {"do": "hang"}), pool.submit("w", {"do": ""})
    time.sleep(0.3)
    pool.close()
    pool.close()
    assert waiting.cancelled()
    assert running.done()
    with pytest.raises(TunerError, match="closed"):
        pool.submit("w", {"do": ""})


# A shell starts background jobs with SIGINT ignored, and Python keeps to that.
PARENT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from fusionplan.tuner.workers.pool import Pool, WorkerRole
pool = Pool({"w": WorkerRole([sys.executable, "-c", %r], 1, 60)})
future = pool.submit("w", {"do": "hang"})
while not pool.pids(): time.sleep(0.01)
time.sleep(0.5)
print(pool.pids()[0], flush=True)
time.sleep(60)
"""

# The child of a killed parent: ours, with its watch on stdin, while it is busy.
CHILD = """
import time
from fusionplan.tuner.workers.pipes import Pipe, die_with_parent
die_with_parent()
pipe = Pipe()
pipe.send({"ready": True})
pipe.receive()
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphans_however_the_parent_ends(how: signal.Signals, parents: Parents):
    parent, out = parents.begin(textwrap.dedent(PARENT) % CHILD)
    with out:
        child = int(out.readline())
        assert is_alive(child)
        os.kill(parent, how)
        parents.wait()
    assert gone(child)


def test_what_is_urgent_is_asked_first():
    role = WorkerRole(("false",), 0, 1.0)
    with Pool({"compile": role}) as pool:
        for number, urgent in enumerate([False, True, False, True]):
            pool.submit("compile", {"number": number}, urgent=urgent)
        queued = pool._queues["compile"]
        assert [queued.get()[2].message["number"] for _ in range(4)] == [1, 3, 0, 2]


def test_a_role_stands_back_from_its_start():
    role = WorkerRole(("sleep", "60"), 1, 1.0, politeness=7)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with Pool({"compile": role}) as pool:
        until = time.monotonic() + 20.0
        found = own
        while found != own + 7 and time.monotonic() < until:
            time.sleep(0.01)
            found = max((os.getpriority(os.PRIO_PROCESS, pid) for pid in pool.pids()), default=own)
    assert found == own + 7
