"""The data of a report.

`Report.to_json` gives what `planner report --json` prints. Its keys are the names of the fields
below; names that end in _s are seconds, in bytes or nbytes bytes. A field is None where nothing was
recorded: a page says so, and shows no figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from ..planner.costs.least import Least
from ..planner.explanation import Denied, Explanation
from ..planner.plan import Contest


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that goes through memory between steps. writer, readers: places of the steps in the
    order of execution; result: the caller of the graph reads it too. seconds: to write it once and
    to read it once for each reader, at the device's bandwidth."""

    name: str
    type: str
    nbytes: int
    seconds: float
    writer: int
    readers: tuple[int, ...]
    result: bool


@dataclass(frozen=True, slots=True)
class ValueReport:
    """A value of the graph by the name of its node."""

    name: str
    type: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Border:
    """The reason why a step and its neighbour `other` (its place) are not one kernel. refusal: the
    rule that forbids it; else the cost model expects `together_s` of one kernel and `apart_s` of
    both. spared_s: what one kernel would save at most: what it need not read again or write, and
    a launch."""

    other: int
    through: tuple[str, ...]
    refusal: Denied | None
    together_s: float | None
    apart_s: float | None
    spared_bytes: int
    spared_s: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """One thing that runs, by its place in the order of execution: a group of the plan (its number)
    or one operation in no group, by ATen.

    name: of the operation's node; "" of a group. operations: short names. hbm_bytes: of its kernels
    by the model; of what is not generated, its inputs and outputs. reads: inputs of the graph.
    gone: values that exist in no memory, for the step keeps them to itself. search: the kernel key
    of its trials. predicted_s, measured_s: None where not known. source: lines of the user's
    code. kernels: launches."""

    place: int
    group: int | None
    node: int | None
    name: str
    operations: tuple[str, ...]
    lowering: str
    predicted_s: float | None
    measured_s: float | None
    hbm_bytes: int
    least: Least
    reads: tuple[ValueReport, ...]
    gone: tuple[ValueReport, ...]
    borders: tuple[Border, ...]
    search: str | None
    source: tuple[str, ...]
    kernels: int

    @property
    def seconds(self) -> float | None:
        """Measured, else predicted."""
        return self.predicted_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial of a group. outcome: "timed", "wrong", ...; chosen: it is what the plan runs. when:
    ISO time in UTC."""

    lowering: str
    candidate: str
    outcome: str
    reason: str
    seconds: float | None
    predicted_s: float | None
    registers: int | None
    chosen: bool
    when: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another lowering by which a group could run. measured: else the seconds are the model's."""

    candidate: str
    seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The trials of one kernel key, oldest first; of very many the newest. left_out: older ones.
    alternatives: the best of those not chosen."""

    key: str
    trials: tuple[Tried, ...]
    alternatives: tuple[Alternative, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the history: a plan that was stored under this name (its key), or a whole plan of
    this graph that was timed in a search (no key)."""

    when: str
    key: str | None
    evidence: str
    device: str
    versions: tuple[tuple[str, str], ...]
    groups: int
    predicted_s: float | None
    measured_s: float | None
    same_graph: bool


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Bytes of memory in one call of the graph by the model: each operation by itself, by the plan,
    and every input once and every result once."""

    apart_bytes: int
    plan_bytes: int
    least_bytes: int


@dataclass(frozen=True, slots=True)
class Roof:
    """The rates of a device: bytes and operations per second."""

    bandwidth: float
    arithmetic: float
    tensor: float


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One graph of a model. times: how often it runs in a call. note: where its plan comes from.
    runs_as: the baseline by which the plan runs the whole graph, None where it has groups.
    apart_s: seconds of each operation by itself, by the model; predicted_s: of all steps.
    has_store: whether the report was made with a store, which has the trials and the history."""

    name: str
    stage: str
    times: int
    plan_key: str | None
    note: str
    inputs: str
    versions: tuple[tuple[str, str], ...]
    cudagraph: bool
    runs_as: str | None
    contest: Contest | None
    baselines: tuple[tuple[str, float], ...]
    explanation: Explanation
    steps: tuple[StepReport, ...]
    stored: tuple[Stored, ...]
    least: Least
    traffic: TrafficReport
    apart_s: float
    predicted_s: float
    searches: tuple[SearchReport, ...]
    runs: tuple[HistoryEntry, ...]
    has_sources: bool
    has_store: bool


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the model. kind: "plan" is what is stored, "ours" another plan, "baseline"
    eager or torch.compile, "apart" each operation by itself, "least" what the device cannot go
    below. measured: else the seconds are the model's. share: of the seconds beside those of the
    slowest, from 0 to 1."""

    name: str
    kind: str
    seconds: float
    measured: bool
    share: float


@dataclass(frozen=True, slots=True)
class Gain:
    """All ways to run the model, the fastest first. best: the fastest baseline that was measured,
    else None; times: how many times faster the plan is, than it or, of a plan that was not
    measured, than each operation by itself; None where there is nothing to compare with. timing: of
    measured seconds, "cold" for a call by itself, "busy" for calls one after the other, whichever
    the plan gains less in; None where that is not recorded. graphs: of the model that ran in each
    call of the contest, which may be more than the report has; None without one contest of all."""

    ways: tuple[Way, ...]
    best: str | None
    times: float | None
    timing: str | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    graphs: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """made: ISO time in UTC. roof: of the device whose rates the model counts with."""

    title: str
    device: str
    made: str
    roof: Roof
    gain: Gain
    graphs: tuple[GraphReport, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        data: dict[str, Any] = _REPORT.dump_python(self, mode="json")
        return data


_REPORT: TypeAdapter[Report] = TypeAdapter(Report)
