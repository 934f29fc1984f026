"""`planner show`: one plan, with its graph, its nests, its tile programs or its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from ..db import Store
from ..planner.config import Config
from ..planner.errors import PlanError
from ..planner.graph.graph import Graph
from . import contest_table, render, stored
from .errors import UsageError
from .options import JsonOption, PlanArgument, StoreOption
from .render import ShownPlan


def show(
    plan: PlanArgument = None,
    store: StoreOption = None,
    source: Annotated[
        bool,
        typer.Option(
            "--source", help="Print the generated kernels, as a Python module that runs alone."
        ),
    ] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the captured graph.")] = False,
    nest: Annotated[bool, typer.Option("--nest", help="Print the loops of every group.")] = False,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="PASS",
            help="Print the tile program of every kernel as it is after this pass, such as "
            "select_mma. `last` prints the final one.",
        ),
    ] = None,
    contest: Annotated[
        bool,
        typer.Option(
            "--contest", help="Print how the plan was compared with eager and torch.compile."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show a plan: how each group runs, its predicted and measured time, and the baselines."""
    with Store.open(store, create=False, read_only=True) as opened:
        found = stored.find(opened, plan)
    extra: dict[str, Any] = {}
    if graph:
        extra["graph"] = str(_graph(found))
    if nest:
        extra["nests"] = nests(_graph(found), found)
    if after is not None:
        extra["tiles"] = tile_programs(_graph(found), found, after)
    if source:
        extra["source"] = source_of(_graph(found), found)
    if json:
        render.print_json(found.to_json() | extra)
        return
    if contest:
        if found.plan.contest is None:
            raise PlanError(f"plan {found.key} has no record of a contest: tune the model again")
        render.out().print(contest_table.view(found.plan.contest))
        return
    if extra:
        for text in extra.values():
            for part in text if isinstance(text, list) else [text]:
                render.print_text(part)
        return
    render.out().print(render.plan_view(found))
    versions = render.pairs(dict(found.plan.versions))
    render.out().print(Text(f"made with {versions}", style="dim"))


def _graph(found: ShownPlan) -> Graph:
    if found.graph is None:
        raise PlanError(f"the graph of plan {found.key} is not in the store: tune the model again")
    return found.graph


def nests(graph: Graph, found: ShownPlan) -> list[str]:
    """The nest of every generated group, or why it has none."""
    from ..planner.errors import Refusal
    from ..planner.lower import schedule_of

    def nests_of(part: Graph, config: Config) -> list[object]:
        made = schedule_of(part, config)
        return [made] if isinstance(made, Refusal) else [k.nest for k in made.kernels]

    return _of_groups(graph, found, "nest", nests_of)


def tile_programs(graph: Graph, found: ShownPlan, after: str) -> list[str]:
    """The tile program of every kernel as a pass leaves it, or why it has none."""
    from ..planner.errors import Refusal
    from ..planner.lower import tile_programs
    from ..planner.tiles.tile import BY_NAME, PASSES

    if after != "last" and after not in BY_NAME:
        raise UsageError(f"--after {after}: no such pass; in order: {', '.join(BY_NAME)}")
    last = BY_NAME.get(after, PASSES[-1])

    def programs_of(part: Graph, config: Config) -> list[object]:
        made = tile_programs(part, config, last)
        return [made] if isinstance(made, Refusal) else list(made)

    return _of_groups(graph, found, "tile program", programs_of)


def _of_groups(
    graph: Graph, found: ShownPlan, what: str, made: Callable[[Graph, Config], list[object]]
) -> list[str]:
    """Text of the kernels of every group: `made` gives what prints itself of each."""
    from ..planner.groups.group import subgraph
    from ..planner.lowerings.nested import groups_within

    texts = []
    for each in groups_within(graph, found.plan):
        group, own = each.group, each.graph
        title = f"# group {each.number}: {render.operations(own, group.nodes)} ({group.lowering})"
        if group.config is None:
            texts.append(f"{title}\nno {what}: it is not generated\n")
            continue
        config = group.config
        part = subgraph(own, group.nodes, group.copies).graph
        texts += [f"{title}\n# {config}\n" + "\n\n".join(map(str, made(part, config))) + "\n"]
    return texts


def source_of(graph: Graph, found: ShownPlan) -> str:
    """The plan as a module that runs alone."""
    from ..planner.module import print_module

    return print_module(graph, found.plan)
