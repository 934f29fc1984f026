"""Workers forked from one server: they start, end and die as those that are started anew."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fusionplan.tuner.trial.outcome import Crashed, TimedOut
from fusionplan.tuner.workers import forks as forks_module
from fusionplan.tuner.workers.forks import Forks, WorkerProgram, forking
from fusionplan.tuner.workers.pool import Pool, WorkerRole
from process_ends import gone, is_alive

pytestmark = pytest.mark.process

WORKER = """
import os, sys, time
from fusionplan.tuner.workers.pipes import Pipe

pid = os.getpid()

def main(arguments):
    from fusionplan.tuner.workers.worker import serve
    return serve(lambda: (handle, ()))

def handle(request):
    match request["do"]:
        case "hang": time.sleep(600)
        case "die": os._exit(7)
        case "kill": os.kill(os.getpid(), 9)
        case "say": sys.stderr.write("ImportError: the cause\\n"); sys.stderr.flush(); os._exit(1)
        case "exit": raise SystemExit(3)
        case "print": print("a library says hello", flush=True)
    return {
        "pid": os.getpid(), "parent": os.getppid(), "imported": pid, "group": os.getpgrp(),
        "session": os.getsid(0), "nice": os.nice(0), "argv": sys.argv, "n": request.get("n"),
        "environment": {n: os.environ.get(n) for n in ("OWN", "GONE", "TORCH_WARM_POOL")},
    }
"""


ENV = {"OWN": "set", "GONE": None, "TRITON_INTERPRET": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("forks")
    (made / "forked_worker.py").write_text(WORKER)
    thread = "threading.Thread(target=time.sleep, args=(60,), daemon=True)"
    (made / "threaded.py").write_text(f"import threading, time\n{thread}.start()\n")
    (made / "ends.py").write_text("import sys\nsys.exit(2)\n")
    (made / "slow.py").write_text("import time\ntime.sleep(120)\n")
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([before, str(made)]))
        yield made


@pytest.fixture(scope="module")
def forks(folder: Path) -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


def program(*imports: str) -> WorkerProgram:
    return WorkerProgram("forked_worker", ["one", "two"], ("forked_worker", *imports), politeness=2)


def role(forks: Forks, folder: Path, limit_s: float = 5.0, count: int = 1) -> WorkerRole:
    return WorkerRole(["false"], count, limit_s, ENV, 2, forking(forks, program()))


def test_each_is_a_process_of_its_own(forks: Forks, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GONE", "1")
    with Pool({"w": role(forks, folder, count=2)}) as pool:
        found = pool.submit("w", {"do": "print", "n": 4}).result(timeout=60)
        name = Path(f"/proc/{found['pid']}/comm").read_text().strip()
        until = time.monotonic() + 20.0
        while len(pids := pool.pids()) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert len({*pids, os.getpid(), found["parent"]}) == 4
    assert found["pid"] in pids
    assert found["pid"] == found["group"] == found["session"]
    assert found["imported"] == found["parent"]  # once, by the server
    assert found["argv"] == ["forked_worker", "one", "two"]
    assert found["environment"] == {"OWN": "set", "GONE": None, "TORCH_WARM_POOL": None}
    assert found["n"] == 4
    assert found["nice"] == os.nice(0) + 2
    assert name == "forked_worker o"
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(
    "what, said",
    [
        ("die", "exit status 7"),
        ("exit", "exit status 3"),
        ("kill", "SIGKILL"),
        ("say", "ImportError: the cause"),
    ],
)
def test_a_crash_costs_one_request(forks: Forks, folder: Path, what: str, said: str):
    with Pool({"w": role(forks, folder)}) as pool:
        futures = [pool.submit("w", {"do": d, "n": i}) for i, d in enumerate([what, "", ""])]
        answers = [f.result(timeout=20) for f in futures]
    assert isinstance(answers[0], Crashed)
    assert said in answers[0].reason
    assert [a["n"] for a in answers[1:]] == [1, 2]


def test_a_hang_is_killed(forks: Forks, folder: Path):
    with Pool({"w": role(forks, folder, limit_s=1.0)}) as pool:
        first = pool.submit("w", {"do": ""}).result(timeout=20)
        assert isinstance(pool.submit("w", {"do": "hang"}).result(timeout=20), TimedOut)
        assert gone(first["pid"])
        second = pool.submit("w", {"do": ""}).result(timeout=20)
        os.kill(second["pid"], signal.SIGKILL)  # between two requests
        assert gone(second["pid"])
        assert pool.submit("w", {"do": "", "n": 1}).result(timeout=20)["n"] == 1


SCRIPT = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "spawned": True}), flush=True)
"""


def spawned_without(
    forks: Forks | None, program: WorkerProgram, interpret: str | None = None
) -> bool:
    """Whether a role with this server starts its process by its command."""
    command = [sys.executable, "-S", "-c", SCRIPT]
    env = {**ENV, "TRITON_INTERPRET": interpret}
    with Pool({"w": WorkerRole(command, 1, 20.0, env, fork=forking(forks, program))}) as pool:
        return pool.submit("w", {"do": ""}).result(timeout=20).get("spawned", False)


def test_what_cannot_be_forked_is_started_anew(
    forks: Forks, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    assert spawned_without(None, program())
    assert spawned_without(forks, program(), "1")
    assert not spawned_without(forks, program("ends", "nowhere"))
    with monkeypatch.context() as patch:
        patch.setattr(forks_module, "WAITS_S", 0.0)
        patch.setattr(forks_module, "LOOK_S", 0.0)
        os.kill(forks._server.pid, signal.SIGSTOP)
        try:
            assert spawned_without(forks, program())  # nor is a server waited for that hangs
        finally:
            os.kill(forks._server.pid, signal.SIGCONT)
    other = Forks()
    try:
        # A process with threads cannot be forked, whoever has started them.
        assert spawned_without(other, program("threaded"))
        os.kill(other._server.pid, signal.SIGKILL)
        other._reader.join(20.0)
        assert spawned_without(other, program())
    finally:
        other.close()
        other.close()
    assert spawned_without(other, program())


def test_workers_end_with_their_server(folder: Path):
    other = Forks()
    with Pool({"w": role(other, folder)}) as pool:
        running = pool.submit("w", {"do": ""}).result(timeout=20)["pid"]
        waiting = pool.submit("w", {"do": "hang"})
        other.close()
        assert gone(running)
        assert isinstance(waiting.result(timeout=20), Crashed)


def test_nobody_waits_for_imports_that_are_not_wanted_any_more(folder: Path):
    """As when capturing fails at once."""
    other, began = Forks(), time.monotonic()
    slow = WorkerRole(["false"], 3, 5.0, ENV, fork=forking(other, program("slow")))
    Pool({"w": slow}).close()
    other.close()
    assert time.monotonic() - began < 60.0


PARENT = """
import os, time
os.environ.pop("TRITON_INTERPRET", None)
from fusionplan.tuner.workers.forks import Forks, WorkerProgram, forking
from fusionplan.tuner.workers.pool import Pool, WorkerRole
forks = Forks()
program = WorkerProgram("forked_worker", [], ["forked_worker"])
pool = Pool({"w": WorkerRole(["false"], 1, 60, fork=forking(forks, program))})
print(forks._server.pid, pool.submit("w", {"do": ""}).result(60)["pid"], flush=True)
pool.submit("w", {"do": "hang"})
time.sleep(60)
"""


def test_no_orphans_of_a_parent_that_is_killed(folder: Path):
    text = textwrap.dedent(PARENT)
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(each) for each in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    parent.kill()
    parent.wait(timeout=60)
    parent.stdout.close()
    assert all(map(gone, pids))


def test_from_a_thread(folder: Path):
    found: list[dict] = []

    def run() -> None:
        other = Forks()
        with Pool({"w": role(other, folder)}) as pool:
            found.append(pool.submit("w", {"do": "", "n": 1}).result(timeout=20))
        other.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60.0)
    assert [each["n"] for each in found] == [1]


def test_a_server_pays_for_many(monkeypatch: pytest.MonkeyPatch):
    made = SimpleNamespace()
    monkeypatch.setattr(forks_module, "Forks", lambda: made)
    assert Forks.opened(forks_module.LEAST_PROCESSES - 1) is None
    assert Forks.opened(forks_module.LEAST_PROCESSES) is made

    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(forks_module, "Forks", refuse)
    assert Forks.opened(100) is None
