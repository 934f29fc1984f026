"""`scripts/mutate`: breaks important lines one at a time, in a copy of the tree, and says which the
named tests notice.

Exit code 0: all were caught; 1: one was not, or its tests fail as they are; 2: usage, or a table
that no longer fits the source.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "docs", "*.egg-info", "shared")

Tests = tuple[str, ...]
Run = Callable[[Path, Tests], bool]
"""Whether the tests pass in a tree."""


def misfits(mutations: Sequence[Mutation], root: Path = ROOT) -> list[str]:
    """What of the table does not fit the source: a text that is not there exactly once, or tests
    that are no file."""
    found = []
    for each in mutations:
        file = root / each.file
        count = file.read_text().count(each.old) if file.is_file() else 0
        if count != 1:
            found.append(f"{each.name}: its text is {count} times in {each.file}, not once")
        if each.old == each.new:
            found.append(f"{each.name}: nothing is changed")
        for test in each.tests:
            if not (root / test.split("::")[0]).is_file():
                found.append(f"{each.name}: there is no {test}")
    return found


@contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the tree whose package is importable as fusionplan."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder) / "fusionplan"
        shutil.copytree(root, tree, ignore=_LEFT_OUT)
        yield tree


@contextmanager
def broken(tree: Path, mutation: Mutation) -> Iterator[None]:
    """The tree with one text changed."""
    file = tree / mutation.file
    text = file.read_text()
    file.write_text(text.replace(mutation.old, mutation.new, 1))
    try:
        yield
    finally:
        file.write_text(text)


def passes(tree: Path, tests: Tests) -> bool:
    """Runs pytest in a process of its own; what takes too long does not pass."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(tree.parent), str(tree / "tests"), *_metadata(), *filter(None, given)]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    # Python tells changed source by its time in seconds, which two changes may share.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    # 2: an error of import is noticed too; below 0: a signal ended it.
    if done.returncode not in (0, 1, 2) and done.returncode >= 0:
        raise RuntimeError(f"pytest {' '.join(tests)}: {done.stdout.decode()[-2000:]}")
    return done.returncode == 0


def _metadata() -> list[str]:
    """Where the project's entry points are written down, if not in an environment."""
    folder = ROOT / ".build" / "import"
    return [str(folder)] if folder.is_dir() else []


@dataclass(frozen=True, slots=True)
class Verdict:
    """caught: "caught", "not caught", or "fails unbroken" (its tests do, with nothing changed)."""

    mutation: Mutation
    caught: str
    seconds: float


def verdicts(
    mutations: Sequence[Mutation], jobs: int = 1, run: Run = passes, root: Path = ROOT
) -> Iterator[Verdict]:
    """In the order in which they are done."""
    sound: dict[Tests, bool] = {}

    def judge(mutation: Mutation) -> Verdict:
        start = time.monotonic()
        with copied(root) as tree:
            if mutation.tests not in sound:
                sound[mutation.tests] = run(tree, mutation.tests)
            if not sound[mutation.tests]:
                return Verdict(mutation, "fails unbroken", time.monotonic() - start)
            with broken(tree, mutation):
                unseen = run(tree, mutation.tests)
        return Verdict(mutation, "not caught" if unseen else "caught", time.monotonic() - start)

    with ThreadPoolExecutor(jobs) as threads:
        for done in as_completed([threads.submit(judge, each) for each in mutations]):
            yield done.result()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("--only", default="", help="texts, with commas: mutations with one in name")
    parser.add_argument("--jobs", type=int, default=1, help="at a time, each in a process")
    parser.add_argument("--check", action="store_true", help="only whether the table fits")
    given = parser.parse_args(arguments)
    wrong = misfits(MUTATIONS)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    chosen = [m for m in MUTATIONS if any(text in m.name for text in given.only.split(","))]
    if not chosen:
        print(f"scripts/mutate: no mutation has {given.only!r} in its name", file=sys.stderr)
        return 2
    if given.check:
        print(f"{len(chosen)} mutations fit the source")
        return 0
    found = []
    for verdict in verdicts(chosen, given.jobs):
        found.append(verdict)
        place = f"{verdict.mutation.file}: {verdict.mutation.name}"
        print(f"{verdict.caught:<14} {verdict.seconds:6.0f} s  {place}", flush=True)
    count = sum(v.caught == "caught" for v in found)
    print(f"{count} of {len(found)} caught")
    return 0 if count == len(found) else 1
