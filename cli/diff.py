"""`planner diff`: two plans beside each other, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from ..db import Store
from ..planner.plan import GroupPlan, Plan
from . import dated, render
from .options import JsonOption, StoreOption
from .render import ShownPlan

NumberedPlan = tuple[int, GroupPlan]


@dataclass(frozen=True, slots=True)
class GroupChange:
    """One group of A, of B, or of both. seconds_a, seconds_b: measured where that is known, else
    predicted; None where the plan has no such group, or knows neither."""

    a: int | None
    b: int | None
    operations: str
    what: str
    seconds_a: float | None
    seconds_b: float | None


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A plan: its name, its file, or the first characters of its key. NAME@2026-11-20: "
            "the plan as it was on that day.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The plan to compare it with.")],
    store: StoreOption = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--other-store",
            metavar="PATH",
            help="The store that has B, if it is not the store of A.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two plans, of one store or of two, or one plan on two dates: what they are for, which
    groups changed, and the time of each group.

    Groups are matched by their operations if both plans are for the same graph, else by their
    kernels.
    """
    first, second = _find(store, a), _find(other or store, b)
    differences = about(first, second)
    found = changes(first, second)
    if json:
        render.print_json(
            {
                "a": first.key,
                "b": second.key,
                "differences": {name: list(pair) for name, pair in differences.items()},
                "measured_s": [first.plan.measured, second.plan.measured],
                "groups": [asdict(change) for change in found],
            }
        )
        return
    _print(first, second, differences, found)


def _find(store: str | None, wanted: str) -> ShownPlan:
    with Store.open(store, create=False, read_only=True) as opened:
        return dated.find(opened, wanted)


def about(a: ShownPlan, b: ShownPlan) -> dict[str, tuple[str, str]]:
    """What differs besides the groups: fields of the plans' keys, evidence, how they are run."""
    fields = {
        "graph": (a.plan.graph_key[: render.KEY], b.plan.graph_key[: render.KEY]),
        "inputs": (a.inputs, b.inputs),
        "device": (a.device, b.device),
        "evidence": (a.plan.evidence, b.plan.evidence),
        "CUDA graph": (_graphed(a.plan), _graphed(b.plan)),
    }
    old, new = dict(a.plan.versions), dict(b.plan.versions)
    fields |= {n: (old.get(n, "-"), new.get(n, "-")) for n in sorted(old.keys() | new.keys())}
    return {name: pair for name, pair in fields.items() if pair[0] != pair[1]}


def _graphed(plan: Plan) -> str:
    return "overlapping" if plan.overlaps else "yes" if plan.cudagraph else "no"


def changes(a: ShownPlan, b: ShownPlan) -> list[GroupChange]:
    """Groups of both that are about the same first, then those of one of them alone."""
    same_graph = a.plan.graph_key == b.plan.graph_key
    rest = list(enumerate(b.plan.groups))
    paired: list[GroupChange] = []
    alone: list[GroupChange] = []
    for number, group in enumerate(a.plan.groups):
        match = _match(group, rest, same_graph)
        names = _names(a, group)
        if match is None:
            alone.append(GroupChange(number, None, names, "only in A", _seconds(group), None))
            continue
        rest.remove(match)
        other = match[1]
        what = changed(group, other)
        paired.append(GroupChange(number, match[0], names, what, _seconds(group), _seconds(other)))
    alone += [GroupChange(None, n, _names(b, g), "only in B", None, _seconds(g)) for n, g in rest]
    return paired + alone


def _match(group: GroupPlan, rest: Sequence[NumberedPlan], same_graph: bool) -> NumberedPlan | None:
    def is_same(other: GroupPlan) -> bool:
        if same_graph:
            return (group.nodes, group.copies) == (other.nodes, other.copies)
        return group.kernel_key == other.kernel_key

    return next((each for each in rest if is_same(each[1])), None)


def changed(a: GroupPlan, b: GroupPlan) -> str:
    """What is different in how two groups of the same operations run."""
    if a.lowering != b.lowering:
        return f"lowering: {a.lowering}, now {b.lowering}"
    if (a.config, a.options, a.bodies) != (b.config, b.options, b.bodies):
        return f"config: {render.config_text(a)}, now {render.config_text(b)}"
    return "same"


def _seconds(group: GroupPlan) -> float | None:
    return group.measured if group.measured is not None else group.predicted


def _names(shown: ShownPlan, group: GroupPlan) -> str:
    if shown.graph is None:
        return f"{len(group.nodes)} operations"
    return render.operations(shown.graph, group.nodes)


def _print(
    a: ShownPlan, b: ShownPlan, differences: dict[str, tuple[str, str]], found: list[GroupChange]
) -> None:
    out = render.out()
    for letter, each in (("A", a), ("B", b)):
        time = render.duration(each.plan.measured or each.plan.predicted)
        out.print(f"{letter}  {each.key[: render.KEY]}  {each.name}  {time} {each.plan.evidence}")
    if differences:
        made = render.table("differs", "A", "B", wide=("A", "B"))
        for name, pair in differences.items():
            made.add_row(name, *pair)
        out.print(made)
    figures = ("time A", "time B", "B - A")
    made = render.table(
        "A", "B", "operations", "change", *figures, right=figures, wide=("operations", "change")
    )
    for change in found:
        made.add_row(
            "-" if change.a is None else str(change.a),
            "-" if change.b is None else str(change.b),
            change.operations,
            change.what,
            render.duration(change.seconds_a),
            render.duration(change.seconds_b),
            _more(change),
        )
    out.print(made)
    count = sum(each.what != "same" for each in found)
    out.print(f"{count} of {len(found)} groups differ")


def _more(change: GroupChange) -> str:
    if change.seconds_a is None or change.seconds_b is None:
        return "-"
    more = change.seconds_b - change.seconds_a
    return ("+" if more > 0 else "-" if more < 0 else "") + render.duration(abs(more))
