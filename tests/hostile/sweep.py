"""`scripts/hostile`: runs hostile cases by our kernels and reports what is wrong.

Exit code 0: no case failed but those known to, and every family ran by kernels of ours; 1: another
failure; 2: usage.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hostile.cases import Case
from hostile.judge import judge
from hostile.known import KNOWN
from hostile.scenarios import Scenario
from hostile.table import CASES

LEAST = 0.5
"""Of the cases of a family that have to run by kernels of ours, the part that did at least."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """wrong: what is wrong, "" if nothing is."""

    family: str
    name: str
    kernels: int
    seconds: float
    wrong: str


def verdict(name: str, device: str) -> Verdict:
    torch.set_num_threads(1)
    case, start, kernels, wrong = CASES[name], time.perf_counter(), 0, ""
    try:
        kernels = case.run(device) if isinstance(case, Scenario) else judge(case, device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the case's failure
        lines = str(error).strip().splitlines() or ["no message"]
        cause = 2 if lines[0].endswith(":") else 1  # Dynamo names the back end first
        wrong = f"{type(error).__name__}: {' '.join(lines[:cause])}"[:400]
    return Verdict(case.family, name, kernels, time.perf_counter() - start, wrong)


def chosen(
    number: int | None, seed: int, device: str, only: str = "", without: Collection[str] = ()
) -> list[Case | Scenario]:
    """A sample with as large a part of each family, three at least, the same for the same seed."""
    texts = only.split(",")
    fit = (c for c in CASES.values() if any(text in str(c) for text in texts))
    fit = (c for c in fit if str(c) not in without)
    given = [c for c in fit if not (c.cuda if device == "cpu" else c.cpu)]
    if number is None or number >= len(given):
        return given
    random.Random(seed).shuffle(given)
    share: Counter[str] = Counter()
    size = Counter(c.family for c in given)

    def place(case: Case | Scenario) -> float:
        share.update([case.family])
        own = share[case.family]
        return own / size[case.family] if own > 3 else 0.0

    given.sort(key=place)
    return given[:number]


def verdicts(
    cases: Sequence[Case | Scenario], device: str, jobs: int, seconds: float = math.inf
) -> Iterator[Verdict]:
    """In the order in which they are done; after so many seconds no more. A case that ends its
    process fails alone."""
    names, end = [str(c) for c in cases], time.monotonic() + seconds
    if jobs <= 1:
        for name in names:
            if time.monotonic() > end:
                return
            yield verdict(name, device)
        return
    context = multiprocessing.get_context("spawn")
    while names:
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            waiting = {pool.submit(verdict, name, device): name for name in names}
            names = []
            for done in as_completed(waiting):
                try:
                    yield done.result()
                except BrokenProcessPool:
                    names.append(waiting[done])
                if time.monotonic() > end:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return
        if len(names) == len(waiting):
            yield Verdict("", names.pop(), 0, 0.0, "its process ended")


def report(found: Sequence[Verdict]) -> str:
    """One line a family, then the failures."""
    lines = [f"{'family':<12} {'cases':>6} {'ours':>6} {'kernels':>8} {'failed':>7} {'seconds':>8}"]
    for family in [*dict.fromkeys(v.family for v in found), ""]:
        some = [v for v in found if family in ("", v.family)]
        numbers = sum(v.kernels > 0 for v in some), sum(v.kernels for v in some)
        failed, seconds = sum(bool(v.wrong) for v in some), sum(v.seconds for v in some)
        told = (f"{family or 'all':<12} {len(some):>6} {numbers[0]:>6} {numbers[1]:>8}",)
        lines.append(f"{told[0]} {failed:>7} {seconds:>8.1f}")
    lines += [f"{v.name}: {v.wrong}" for v in found if v.wrong and v.name not in KNOWN]
    lines += [f"{v.name}: {v.wrong} (known)" for v in found if v.wrong and v.name in KNOWN]
    lines += [f"{v.name}: passes again" for v in found if not v.wrong and v.name in KNOWN]
    return "\n".join(lines)


def fell_back(found: Sequence[Verdict]) -> list[str]:
    """Families of which too few cases ran by kernels of ours."""
    wanted = [v for v in found if CASES[v.name].ours and not CASES[v.name].fails]
    families = Counter(v.family for v in wanted)
    ours = Counter(v.family for v in wanted if v.kernels)
    return [name for name, count in families.items() if ours[name] < LEAST * count]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/hostile", description=__doc__)
    parser.add_argument("--sample", type=int, help="so many cases of all (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: interpreter")
    parser.add_argument(
        "--only", default="", help="texts, with commas: cases with one in family/name"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no case after so many"
    )
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    given = parser.parse_args(arguments)
    cases = chosen(given.sample, given.seed, given.device, given.only)
    if not cases:
        print(f"scripts/hostile: no case has {given.only!r} in its name", file=sys.stderr)
        return 2
    found = []
    for one in verdicts(cases, given.device, given.jobs, given.seconds):
        found.append(one)
        if one.wrong:
            print(f"{one.name}: {one.wrong}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(v) for v in found], indent=1))
    print(report(found))
    if len(found) < len(cases):
        print(f"{len(cases) - len(found)} of {len(cases)} cases did not run, for want of time")
    fallen = fell_back(found)
    if fallen:
        print(f"too few cases by kernels of ours: {', '.join(fallen)}")
    return 1 if fallen or any(v.wrong and v.name not in KNOWN for v in found) else 0
