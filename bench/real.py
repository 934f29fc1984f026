"""`python -m fusionplan.bench.real`: models and functions that fill a GPU, as their users run them.

Each is tuned by `fusionplan.tune` in one process and measured in another, which only loads the
stored plan: the model itself, every mode of torch.compile and `fusionplan.load`, in turn, with
inputs that are other tensors in every call, by the rule of `tuner.contest`. One process at a time
for each GPU; with --at-once several are tuned side by side (see `at_once`). A mode that breaks the
device ends the process that measures; the case is measured again in a new one, without that mode.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..api import executors, load, plans
from ..planner.lowerings.inductor import MODES
from ..planner.lowerings.registry import WHOLE, lowering_of
from ..tuner.capture.capture_model import CallArguments
from ..tuner.capture.rotating_inputs import RotatingInputs
from ..tuner.decision.baselines import EAGER, Baselines, model_baselines, through
from ..tuner.measure.contest import Ring, Rules, TurnCall
from ..tuner.measure.host_caches import cooler
from ..tuner.measure.lost_device import why_lost
from ..tuner.measure.timing import stopwatch_for
from .at_once import READY, THREADS, AtOnce, visible_gpus, wait_for_the_others
from .measure import Notes, machine
from .odd_rows import ODD_ROWS
from .real_models import FUNCTIONS, REAL, RealCase
from .result import OURS
from .run import commit
from .surviving import begin_again
from .unseen_models import UNSEEN

CASES = {**REAL, **UNSEEN, **FUNCTIONS, **ODD_ROWS}
KINDS: dict[str, Collection[str]] = {
    "models": REAL,
    "unseen": UNSEEN,
    "functions": FUNCTIONS,
    "odd-rows": ODD_ROWS,
}

BROKEN = 70
"""The exit code of a process for which a mode has broken the device."""

CONTEST = "the contest"

FIRST = Rules(least=3, budget_s=0.2)
"""For the times of a way by itself, which stand if the process is ended before the contest."""


@dataclass(slots=True)
class Real:
    """One case. seconds: cold and busy, by way. errors: of each way from eager, relative root mean
    square. phases: of the tune, in seconds. left_out: why a mode is not measured, where it broke
    the device. under_way: the way that was compiled when this was written, or the contest; the
    seconds are then of ways timed by themselves."""

    name: str
    tune_s: float = 0.0
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    kept: str = ""
    kernels: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    under_way: str = ""

    @property
    def ratios(self) -> tuple[float, float]:
        """Best baseline's time over ours, cold and busy; NaN where one is missing."""
        others = [s for way, s in self.seconds.items() if way != OURS]
        if OURS not in self.seconds or not others:
            return math.nan, math.nan
        ours = self.seconds[OURS]
        return min(o[0] for o in others) / ours[0], min(o[1] for o in others) / ours[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done; 1: a case failed; 2: usage."""
    options = _parser().parse_args(arguments)
    if options.tune:
        _tune(options)
        return 0
    if options.measure:
        return _survive(options)
    names = [name for name in CASES if _is_asked(name, options)]
    names.sort(key=_compiles_quickly)
    until = time.monotonic() + options.limit
    options.store = Path(options.store or tempfile.mkdtemp())
    options.store.mkdir(parents=True, exist_ok=True)
    found: dict[str, Real] = {}

    def told(step: str, name: str, wrong: str) -> bool:
        found[name] = _read(name, options.store)
        found[name].problem = f"{step[2:]}: {wrong}" if wrong else ""
        if wrong or step == "--measure":
            print(row(found[name]), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(document(list(found.values())), indent=1))
        return not wrong

    def command(step: str, name: str) -> list[str]:
        return _command(step, name, options)

    def errors_of(step: str, name: str) -> Path:
        return _into(options.store, name).with_suffix(f".{step[2:]}.txt")

    gpus = visible_gpus(options.gpus)
    work = AtOnce(gpus, options.at_once, until, command, told, errors_of, _threads)
    if options.by_model:
        work.measured(names)
    elif options.at_once > 1:
        work.together(names)
    else:
        work.one_by_one(names)
    results = [found[name] for name in names if name in found]
    print(markdown(results))
    return int(any(each.problem for each in results))


def _command(step: str, name: str, options: argparse.Namespace) -> list[str]:
    into = _into(options.store, name)
    made = [sys.executable, "-m", "fusionplan.bench.real", step, name, "--into", str(into)]
    made += ["--store", str(into.with_suffix(".db")), "--effort", options.effort]
    made += ["--budget", str(options.budget), *["--by-model"] * options.by_model]
    for option in ("seconds", "trials", "jobs"):
        value = getattr(options, option)
        made += [f"--{option}", str(value)] if value else []
    return made


def _read(name: str, folder: Path) -> Real:
    """What its processes have noted so far."""
    return _noted(name, _into(folder, name))


def _into(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '_').replace(',', '')}.json"


def _is_asked(name: str, options: argparse.Namespace) -> bool:
    """Of all kinds where none is given with names."""
    kind = KINDS[options.kind] if options.kind else CASES if options.names else REAL
    return name in kind and (not options.names or any(part in name for part in options.names))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="*", help="parts of names; all of a kind where none is given")
    add("--kind", choices=KINDS, help="which cases (default: models; with names, all kinds)")
    add("--by-model", action="store_true", help="the cost model's plans: no tune")
    add("--effort", default="default")
    add("--seconds", type=float, default=None, help="of each tune, in place of the effort's")
    add("--trials", type=int, default=None, help="of each tune, in place of the effort's")
    add("--jobs", type=int, default=None, help="processes that compile for a tune")
    add("--at-once", type=int, default=1, help="tunes that share a GPU; they take turns to time")
    add("--budget", type=float, default=4.0, help="seconds of each measurement")
    add("--gpus", type=int, default=max(1, torch.cuda.device_count()))
    add("--limit", type=float, default=math.inf, help="seconds after which nothing is begun")
    add("--store", default=None, help="folder of the stores, one a case; else a temporary one")
    add("--json", type=Path, default=None, help="write the figures there")
    add("--tune", metavar="NAME", help=argparse.SUPPRESS)
    add("--measure", metavar="NAME", help=argparse.SUPPRESS)
    add("--into", type=Path, help=argparse.SUPPRESS)
    return parser


_COMPILED_LONG = ("product", "convolution")


def _compiles_quickly(name: str) -> bool:
    """Whether max-autotune has few kernels to choose from."""
    return not any(text in name for text in _COMPILED_LONG)


def _threads(name: str) -> int:
    return 1 if _compiles_quickly(name) else THREADS


def _tune(options: argparse.Namespace) -> None:
    real = _noted(options.tune, options.into)
    tuned(real, *made(CASES[real.name]()), options)
    _write(real, options.into)


def _survive(options: argparse.Namespace) -> int:
    """Measures in a child process, and in another one without the mode that has ended the first."""
    name, into = options.measure, options.into
    real = _noted(name, into)
    real.left_out, real.under_way = {}, ""
    _write(real, into)

    def is_left_out(code: int) -> bool:
        real = _noted(name, into)
        way = real.under_way
        why = real.left_out.get(way, f"its process ended with {code}")
        print(f"{name}: {way or 'nothing'} is not measured: {why}", file=sys.stderr)
        if way not in MODES:
            return False
        real.left_out[way] = why
        _write(real, into)
        return True

    code = begin_again(is_left_out)
    if code is None:
        _measure(options)
    return code or 0


def _measure(options: argparse.Namespace) -> None:
    real = _noted(options.measure, options.into)
    case = prepared(real, *made(CASES[real.name]()), options)
    with wait_for_the_others():
        compared(case, options.budget)
    _write(real, options.into)


def _noted(name: str, into: Path) -> Real:
    return Real(**json.loads(into.read_text())) if into.exists() else Real(name)


def _write(real: Real, into: Path) -> None:
    """Whole, or not at all: the process may be killed meanwhile."""
    new = into.with_suffix(".new")
    new.write_text(json.dumps(asdict(real)))
    new.replace(into)


def made(case: RealCase) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved = {
        name: x.to(device, case.dtype if x.is_floating_point() else x.dtype)
        for name, x in case.inputs.items()
    }
    return case.model.eval().to(device, case.dtype), moved


class _Phases(Notes):
    """Notes, and how long each phase took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._last, self._since = "", time.monotonic()

    def phase(self, name: str, text: str) -> None:
        now = time.monotonic()
        if self._last:
            self.seconds[self._last] = self.seconds.get(self._last, 0.0) + now - self._since
        self._last, self._since = f"{name} {text}".strip(), now


def tuned(
    real: Real, model: torch.nn.Module, inputs: dict[str, Any], options: argparse.Namespace
) -> None:
    from ..tuning import tune

    notes = _Phases()
    start = time.monotonic()
    found = tune(
        *(model, inputs),
        effort=options.effort,
        seconds=options.seconds,
        trials=options.trials,
        jobs=options.jobs,
        store=options.store,
        progress=notes,
        name=real.name,
    )
    real.tune_s = time.monotonic() - start
    notes.phase("end", "")
    real.notes = notes.kept
    real.phases = notes.seconds
    for plan in found.plans[:1]:
        if plan.contest is not None:
            real.notes.append(json.dumps(asdict(plan.contest)))


@dataclass(slots=True)
class PreparedCase:
    """A case with all its ways compiled. fast: the model by its stored plans."""

    real: Real
    fast: Any
    turns: RotatingInputs
    calls: dict[str, Any]
    notes: list[str]
    device: torch.device


def prepared(
    real: Real, model: torch.nn.Module, inputs: dict[str, Any], options: argparse.Namespace
) -> PreparedCase:
    static = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    turns = RotatingInputs.of(CallArguments((), inputs), static)
    device = next(iter(inputs.values())).device
    fast = load(model, store=options.store, on_miss="model" if options.by_model else None)
    given = {OURS: through(fast, turns), **model_baselines(model, turns, MODES)}
    notes = Notes()
    notes.kept += [f"{mode} is not compared: {why}" for mode, why in real.left_out.items()]
    real.seconds = {}
    calls: dict[str, TurnCall] = {}
    for name, call in given.items():
        if name in real.left_out:
            continue
        real.under_way = name
        _write(real, options.into)
        way = Baselines({name: _Guarded(name, call, real, options.into, device)}, notes)
        way.warm()
        if name in way.ready:
            calls[name] = call
            _time_alone(real, name, call, Ring(stopwatch_for(device), turns, FIRST, cooler(device)))
    real.under_way = CONTEST
    _write(real, options.into)
    real.errors = _errors(calls)
    return PreparedCase(real, fast, turns, calls, notes.kept, device)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """First calls of a way: where one breaks the device, the process ends, and says why."""

    name: str
    call: TurnCall
    real: Real
    into: Path
    device: torch.device

    def __call__(self, turn: int) -> object:
        try:
            result = self.call(turn)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        except Exception:
            if (why := why_lost(self.device)) is None:
                raise
            self.real.left_out[self.name] = f"it breaks the device: {why}"
            _write(self.real, self.into)
            os._exit(BROKEN)  # Nothing that still waits for the device can be ended in order.
        return result


def _time_alone(real: Real, name: str, call: TurnCall, ring: Ring) -> None:
    if READY in os.environ:
        return  # Others compile and time on the same GPU.
    (found,) = ring.contest({name: call}).contestants
    real.seconds[name] = found.cold_s, found.busy_s


def compared(case: PreparedCase, budget_s: float) -> None:
    """The times of all ways, and what the plan is, noted in `case.real`."""
    real, device = case.real, case.device
    ring = Ring(stopwatch_for(device), case.turns, Rules(budget_s=budget_s), cooler(device))
    told = ring.contest(case.calls)
    real.seconds = {c.name: (c.cold_s, c.busy_s) for c in told.contestants}
    running = plans(case.fast)
    kinds = {g.lowering for plan in running for g in plan.groups}
    modes = {g.options for plan in running for g in plan.groups if lowering_of(g) in WHOLE}
    real.kept = ", ".join(sorted(kinds | modes - {""})) or EAGER
    real.kept += ", CUDA graph" * any(plan.cudagraph for plan in running)
    real.kernels = sum(runner.kernels_per_call for runner in executors(case.fast))
    real.notes += [*case.notes, str(machine(device))]
    real.under_way = ""


def _errors(calls: dict[str, Any]) -> dict[str, float]:
    """Of each way's results from eager's, relative root mean square; the largest of all outputs."""
    from torch.utils._pytree import tree_leaves

    def results(way: str) -> list[torch.Tensor]:
        leaves = tree_leaves(calls[way](0))
        return [t.detach().double().clone() for t in leaves if isinstance(t, torch.Tensor)]

    wanted = results(EAGER)
    found = {}
    for way in calls:
        pairs = zip(results(way), wanted, strict=True)
        errors = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs]
        found[way] = max(errors, default=0.0)
    return found


def document(found: Sequence[Real]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cases": [asdict(real) for real in found],
    }


WAYS = (EAGER, *MODES, OURS)


def row(real: Real) -> str:
    """Microseconds of a call by each way, cold / busy; the ratios; what is kept."""
    times = []
    for way in WAYS:
        cold, busy = real.seconds.get(way, (math.nan, math.nan))
        times.append(f"{cold * 1e6:.1f} / {busy * 1e6:.1f}" if cold == cold else "-")
    cold, busy = real.ratios
    error = f"{real.errors.get(OURS, math.nan):.1e}"
    cells = [real.name, *times, f"{cold:.3f} / {busy:.3f}", f"{real.tune_s:.0f}", real.kept]
    ended = f"ended in {real.under_way}; each way by itself" if real.under_way else ""
    problem = "; ".join(filter(None, (real.problem, ended)))
    return f"| {' | '.join([*cells, str(real.kernels), error, problem])} |"


def markdown(found: Sequence[Real]) -> str:
    """The table, and the geometric means of the ratios."""
    head = ["case", *WAYS, "best / ours", "tune s", "kept", "kernels", "error", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *map(row, found)]
    ratios = [r for real in found if not math.isnan((r := real.ratios)[0])]
    for name, which in (("cold", 0), ("busy", 1)):
        if ratios:
            mean = math.exp(sum(math.log(r[which]) for r in ratios) / len(ratios))
            least = min(r[which] for r in ratios)
            lines.append(f"{name}: geometric mean {mean:.3f}, least {least:.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
