"""Plans, trials and checks as tables for people and as JSON for programs.

Results go to stdout, all else to stderr, so that `--json` output can be piped as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..planner.graph.graph import INPUT, Graph
from ..planner.plan import GroupPlan, Plan
from ..planner.regions.ways import groups_within

KEY = 12
"""Characters of a key in a table."""

_SHOWN_OPERATIONS = 6


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan with its key and name; graph: None where the store does not have it."""

    key: str
    name: str
    plan: Plan
    device: str
    graph: Graph | None = None

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of a plan."""
        return {
            "key": self.key,
            "name": self.name,
            "device": self.device,
            "evidence": self.plan.evidence,
            "predicted_s": self.plan.predicted,
            "measured_s": self.plan.measured,
            "peers_s": dict(self.plan.peers),
            "speedup": self.plan.speedup,
            "plan": self.plan.to_json(),
        }


def out() -> Console:
    """stdout for people. Wide when it is no terminal, so that a pipe gets whole lines."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False, default=str) + "\n")


def duration(seconds: float | None) -> str:
    """Three figures with a unit; a dash for what is not known."""
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the house style."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def plan_view(shown: ShownPlan) -> RenderableType:
    """Everything about a plan: what it is, its groups, its peers, and what it comes to."""
    plan = shown.plan
    head = Text()
    head.append(f"plan {shown.key[:KEY]}", style="bold")
    head.append(f"  {shown.name}  {shown.device}  evidence: {plan.evidence}")
    if plan.cudagraph:
        head.append("  replayed as a CUDA graph" + ", launches overlapping" * plan.overlaps)
    return Group(head, _groups(shown), *_peers(plan), Text(_verdict(plan)))


def operations(graph: Graph, nodes: Sequence[int]) -> str:
    """The operations of a group by their short names, inputs left out."""
    found = [graph.nodes[n] for n in nodes if n < len(graph.nodes)]
    names = [n.op.removeprefix("aten.").partition(".")[0] for n in found if n.op != INPUT]
    more = len(names) - _SHOWN_OPERATIONS
    return " ".join(names[:_SHOWN_OPERATIONS]) + (f" +{more}" if more > 0 else "")


def _groups(shown: ShownPlan) -> RenderableType:
    plan, graph = shown.plan, shown.graph
    if not plan.groups:
        return Text("no groups: the whole graph runs as eager does")
    figures = ("kernels", "predicted", "measured")
    made = table("group", "operations", "lowering", "config", *figures, right=("group", *figures))
    # Without its graph, what is within a region cannot be told.
    known = groups_within(graph, plan) if graph else _outer(plan)
    for number, own, group in known:
        named = operations(own, group.nodes) if own else f"{len(group.nodes)} operations"
        made.add_row(
            number,
            Text(named),
            group.lowering,
            Text(config_text(group)),
            str(group.kernels),
            duration(group.predicted),
            duration(group.measured),
        )
    return made


def _outer(plan: Plan) -> list[tuple[str, None, GroupPlan]]:
    return [(str(number), None, group) for number, group in enumerate(plan.groups)]


def config_text(group: GroupPlan) -> str:
    return str(group.config) if group.config is not None else group.options or "-"


def _peers(plan: Plan) -> list[RenderableType]:
    if plan.measured is None or not plan.peers:
        return []
    made = table("run as", "time", "against the plan", right=("time", "against the plan"))
    made.add_row(Text("this plan", style="bold"), duration(plan.measured), ratio(1.0))
    for name, seconds in sorted(plan.peers, key=lambda peer: peer[1]):
        made.add_row(Text(name), duration(seconds), ratio(seconds / plan.measured))
    return [made]


def _verdict(plan: Plan) -> str:
    times = f"predicted {duration(plan.predicted)}, measured {duration(plan.measured)}"
    if plan.speedup is not None:
        best = min(plan.peers, key=lambda peer: peer[1])[0]
        generated = any(group.lowering == "triton" for group in plan.groups)
        if plan.speedup <= 1.01 and not generated:
            return f"nothing tried is faster than {best}: the plan runs the graph so; {times}"
        word = "speed-up" if plan.speedup > 1.0 else "no speed-up:"
        return f"{word} {ratio(plan.speedup)} over {best}, the fastest of its peers; {times}"
    if plan.evidence == "modelled":
        return (
            f"predicted {duration(plan.predicted)}; modelled: these figures come from the cost "
            "model, nothing was measured"
        )
    return times


def pairs(data: Mapping[str, Any]) -> str:
    """A small JSON object on one line: a config, the versions."""
    texts = {k: json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in data.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def candidate(data: Mapping[str, Any]) -> str:
    """What a trial tried, on one line: a kernel's numbers, or the lowerings of a partition."""
    if "groups" in data:
        lowerings = [group.get("lowering", "?") for group in data["groups"]]
        shown = ", ".join(f"{lowerings.count(x)} {x}" for x in dict.fromkeys(lowerings))
        return f"groups: {shown or 'none'}" + ", as a graph" * bool(data.get("cudagraph"))
    if "blocks" not in data:
        return pairs({k: v for k, v in data.items() if v})
    split, eviction = data.get("split", 1), data.get("eviction", "none")
    parts = [f"{axis}={size}" for axis, size in data["blocks"]]
    parts += [f"{short}={data[name]}" for short, name in _NUMBERS.items() if name in data]
    parts += [str(data["reduction"])] if "reduction" in data else []
    parts += ["flat"] * (data.get("tiling") == "flat") + [f"split={split}"] * (split != 1)
    return " ".join(parts + [f"evict={eviction}"] * (eviction != "none"))


_NUMBERS = {"warps": "num_warps", "stages": "num_stages"}
