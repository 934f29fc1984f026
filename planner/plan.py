"""A plan: which groups, how each runs, with which numbers, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ..markup.plan_card import MOST_GROUPS, GroupRow, PlanCard, bars, cards_html
from ..terminal import duration
from .config import Config, SizeTree

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LoweringName = Literal["triton", "aten", "inductor", "vendor", "recomputed", "chunked", "folded"]
"""Ways to run a group; `planner/lowerings` has a file for each."""

Evidence = Literal["measured", "searched", "modelled"]
"""measured: the plan was compared with eager and torch.compile. searched: its kernels were
measured, the plan was not compared. modelled: all figures are the cost model's."""

RANK: Mapping[Evidence, int] = {"modelled": 0, "searched": 1, "measured": 2}
"""Better evidence has the higher number, and is never replaced by worse."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group. `nodes` are graph node ids; `kernel_key` is the content key of the group alone.

    predicted, measured: seconds (None where not known). kernels: launches of a call.
    config: of a group that is generated. sizes: where they vary, the configs for all other sizes.
    options: what its lowering notes of it; only the lowering's own file reads that. bodies: how the
    graphs run that stand for a region. copies: nodes whose values the group computes for itself
    only, because another group stores them or each reader computes them; a node may be in several
    groups.
    """

    nodes: tuple[Annotated[int, Field(ge=0)], ...]
    lowering: LoweringName
    kernel_key: str
    config: Config | None = None
    predicted: Seconds | None = None
    measured: Seconds | None = None
    kernels: int = 1
    options: str = ""
    bodies: tuple[Plan, ...] = ()
    copies: tuple[Annotated[int, Field(ge=0)], ...] = ()
    sizes: SizeTree | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The model's choice of the groups of a graph. seconds: of its cover, where a group that spares
    a large value counts for less; greedy_s: of the cover that the search began with; least_s: what
    no cover can beat, as far as that is known; proven: none whose groups are connected is better.
    priced: groups that the model looked at; pieces: in which the graph was searched; cuts: places
    where a piece was too large and was cut, at the cheapest edges, and pairs of groups that were
    not looked at because the budget was spent (see `covers.budget`)."""

    seconds: Seconds
    greedy_s: Seconds
    least_s: Seconds
    proven: bool
    priced: int
    pieces: int
    cuts: int


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run the model, with its times in a contest."""

    name: str
    """The way: "plan", "eager" or a mode of torch.compile."""
    cold_s: Seconds
    """Median seconds of a call by itself, after the second-level cache was overwritten."""
    busy_s: Seconds
    """Median seconds of a call among many, one after the other, with the time of the host."""
    behind: Seconds
    """Its time divided by the fastest contestant's, the largest of three: cold, busy, and busy with
    a slower host."""
    low: Seconds
    """The lower end of the 99.7% interval of `behind`."""
    high: Seconds
    """The upper end of that interval."""
    rounds: int
    """The number of rounds that it took part in."""
    host_s: Seconds = 0.0
    """Median seconds of the host for a busy call; 0 in plans stored before it was asked."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The comparison of a plan with eager and the modes of torch.compile."""

    contestants: tuple[Contestant, ...]
    """All ways that ran. Of equals, the one that stands first is preferred."""
    winner: str
    """The name of the contestant that the plan runs as."""
    inputs: int
    """The number of different sets of inputs, which were used in turn."""
    graphs: int = 1
    """The number of graphs of the model that ran in each call."""
    decided: bool = True
    """Whether the intervals tell the winner from all others, or show that they are equal."""
    left_out: tuple[tuple[str, str], ...] = ()
    """The ways that did not take part, by name, with the reason."""
    conditions: tuple[tuple[str, int], ...] = ()
    """Clocks in MHz and temperatures in degrees Celsius, by name."""


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A plan of how a whole graph runs: its groups, and the figures that the choice rests on.

    A node that is in no group runs as `aten`. A plan without groups runs the user's own eager code.
    """

    graph_key: str
    """The content key of the graph (`graph.key`)."""
    device: str
    """The key of the device's profile."""
    versions: tuple[tuple[str, str], ...]
    """The versions that the figures and the generated kernels depend on, by name."""
    evidence: Evidence
    """Where the figures come from."""
    groups: tuple[GroupPlan, ...]
    """The groups in the order in which they run."""
    predicted: Seconds | None = None
    """The cost model's seconds for a call; None if it does not know them."""
    measured: Seconds | None = None
    """Measured seconds of a call, taken together with those of `baselines`."""
    baselines: Annotated[tuple[tuple[str, Seconds], ...], Field(alias="peers")] = ()
    """Measured seconds of each baseline: "eager", "default", "max-autotune" and so on.
    Stored as `peers`."""
    cudagraph: bool = False
    """Whether it is replayed as a CUDA graph."""
    overlaps: bool = False
    """Whether each generated kernel is launched before the previous kernel has finished. It then
    waits for that kernel itself (programmatic dependent launch)."""
    chosen: Chosen | None = None
    """How the cost model chose the groups."""
    frame: bool = False
    """Of a plan without groups: the whole Python function runs without torch.compile."""
    contest: Contest | None = None
    """How the plan was compared with the baselines."""
    at: tuple[int, ...] = ()
    """Of a plan for all sizes, those that it was tuned at (see `varying.sizes_of`)."""
    format: Literal[1] = 1

    @property
    def is_for_all_sizes(self) -> bool:
        """Whether it tells how its groups run at any sizes of the graph's inputs."""
        generated = [group for group in self.groups if group.config is not None]
        whole = any(group.bodies for group in self.groups)
        return bool(generated) and not whole and all(group.sizes for group in generated)

    @property
    def speedup(self) -> float | None:
        """The fastest baseline's time over ours; None where it was not measured."""
        if not self.baselines or not self.measured:
            return None
        return min(seconds for _, seconds in self.baselines) / self.measured

    def __repr__(self) -> str:
        count = len(self.groups)
        about = [f"{count} group{'s' * (count != 1)}", self.evidence]
        about += [duration(self.predicted if self.measured is None else self.measured)]
        about += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        return f"<Plan of graph {self.graph_key[:12]}: {'; '.join(about)}>"

    def _repr_html_(self) -> str:
        return cards_html([self.card()])

    def card(self, title: str = "", operations: Sequence[str] = ()) -> PlanCard:
        """The card that a notebook shows. operations: those of each group, as text for people."""
        ways = [(name, "baseline", seconds) for name, seconds in self.baselines]
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
        return PlanCard(title or "plan", about, verdict(self), bars(ways), rows, more)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` turns it back into an equal plan."""
        data: dict[str, Any] = _PLAN.dump_python(self, mode="json", by_alias=True)
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
    """The outcome of a plan, in one sentence."""
    times = f"predicted {duration(plan.predicted)}, measured {duration(plan.measured)}"
    if plan.speedup is not None:
        baseline = _whole_baseline(plan)
        if baseline is not None:
            return f"no gain: {is_kept(baseline, plan.contest is not None)}; {times}"
        best = min(plan.baselines, key=lambda baseline: baseline[1])[0]
        word = "speed-up" if plan.speedup > 1.0 else "no speed-up:"
        return f"{word} {plan.speedup:.2f}x over {best}, the fastest baseline; {times}"
    if plan.evidence == "modelled":
        return (
            f"predicted {duration(plan.predicted)}; modelled: these figures come from the cost "
            "model, nothing was measured"
        )
    return times


def is_kept(baseline: str, contested: bool) -> str:
    """That a plan is a baseline, by the rule of the contest, if there was one: a way to run is
    judged by the worse of its two timings, so ours may be faster in one of them."""
    if not contested:
        return f"the plan is {baseline}"
    return f"{baseline} is kept, as no plan is clearly faster in both timings, cold and busy"


def _whole_baseline(plan: Plan) -> str | None:
    """The baseline that the plan is; None where it has groups of its own, or replays the kernels
    of a baseline as a CUDA graph of ours. A group of the whole graph that runs as a baseline has
    its name in `options`."""
    if plan.cudagraph:
        return None
    if not plan.groups:
        return "eager"
    first, *others = plan.groups
    own = others or first.config is not None or first.bodies or first.kernel_key != plan.graph_key
    return first.options if not own and first.options in dict(plan.baselines) else None


_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)
