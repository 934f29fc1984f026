"""Plans, trials and checks as tables for people and as JSON for programs.

Results go to stdout, all else to stderr, so that `--json` output can be piped as it is. Whatever is
printed here is data: no markup is read in it, and its control characters are shown, not obeyed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ..planner.graph.graph import INPUT, Graph, short_names
from ..planner.plan import GroupPlan, Plan, verdict
from ..terminal import data_console, duration, escaped
from .errors import SCHEMA
from .table import Table

__all__ = ["duration", "escaped"]  # of ..terminal, for the commands

KEY = 12
"""Characters of a key in a table."""

PIPE_WIDTH = 200
"""Columns where there is no terminal."""

_SHOWN_OPERATIONS = 6


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan with its key and name; graph: None where the store does not have it. stage: of
    training or inference; inputs: types and shapes of the example; sources: lines of the user's
    code by node; all empty where unknown."""

    key: str
    name: str
    plan: Plan
    device: str
    graph: Graph | None = None
    stage: str = ""
    inputs: str = ""
    sources: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of a plan."""
        return {
            "key": self.key,
            "name": self.name,
            "device": self.device,
            "evidence": self.plan.evidence,
            "predicted_s": self.plan.predicted,
            "measured_s": self.plan.measured,
            "baselines_s": dict(self.plan.baselines),
            "speedup": self.plan.speedup,
            "stage": self.stage,
            "inputs": self.inputs,
            "plan": self.plan.to_json(),
        }


def out() -> Console:
    """stdout for people. Wide when it is no terminal, so that a pipe gets whole lines."""
    return data_console(sys.stdout, None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    return data_console(sys.stderr)


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON document on stdout, with the version of its schema."""
    document = {"schema": SCHEMA, **data}
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False, default=str) + "\n")


def print_text(text: str) -> None:
    """Lines as they are, however wide; control characters are shown."""
    sys.stdout.write(escaped(text.rstrip("\n")) + "\n")


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def table(
    *columns: str,
    right: Sequence[str] = (),
    wide: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Table:
    """An empty table in the house style; see `Table`."""
    return Table(columns, frozenset(right), frozenset(wide), extra)


def plan_view(shown: ShownPlan) -> RenderableType:
    """Everything about a plan: what it is, its groups, its baselines, and what it comes to."""
    plan = shown.plan
    head = Text()
    head.append(f"plan {shown.key[:KEY]}", style="bold")
    head.append(f"  {shown.name}  {shown.device}  evidence: {plan.evidence}")
    if plan.cudagraph:
        head.append("  replayed as a CUDA graph" + ", launches overlapping" * plan.overlaps)
    about = [Text(f"inputs {shown.inputs}", "dim")] if shown.inputs else []
    apart = [Text(text) for text in _apart(shown)]
    return Group(head, *about, _groups(shown), *apart, *_baselines(plan), Text(verdict(plan)))


def operations(graph: Graph, nodes: Sequence[int]) -> str:
    """The operations of a group by their short names, inputs left out."""
    names = short_names(graph, nodes)
    more = len(names) - _SHOWN_OPERATIONS
    return " ".join(names[:_SHOWN_OPERATIONS]) + (f" +{more}" if more > 0 else "")


def _groups(shown: ShownPlan) -> RenderableType:
    plan = shown.plan
    if not plan.groups:
        return Text("no groups: the whole graph runs as eager does")
    figures = ("kernels", "predicted", "measured")
    columns = ("group", "operations", "lowering", "config", *figures)
    wide = ("operations", "config")
    made = table(*columns, right=figures, wide=wide, extra=("kernels",))
    for number, own, group in _numbered(shown):
        made.add_row(
            number,
            operations(own, group.nodes) if own else f"{len(group.nodes)} operations",
            group.lowering,
            config_text(group),
            str(group.kernels),
            duration(group.predicted),
            duration(group.measured),
        )
    return made


def _numbered(shown: ShownPlan) -> list[tuple[str, Graph | None, GroupPlan]]:
    """The groups with their numbers, and the graphs that their nodes are of."""
    plan, graph = shown.plan, shown.graph
    if graph is None or not any(group.bodies for group in plan.groups):
        # Without its graph, what is within a region cannot be told.
        return [(str(number), graph, group) for number, group in enumerate(plan.groups)]
    # Imported here: it imports torch, and few plans have a region.
    from ..planner.lowerings.nested import groups_within

    return list(groups_within(graph, plan))


def _apart(shown: ShownPlan) -> list[str]:
    """The operations that no group has, and what the prediction leaves out."""
    plan, graph = shown.plan, shown.graph
    if graph is None or not plan.groups:
        return []
    within = {node for group in plan.groups for node in (*group.nodes, *group.copies)}
    rest = [n.op for n in graph.nodes if n.op != INPUT and n.id not in within]
    told = []
    if rest:
        names = Counter(op.removeprefix("aten.").partition(".")[0] for op in rest)
        listed = ", ".join(name + f" x{n}" * (n > 1) for name, n in names.most_common(8))
        told.append(
            f"in no group: {listed}{', ...' * (len(names) > 8)}; views cost nothing, the "
            "rest runs as ATen and is not in the predicted time"
        )
    unknown = sum(group.predicted is None for group in plan.groups)
    if unknown and plan.predicted is not None:
        told.append(
            f"{unknown} of {len(plan.groups)} groups have no prediction, and are not in "
            "the predicted time"
        )
    return told


def config_text(group: GroupPlan) -> str:
    return str(group.config) if group.config is not None else group.options or "-"


def _baselines(plan: Plan) -> list[RenderableType]:
    if plan.measured is None or not plan.baselines:
        return []
    made = table("run as", "time", "against the plan", right=("time", "against the plan"))
    made.add_row("this plan", duration(plan.measured), ratio(1.0))
    for name, seconds in sorted(plan.baselines, key=lambda baseline: baseline[1]):
        made.add_row(name, duration(seconds), ratio(seconds / plan.measured))
    return [made, *map(Text, not_compared(plan))]


def not_compared(plan: Plan) -> list[str]:
    """A line for each way to run the model that took no part in the plan's contest, and why."""
    left_out = plan.contest.left_out if plan.contest else ()
    return [f"not compared: {name} ({why})" for name, why in left_out]


def counted(numbers: Mapping[str, int]) -> str:
    """How many of each there are, by their names in the plural."""
    return ", ".join(
        f"{number} {name if number != 1 else name.removesuffix('s')}"
        for name, number in numbers.items()
    )


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
        return " ".join(str(value) for value in data.values() if value)
    split, eviction = data.get("split", 1), data.get("eviction", "none")
    parts = [f"{axis}={size}" for axis, size in data["blocks"]]
    parts += [f"{short}={data[name]}" for short, name in _NUMBERS.items() if name in data]
    parts += [str(data["reduction"])] if "reduction" in data else []
    parts += ["flat"] * (data.get("tiling") == "flat") + [f"split={split}"] * (split != 1)
    return " ".join(parts + [f"evict={eviction}"] * (eviction != "none"))


_NUMBERS = {"warps": "num_warps", "stages": "num_stages"}
