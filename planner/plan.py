"""A plan: which groups, how each runs, with which numbers, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ..markup.panel import MOST_GROUPS, GroupRow, Panel, bars, panels_html
from ..terminal import duration
from .config import Config

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Lowering = Literal["triton", "aten", "inductor", "vendor", "recomputed", "chunked"]
Evidence = Literal["measured", "searched", "modelled"]
"""measured: the plan was compared with eager and torch.compile. searched: its kernels were
measured, the plan was not compared. modelled: all figures are the cost model's."""

RANK: Mapping[Evidence, int] = {"modelled": 0, "searched": 1, "measured": 2}
"""Better evidence has the higher number, and is never replaced by worse."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group. `nodes` are graph node ids; `kernel_key` is the content key of the group alone.

    predicted, measured: seconds (None where not known). kernels: launches of a call.
    options: for the inductor lowering, the mode of torch.compile ("default", ...); for the vendor
    lowering, the name of the call (see `vendor.equals`); for a region (see `ways`), the bytes from
    which a value is computed again, or that it may have within a chunk; `bodies`: how the graphs
    that stand for the region run. copies: nodes whose values the group computes for itself only,
    because another group stores them or each reader computes them; a node may be in several groups.
    """

    nodes: tuple[Annotated[int, Field(ge=0)], ...]
    lowering: Lowering
    kernel_key: str
    config: Config | None = None
    predicted: Seconds | None = None
    measured: Seconds | None = None
    kernels: int = 1
    options: str = ""
    bodies: tuple[Plan, ...] = ()
    copies: tuple[Annotated[int, Field(ge=0)], ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """How the model chose the groups of a graph. seconds: of its cover, where a group that spares
    a large value counts for less; greedy_s: of the cover that the search began with; least_s: what
    no cover can beat, as far as that is known; proven: none is better. priced: groups that the
    model looked at; pieces: in which the graph was searched; cuts: places where a piece was too
    large and was cut, at the cheapest edges, and pairs of groups that were not looked at because
    the budget was spent (see `covers.budget`)."""

    seconds: Seconds
    greedy_s: Seconds
    least_s: Seconds
    proven: bool
    priced: int
    pieces: int
    cuts: int


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run the model. cold_s: median seconds of a call by itself, after the second-level
    cache was overwritten. busy_s: median seconds of a call among others, one after the other, the
    host's time included. behind, low, high: its time over that of the fastest, in whichever of the
    two it does worse, and the ends of its 99.7% interval. rounds: that it took part in."""

    name: str
    cold_s: Seconds
    busy_s: Seconds
    behind: Seconds
    low: Seconds
    high: Seconds
    rounds: int


@dataclass(frozen=True, slots=True)
class Contest:
    """How a plan was compared. contestants: in the order of preference among equals. winner: the
    one whose way the plan is. inputs: different sets of inputs, taken in turn. graphs: of the model
    that ran in each call. decided: whether the intervals tell the winner from all others, or call
    them equal. left_out: names with the reason. conditions: clocks in MHz and temperature in
    degrees."""

    contestants: tuple[Contestant, ...]
    winner: str
    inputs: int
    graphs: int = 1
    decided: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    conditions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The cover of a whole graph. Nodes in no group run as `aten`, one by one.

    graph_key: `graph.key` of the graph. device: the key of its profile; with the versions it is
    what the figures and the generated code depend on. No group: the graph runs as the user's own
    eager code, not opened into ATen operations; with `frame` the function that it was traced from
    is left alone altogether. measured: seconds of the whole plan, re-measured beside its `peers`
    ("eager", "default", "max-autotune", ...); contest: how.
    cudagraph: runs as a captured graph. overlaps: each kernel of ours is launched while the one
    before it ends, for which it waits itself. chosen: of the model's groups.
    """

    graph_key: str
    device: str
    versions: tuple[tuple[str, str], ...]
    evidence: Evidence
    groups: tuple[GroupPlan, ...]
    predicted: Seconds | None = None
    measured: Seconds | None = None
    peers: tuple[tuple[str, Seconds], ...] = ()
    cudagraph: bool = False
    overlaps: bool = False
    chosen: Chosen | None = None
    frame: bool = False
    contest: Contest | None = None
    format: Literal[1] = 1

    @property
    def speedup(self) -> float | None:
        """Best peer's time over ours; None where it was not measured."""
        if not self.peers or not self.measured:
            return None
        return min(seconds for _, seconds in self.peers) / self.measured

    def __repr__(self) -> str:
        count = len(self.groups)
        about = [f"{count} group{'s' * (count != 1)}", self.evidence]
        about += [duration(self.predicted if self.measured is None else self.measured)]
        about += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        return f"<Plan of graph {self.graph_key[:12]}: {'; '.join(about)}>"

    def _repr_html_(self) -> str:
        return panels_html([self.panel()])

    def panel(self, title: str = "", operations: Sequence[str] = ()) -> Panel:
        """What a notebook shows. operations: of each group, for people."""
        ways = [(name, "baseline", seconds) for name, seconds in self.peers]
        if self.measured is not None:
            ways.append(("this plan", "plan", self.measured))
        rows = tuple(
            GroupRow(
                number,
                operations[number] if operations else f"{len(group.nodes)} nodes",
                group.lowering,
                str(group.config or group.options),
                group.kernels,
                group.predicted,
                group.measured,
            )
            for number, group in enumerate(self.groups[:MOST_GROUPS])
        )
        about = f"graph {self.graph_key[:12]}, evidence: {self.evidence}"
        more = len(self.groups) - len(rows)
        return Panel(title or "plan", about, verdict(self), bars(ways), rows, more)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` turns it back into an equal plan."""
        data: dict[str, Any] = _PLAN.dump_python(self, mode="json")
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Inverse of `to_json`. Raises ValueError on data that is no plan of this format."""
        try:
            return _PLAN.validate_python(dict(data) if isinstance(data, Mapping) else data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "all of it"
            raise ValueError(f"no plan: {where}: {first['msg']}") from error


def verdict(plan: Plan) -> str:
    """What a plan comes to, in one sentence."""
    times = f"predicted {duration(plan.predicted)}, measured {duration(plan.measured)}"
    if plan.speedup is not None:
        best = min(plan.peers, key=lambda baseline: baseline[1])[0]
        generated = any(group.lowering == "triton" for group in plan.groups)
        if plan.speedup <= 1.01 and not generated:
            return f"nothing tried is faster than {best}: the plan runs the graph so; {times}"
        word = "speed-up" if plan.speedup > 1.0 else "no speed-up:"
        return f"{word} {plan.speedup:.2f}x over {best}, the fastest baseline; {times}"
    if plan.evidence == "modelled":
        return (
            f"predicted {duration(plan.predicted)}; modelled: these figures come from the cost "
            "model, nothing was measured"
        )
    return times


_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)
