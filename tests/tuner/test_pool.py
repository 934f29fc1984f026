"""Workers that hang, crash and will not start; none of them imports torch here."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from fusionplan.tuner.outcome import Crashed, TimedOut, TunerError
from fusionplan.tuner.pool import Pool, Role

SCRIPT = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    match request["do"]:
        case "hang": time.sleep(600)
        case "die": os._exit(7)
        case "kill": os.kill(os.getpid(), 9)
        case "speak": sys.stderr.write("ImportError: the cause\\n"); sys.stderr.flush(); os._exit(1)
        case "bug": answer = {"error": "Traceback: a bug"}
        case "leave": answer = {"outcome": "crashed", "reason": "sticky", "leaving": True}
        case _: answer = {"pid": os.getpid(), "n": request.get("n")}
    print(json.dumps({"id": request["id"], **answer}), flush=True)
    if request["do"] == "leave": sys.exit()
"""


def role(count: int = 1, limit_s: float = 5.0, script: str = SCRIPT) -> Role:
    return Role([sys.executable, "-S", "-c", script], count, limit_s)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 30.0) -> bool:
    end = time.monotonic() + within_s
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


def test_a_hang_is_killed_and_what_was_queued_behind_it_is_answered():
    with Pool({"w": role(limit_s=0.5)}) as pool:
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


def test_a_bug_in_a_worker_is_raised():
    with Pool({"w": role()}) as pool, pytest.raises(TunerError, match="a bug"):
        pool.submit("w", {"do": "bug"}).result(timeout=20)


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
from fusionplan.tuner.pool import Pool, Role, worker_command
pool = Pool({"w": Role([sys.executable, "-c", %r], 1, 60)})
future = pool.submit("w", {"do": "hang"})
while not pool.pids(): time.sleep(0.01)
time.sleep(0.5)
print(pool.pids()[0], flush=True)
time.sleep(60)
"""

# The child of a killed parent: ours, with its watch on stdin, while it is busy.
CHILD = """
import time
from fusionplan.tuner.process import Pipe, die_with_parent
die_with_parent()
pipe = Pipe()
pipe.send({"ready": True})
pipe.receive()
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_orphans_however_the_parent_ends(how: signal.Signals):
    text = textwrap.dedent(PARENT) % CHILD
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(how)
    parent.wait(timeout=60)
    parent.stdout.close()
    assert gone(child)
