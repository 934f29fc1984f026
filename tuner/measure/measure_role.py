"""The measure role: one device, the inputs and references of the group at hand, and a timer."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources, TritonError

from ...planner.errors import Refusal, line_of
from ...planner.graph import graph as graphs
from ...planner.graph.dtypes import itemsize
from ...planner.graph.graph import Graph
from ...planner.lowerings.registry import lowering_of
from ...planner.runtime.machine_code.compile import CompileFailed
from ..gate.bucket_edges import edges
from ..gate.check import check
from ..gate.partial_check import at_both_ends, fill_unwritten, shrunk
from ..gate.reference import Reference, references
from ..trial.evaluate import Outside
from ..trial.inputs import DATA_SETS, POISON, empty, make, poison, shifted, unwritten
from ..trial.outcome import (
    Candidate,
    Crashed,
    Miscompiled,
    Outcome,
    Rejected,
    TunerError,
    Wrong,
    to_json,
)
from ..trial.running import KernelRun, Loaded, load, output_types
from .lost_device import why_lost
from .timing import Timer, conditions, stopwatch_for
from .turns import current_gpu_turn

_KEPT_GROUPS = 2
_SHARE = 0.1
"""Of the device's memory, what the references of one group may take."""


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    inputs: list[torch.Tensor]
    expected: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A group with its data sets, "random" first, and outputs to write into."""

    group: Graph
    data_sets: tuple[DataSet, ...]
    outputs: list[torch.Tensor]


class Broken(Exception):
    """The device reported an error: its context cannot be trusted any more."""


class MeasureRole:
    """Answers requests of the kinds "measure", "duel", "check", "release" and "probe"."""

    def __init__(
        self, device: torch.device, timer: Timer, memory_bytes: int, seed: int = 0
    ) -> None:
        self.device, self.timer = device, timer
        self.memory_bytes, self.seed = memory_bytes, seed
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """An answer for each request, with the GPU to itself of all processes that take turns.
        Raises Broken when the process must end after it, with the answer in its arguments."""
        with current_gpu_turn():
            return self._answer(request)

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            match request["do"]:
                case "measure":
                    return to_json(self._measure(request))
                case "check":
                    return self._check_only(request)
                case "duel":
                    return self._duel(request)
                case "release":
                    self._release()
                    return {}
                case "probe":
                    return {"lost": why_lost(self.device)}
        except torch.OutOfMemoryError as error:
            self._release()
            return to_json(Rejected(f"out of device memory: {line_of(error)}", transient=True))
        except Outside as error:
            return to_json(Rejected(f"no inputs could be made up: {line_of(error)}"))
        raise TunerError(f"the measuring worker cannot do {request['do']!r}")

    def _release(self) -> None:
        """Let go of the inputs that are kept, and of the device's memory."""
        self._prepared.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def prepare(self, data: Mapping[str, Any]) -> Prepared:
        """Inputs and references of a group; those of the last few are kept."""
        group = graphs.from_json(data)
        key = graphs.key(group)
        found = self._prepared.pop(key, None)
        while len(self._prepared) >= _KEPT_GROUPS:
            self._prepared.popitem(last=False)
        if found is None:
            found = self._make(group, self.seed)
        self._prepared[key] = found
        return found

    def _make(self, group: Graph, seed: int) -> Prepared:
        outputs = [empty(kind, self.device) for kind in output_types(group)]
        data_sets: list[DataSet] = []
        for position, name in enumerate(DATA_SETS):
            if position >= 2 and not self._fits(group, position):
                break
            inputs = make(group, name, self.device, seed + position)
            data_sets.append(DataSet(name, inputs, references(group, inputs, self.device)))
        return Prepared(group, tuple(data_sets), outputs)

    def _fits(self, group: Graph, kept: int) -> bool:
        """Whether one more data set fits the share of memory: its inputs, and two of each output,
        one of them in float64."""
        inputs = sum(t.nbytes for i in group.inputs if (t := group.nodes[i].type))
        outputs = sum(math.prod(t.shape) * (8 + itemsize(t.dtype)) for t in output_types(group))
        return (kept + 1) * (inputs + outputs) <= _SHARE * self.memory_bytes

    def _measure(self, request: Mapping[str, Any]) -> Outcome:
        prepared = self.prepare(request["group"])
        candidate = Candidate.from_json(request["candidate"])
        loaded = self._load(prepared.group, candidate)
        if not isinstance(loaded, Loaded):
            return loaded
        outcome = self._checked(candidate, loaded, prepared, prepared.data_sets)
        if outcome is not None:
            return outcome
        run = loaded.bind(prepared.data_sets[0].inputs, prepared.outputs)
        with _device_errors():
            return self.timer.measure(
                run, budget_s=request["budget_s"], incumbent_s=request.get("incumbent_s")
            )

    def _duel(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Finalists, first checked on inputs they have not seen, then timed in turn. The winner is
        the first that is right in its other variants too."""
        prepared = self.prepare(request["group"])
        inputs = make(prepared.group, "random", self.device, self.seed + 1000)
        fresh = DataSet("fresh", inputs, references(prepared.group, inputs, self.device))
        answers: dict[int, Outcome] = {}
        runs: dict[str, KernelRun] = {}
        candidates = [Candidate.from_json(data) for data in request["candidates"]]
        for index, candidate in enumerate(candidates):
            loaded = self._load(prepared.group, candidate)
            if not isinstance(loaded, Loaded):
                answers[index] = loaded
                continue
            failed = self._checked(candidate, loaded, prepared, (fresh,))
            if failed is not None:
                answers[index] = failed
                continue
            runs[str(index)] = loaded.bind(prepared.data_sets[0].inputs, prepared.outputs)
        with _device_errors():
            result = self.timer.interleaved(runs, budget_s=request["budget_s"])
        answers |= {int(name): result.timing(name) for name in runs}
        best = None
        while result.laps and best is None:
            best = result.best()
            reason = self._otherwise(candidates[int(best)], prepared, fresh)
            if reason is not None:
                answers[int(best)] = reason
                rest = {name: laps for name, laps in result.laps.items() if name != best}
                result, best = replace(result, laps=rest), None
        return {
            "outcomes": [to_json(answers[i]) for i in range(len(answers))],
            "best": None if best is None else int(best),
            "conditions": conditions(self.device.index or 0) if self._is_cuda else {},
        }

    def _check_only(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """In the interpreter, where a large group is checked in part (see `partial`)."""
        group = graphs.from_json(request["group"])
        candidate = Candidate.from_json(request["candidate"])
        small, said = shrunk(group)
        if small is None:
            return {"checked": said}
        prepared = self.prepare(graphs.to_json(small))
        loaded = self._load(small, candidate)
        if not isinstance(loaded, Loaded):
            return to_json(loaded)
        if loaded.kernels is not None:
            loaded, programs = at_both_ends(loaded.kernels, self.device)
            said = ", ".join(filter(None, [said, programs]))
        failed = self._checked(candidate, loaded, prepared, prepared.data_sets)
        names = ", ".join(d.name for d in prepared.data_sets)
        return to_json(failed) if failed else {"checked": f"{said or 'all of it'} on {names} data"}

    @property
    def _is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def _load(self, group: Graph, candidate: Candidate) -> Loaded | Miscompiled | Rejected:
        try:
            with _device_errors():
                loaded = load(group, candidate, self.device)
        except CompileFailed as error:
            return Miscompiled(line_of(error), error.transient)
        except OutOfResources as error:
            return Miscompiled(line_of(error))
        return Rejected(str(loaded)) if isinstance(loaded, Refusal) else loaded

    def _otherwise(
        self, candidate: Candidate, prepared: Prepared, fresh: DataSet
    ) -> Wrong | Miscompiled | Rejected | None:
        """What is wrong with a generated kernel where it runs otherwise than it was timed: with
        buffers at odd addresses, and at the edges of its bucket of sizes."""
        if candidate.config is None:
            return None
        loaded = self._load(prepared.group, candidate)
        if not isinstance(loaded, Loaded):
            return loaded
        odd = DataSet("unaligned", [shifted(x) for x in fresh.inputs], fresh.expected)
        places = replace(prepared, outputs=[shifted(x) for x in prepared.outputs])
        found: Wrong | Miscompiled | Rejected | None = None
        try:
            found = self._checked(candidate, loaded, places, (odd,))
        except CompileFailed as error:
            return Miscompiled(f"for buffers at odd addresses: {line_of(error)}")
        for name, group in edges(prepared.group).items():
            if found is not None or not self._fits(group, 1):
                break
            found = self._at_edge(candidate, name, group)
        return found

    def _at_edge(
        self, candidate: Candidate, name: str, group: Graph
    ) -> Wrong | Miscompiled | Rejected | None:
        loaded = self._load(group, candidate)
        if not isinstance(loaded, Loaded):
            return loaded
        inputs = make(group, "random", self.device, self.seed + 2000)
        known = DataSet(f"random ({name})", inputs, references(group, inputs, self.device))
        outputs = [empty(kind, self.device) for kind in output_types(group)]
        return self._checked(candidate, loaded, Prepared(group, (), outputs), (known,))

    def _checked(
        self,
        candidate: Candidate,
        loaded: Loaded,
        prepared: Prepared,
        data_sets: Sequence[DataSet],
    ) -> Wrong | None:
        if lowering_of(candidate).one_by_one:
            return None  # the yardstick itself
        for data in data_sets:
            with _device_errors():
                run = loaded.bind(data.inputs, prepared.outputs)
            actual = self._ran(run, prepared, POISON)
            if loaded.partial:
                eager = [one.eager for one in data.expected]
                if fill_unwritten(actual, eager) == 0:
                    return Wrong(f"nothing was written on {data.name} inputs")
            else:
                left = unwritten(actual, partial(self._ran, run, prepared))
                if left is not None:
                    return Wrong(f"{left} on {data.name} inputs")
            reason = check(data.expected, actual, data.name)
            if reason is not None:
                return Wrong(reason)
        return None

    def _ran(self, run: KernelRun, prepared: Prepared, byte: int) -> Sequence[torch.Tensor]:
        """The outputs of a run, written over memory that holds the byte everywhere."""
        for tensor in prepared.outputs:
            poison(tensor, byte)
        with _device_errors():
            actual = run()
            if self._is_cuda:
                torch.cuda.synchronize(self.device)
        return actual


class _device_errors:
    """Turns an error of the device, or of Triton at the launch, into Broken."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        ours = isinstance(error, (torch.OutOfMemoryError, OutOfResources))
        if isinstance(error, (RuntimeError, TritonError)) and not ours:
            raise Broken(to_json(Crashed(line_of(error)))) from error


def open_bench(device: str, *, seed: int, least: int) -> MeasureRole:
    """The bench on a device by name, with that device's own clock."""
    found = torch.device(device)
    if found.type != "cuda":
        timer = Timer(stopwatch_for(found), least=least, most=least, overhead_s=0.0)
        return MeasureRole(found, timer, 8 * 2**30, seed)
    found = torch.device("cuda", found.index or 0)
    torch.cuda.set_device(found)
    properties = torch.cuda.get_device_properties(found)
    timer = Timer(stopwatch_for(found, getattr(properties, "L2_cache_size", 0)))
    return MeasureRole(found, timer, properties.total_memory, seed)
