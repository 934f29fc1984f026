"""`planner explain`: why a model's plan is what it is, group by group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..db import Store
from ..report.predicted import figures
from ..terminal import size
from . import render
from .captured import captured_model, note, opened_store, titles
from .errors import UsageError
from .gaps import gaps_table, least_line
from .options import (
    DeviceOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    ModelledOption,
    NumericsOption,
    StoreOption,
    TargetOption,
    numerics_of,
)
from .table import Table

if TYPE_CHECKING:
    from ..planner.explanation import (
        Boundary,
        Explanation,
        GroupExplanation,
        Kernel,
        Otherwise,
        Side,
        Tensor,
        UngroupedNode,
    )
    from ..planner.graph.graph import Graph
    from ..planner.plan import Chosen
    from ..tuner.capture.capture_model import CapturedModel, ModelGraph
    from ..tuner.records.found_plan import FoundPlan
    from ..tuner.session.place import Place


@dataclass(frozen=True, slots=True)
class _Explained:
    """One graph of the model with the explanation of its plan."""

    name: str
    part: ModelGraph
    found: FoundPlan
    note: str
    explanation: Explanation

    def to_json(self) -> dict[str, Any]:
        about = {
            "name": self.name,
            "stage": self.part.stage,
            "times": self.part.times,
            "plan_key": self.found.key,
            "note": self.note,
        }
        return about | self.explanation.to_json()


def explain(
    model: ModelArgument,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: Annotated[
        bool, typer.Option("--training", help="Plan the backward pass, too.")
    ] = False,
    numerics: NumericsOption = "fast",
    modelled: ModelledOption = False,
    group: Annotated[
        int | None, typer.Option("--group", min=0, metavar="N", help="Show only group number N.")
    ] = None,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Print the generated Triton kernels, too.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Explain the plan of a model: the loops and the cost of every group, predicted and measured,
    and why neighbouring groups are not one kernel.

    If the store has no plan for this device, the cost model's plan is explained.
    """
    with contextlib.ExitStack() as stack:
        opened = None if modelled else opened_store(store, stack)
        name, captured, place = captured_model(
            *(model, inputs, device, target), training=training, numerics=numerics_of(numerics)
        )
        explained = list(_explained(name, captured, place, opened, group, kernel))
    if group is not None and not any(each.explanation.groups for each in explained):
        counts = ", ".join(str(len(each.found.plan.groups)) for each in explained) or "0"
        raise UsageError(f"--group {group}: there is no such group; groups in the plan: {counts}")
    if json:
        document = {
            "device": place.profile.name,
            "notes": list(captured.notes),
            "plans": [each.to_json() for each in explained],
        }
        render.print_json(document)
        return
    for told in captured.notes:
        render.err().print(f"note: {told}", soft_wrap=True)
    if not explained:
        render.out().print("nothing to fuse: the model runs as it is")
    for each in explained:
        if group is None or each.explanation.groups:
            _print(render.out(), each)


def _explained(
    name: str,
    captured: CapturedModel,
    place: Place,
    store: Store | None,
    group: int | None,
    texts: bool,
) -> Iterator[_Explained]:
    from ..planner.capture.source_lines import source_texts
    from ..planner.explain_plan import explain_plan
    from ..tuner.records.found_plan import found_plan

    for title, part in zip(titles(name, captured), captured.parts, strict=True):
        found = found_plan(part.captured.graph, place.profile, store)
        explanation = explain_plan(
            part.captured.graph,
            found.plan,
            place.profile,
            measured=found.measured,
            sources=source_texts(part.captured.fx_nodes),
            only=None if group is None else {group},
            texts=texts,
        )
        yield _Explained(title, part, found, note(found, place, store), explanation)


# --- text ---


def _print(console: Console, explained: _Explained) -> None:
    explanation = explained.explanation
    head = Text()
    head.append(f"graph {explanation.graph_key[: render.KEY]}", style="bold")
    head.append(f"  {explained.name}  {explanation.device}  evidence: {explanation.evidence}")
    console.print(head)
    console.print(Text(explained.note), style="dim", soft_wrap=True)
    total = f"predicted {render.duration(explanation.predicted_s)}"
    console.print(f"{total}, measured {render.duration(explanation.measured_s)}")
    least = least_line(explanation)
    if least is not None:
        console.print(least, soft_wrap=True)
    if explanation.chosen is not None:
        console.print(Text(_chosen(explanation.chosen)), soft_wrap=True)
    if not explained.found.plan.groups:
        console.print("no groups: the whole graph runs as eager does")
    table = gaps_table(explanation) if len(explanation.groups) > 1 else None
    if table is not None:
        _heading(console, "groups by their time above the least, the largest first")
        console.print(_indented(table, 1))
    for group in explanation.groups:
        _print_group(console, group)
        _print_bodies(console, group, str(group.number))
    if explanation.alone:
        _heading(console, "in no group, run as ATen")
        _lines(console, [_alone(each) for each in explanation.alone], 1)
    if explanation.boundaries:
        _heading(console, "why neighbours are not one kernel")
        graph = explained.part.captured.graph
        _lines(console, [_boundary(each, graph) for each in explanation.boundaries], 1)
    console.print()


def _chosen(chosen: Chosen) -> str:
    """How the model chose the groups, in one line."""
    found = f"cover: {render.duration(chosen.seconds)} by the model"
    if chosen.seconds < chosen.greedy_s:
        found += f", {render.duration(chosen.greedy_s)} without the search"
    if chosen.proven:
        found += "; no cover of connected groups is faster"
    else:
        found += f"; not proven: no cover takes less than {render.duration(chosen.least_s)}"
    found += f"; pieces: {chosen.pieces}, groups priced: {chosen.priced}"
    return found + (f"; cuts: {chosen.cuts}" if chosen.cuts else "")


def _print_group(console: Console, group: GroupExplanation, number: str = "") -> None:
    config = str(group.config or group.options or "").strip()
    names = " ".join(o.name for o in group.operations)
    _heading(console, f"group {number or group.number}: {group.lowering} {config}".rstrip())
    _lines(console, [names], 1)
    console.print(_indented(_operations(group), 1))
    _section(console, "reads", [_tensor(t) for t in group.inputs])
    _section(console, "writes", [_tensor(t) for t in group.outputs])
    never = [f"{t}, {size(t.nbytes)} never stored" for t in group.never_stored]
    _section(console, "largest intermediates", never)
    _section(console, "between its kernels", [_tensor(t) for t in group.temporaries])
    if group.otherwise is not None:
        _section(console, "not generated", [_otherwise(group.otherwise)])
    for kernel in group.kernels:
        _print_kernel(console, kernel)
    proofs = [f"{d.fold}, {d.rule}: {d.formula}" for d in group.derived]
    _section(console, "derived, so that reductions share one sweep", proofs)
    _section(console, "a sweep of its own", [str(d) for d in group.denied])
    if len(group.sizes) > 1:
        here = ", ".join(f"size {place} is {size}" for place, size in enumerate(group.varying))
        by = [f"{at}: {config}" for at, config in group.sizes]
        _section(console, f"by its sizes (here {here})", by)
    if group.predicted is not None:
        _lines(console, ["cost"], 1)
        console.print(_indented(_figures(group), 2))
    _section(console, "layouts that are not possible", [str(d) for d in group.layouts])


def _print_bodies(console: Console, group: GroupExplanation, number: str) -> None:
    """The groups of what stands for a region, as "1.0.2": region, graph, group."""
    for place, (times, body) in enumerate(group.bodies):
        _heading(console, f"instead of group {number}, {times} times in a call: graph {place}")
        for inner in body.groups:
            _print_group(console, inner, f"{number}.{place}.{inner.number}")
            _print_bodies(console, inner, f"{number}.{place}.{inner.number}")


def _print_kernel(console: Console, kernel: Kernel) -> None:
    cost = kernel.predicted
    time = f"{render.duration(cost.seconds)} predicted, bound by {cost.limit}"
    _lines(console, [f"kernel {kernel.name}: {kernel.programs} programs, {time}"], 1)
    if kernel.copied_by:
        copy = f"before it kernel {kernel.copied_by} copies rows, so that it reads whole vectors"
        _lines(console, [copy], 2)
    axes = render.table("axis", "extent", "role", "block", "blocks", right=("extent", "block"))
    for axis in kernel.axes:
        blocks = str(-(-axis.extent // axis.block))
        axes.add_row(axis.name, str(axis.extent), axis.role, str(axis.block), blocks)
    console.print(_indented(axes, 2))
    for bound in kernel.bounds:
        where = " and ".join(bound.conditions)
        turns = f"{bound.turns:.3g} of {bound.whole} turns on average"
        _lines(console, [f"of {bound.axis} the masks keep only {where}: {turns}"], 2)
    body = [line for line in kernel.nest.splitlines() if not line.startswith("axis ")]
    _lines(console, body, 2)
    if kernel.text:
        _lines(console, ["generated text"], 1)
        _lines(console, kernel.text.strip("\n").splitlines(), 0)


def _operations(group: GroupExplanation) -> Table:
    columns = ("node", "name", "operation", "value", "line")
    made = render.table(*columns, right=("node",), wide=("name", "operation", "value", "line"))
    for o in group.operations:
        copied = " (copied)" if o.copied else ""
        made.add_row(f"%{o.node}", o.name, o.op + copied, o.type or "?", o.source)
    return made


def _figures(group: GroupExplanation) -> Table:
    made = render.table("figure", "predicted", "measured", right=("predicted", "measured"))
    for figure in figures(group):
        made.add_row(figure.name, figure.predicted, figure.measured or "-")
    return made


def _alone(alone: UngroupedNode) -> str:
    operation = alone.operation
    return f"%{operation.node} {operation.name}: {_otherwise(alone.otherwise)}"


def _otherwise(otherwise: Otherwise) -> str:
    usual = render.duration(otherwise.aten_s)
    if otherwise.refusal is not None:
        return f"{otherwise.refusal.rule}: {otherwise.refusal.reason}"
    generated = render.duration(otherwise.generated_s)
    return f"the cost model expects {generated} generated, {usual} as ATen"


def _boundary(boundary: Boundary, graph: Graph) -> str:
    first, second = boundary.edges[0]
    names = f"{graph.nodes[first].name}, {graph.nodes[second].name}"
    who = f"{_side(boundary.left, graph)} and {_side(boundary.right, graph)} ({names})"
    if boundary.refusal is not None:
        return f"{who}: {boundary.refusal.rule}: {boundary.refusal.reason}"
    together = f"the cost model expects {render.duration(boundary.together_s)} together"
    if boundary.apart_s is None:
        return f"{who}: {together}, and has no figure for two"
    return f"{who}: {together}, {render.duration(boundary.apart_s)} apart"


def _side(side: Side, graph: Graph) -> str:
    if side.group is not None:
        return f"group {side.group}"
    return " ".join(f"%{n} {graph.nodes[n].name}" for n in side.nodes)


def _tensor(tensor: Tensor) -> str:
    return f"{tensor}, {size(tensor.nbytes)}"


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text), style="bold", soft_wrap=True)


def _section(console: Console, title: str, lines: list[str]) -> None:
    """A title with its lines; nothing where there are none."""
    if lines:
        _lines(console, [title], 1)
        _lines(console, lines, 2)


def _indented(table: Table, depth: int) -> Padding:
    return Padding(table, (0, 0, 0, 2 * depth), expand=False)


def _lines(console: Console, lines: list[str], depth: int) -> None:
    """Whole lines, however long: nests and kernels are read as they are."""
    for line in lines:
        console.print(Text("  " * depth + line), soft_wrap=True)
