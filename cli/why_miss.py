"""`planner why-miss`: what stands between a model and the stored plan that is nearest to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from ..db import PlanRecord, Store
from . import render, stored
from .captured import captured_model, titles
from .options import (
    DeviceOption,
    DynamicOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    NumericsOption,
    StoreOption,
    TargetOption,
    TrainingOption,
    numerics_of,
)

if TYPE_CHECKING:
    from ..planner.graph.graph import Graph, Node, TensorType
    from ..tuner.capture.capture_model import ModelGraph
    from ..tuner.session.place import Place

CURES = {
    "shape": "tune with these shapes, or once with --dynamic for all like them",
    "stride": "lay the input out as it was tuned (for example by .contiguous()), "
    "or tune with the input as it is now",
    "dtype": "convert model and inputs as they were when it was tuned, or tune in this dtype",
    "operations": "the model's code, its train or eval mode, or an argument has changed: "
    "tune it again",
    "numerics": "give the --numerics that it was tuned with, or tune with this one",
    "device": "a plan is for one kind of GPU: tune on this one",
    "evidence": 'it was not compared: tune it on the device, or run it with evidence="any"',
    "sizes": "these sizes fall into another range (bucket): tune with --dynamic at these",
}
_VERSION = "tune again with these versions, or install those the plan was made with"
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of the key: what the stored plan has, what the model has now, what to do."""

    field: str
    stored: str
    now: str
    cure: str


@dataclass(frozen=True, slots=True)
class Answer:
    """For one graph of the model: the plan that fits it, or the nearest and what differs. evidence:
    of that plan. not_compared: of a plan that fits, the ways to run that it was not compared with,
    each with the reason."""

    name: str
    stage: str
    hit: bool
    key: str | None
    plan: str | None
    differences: tuple[Difference, ...]
    evidence: str | None = None
    not_compared: tuple[str, ...] = ()


def why_miss(
    model: ModelArgument,
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: TrainingOption = False,
    dynamic: DynamicOption = False,
    numerics: NumericsOption = "fast",
    json: JsonOption = False,
) -> None:
    """Say for each graph of a model whether it has a stored plan. If it has none, show the nearest
    stored plan, in which fields its key differs, and what to do.

    A key is made of the graph (operations, shapes, strides, dtypes), the device and the versions.
    """
    with Store.open(store, create=False, read_only=True) as opened:
        name, captured, place = captured_model(
            *(model, inputs, device, target),
            training=training,
            dynamic=dynamic,
            numerics=numerics_of(numerics),
        )
        shelf = _Shelf(opened)
        answers = [
            answer(title, part, place, shelf)
            for title, part in zip(titles(name, captured), captured.parts, strict=True)
        ]
        location = opened.location
    if json:
        render.print_json({"store": location, "graphs": [asdict(each) for each in answers]})
        return
    if not answers:
        render.out().print("nothing to fuse: the model runs as it is, and needs no plan")
    for each in answers:
        _print(each, location)


class _Shelf:
    """The plans of a store with their graphs, each graph read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.records = store.plans()
        self.names = {device.key: device.name for device in store.devices()}
        self._graphs: dict[str, Graph | None] = {}

    def graph(self, record: PlanRecord) -> Graph | None:
        if record.graph_key not in self._graphs:
            self._graphs[record.graph_key] = stored.graph_of(self.store, record.graph_key)
        return self._graphs[record.graph_key]


def answer(name: str, part: ModelGraph, place: Place, shelf: _Shelf) -> Answer:
    """The stored plan that differs in the fewest fields, of the graph that is most like it."""
    found = [(record, _differences(record, part, place, shelf)) for record in shelf.records]
    if not found:
        return Answer(name, part.stage, False, None, None, ())
    record, differences = min(found, key=lambda each: _distance(each[0], each[1], part, shelf))
    about = record.key, record.name, tuple(differences), record.evidence
    if differences:
        return Answer(name, part.stage, False, *about)
    return Answer(name, part.stage, True, *about, _not_compared(record))


def _not_compared(record: PlanRecord) -> tuple[str, ...]:
    from ..planner.plan import Plan

    try:
        return tuple(render.not_compared(Plan.from_json(record.payload)))
    except ValueError:  # a damaged plan is none that runs, which `load` says
        return ()


def _distance(
    record: PlanRecord, differences: list[Difference], part: ModelGraph, shelf: _Shelf
) -> tuple[float, int]:
    """Of the operations first: a plan of other work is far, whatever else agrees."""
    if not any(each.field == "operations" for each in differences):
        return 0.0, len(differences)
    graph = shelf.graph(record)
    if graph is None:
        return 2.0, len(differences)
    old, new = [[n.op for n in g.nodes] for g in (graph, part.captured.graph)]
    alike = SequenceMatcher(a=old, b=new, autojunk=False).quick_ratio()
    return 1.0 - alike, len(differences)


def _differences(
    record: PlanRecord, part: ModelGraph, place: Place, shelf: _Shelf
) -> list[Difference]:
    """All fields of the key, and the evidence, in which the plan is not the model's."""
    from ..planner.settings import default_of
    from ..tuner.records.stored_plans import versions_beside

    found = _of_graph(record, part, shelf)
    if record.device_key != place.profile.key:
        before = shelf.names.get(record.device_key, record.device_key)
        now = place.profile.name
        if before == now:
            before, now = f"{before} ({record.device_key})", f"{now} ({place.profile.key})"
        found.append(Difference("device", before, now, CURES["device"]))
    current = versions_beside(record.versions)
    for name in sorted(current.keys() | record.versions.keys()):
        usual = default_of(name) or "-"
        old, new = record.versions.get(name, usual), current.get(name, usual)
        if old != new:
            found.append(Difference(name, old, new, _VERSION))
    if record.evidence != "measured" and place.measured:
        found.append(Difference("evidence", record.evidence, "measured", CURES["evidence"]))
    return found


def _of_graph(record: PlanRecord, part: ModelGraph, shelf: _Shelf) -> list[Difference]:
    from ..planner.graph.varying import bucket_key, bucket_name
    from ..tuner.records.stored_plans import is_for

    graph = part.captured.graph
    if is_for(record, graph):
        return []
    old = shelf.graph(record)
    if old is None or [n.op for n in old.nodes] != [n.op for n in graph.nodes]:
        return [Difference("operations", *_operations(old, graph), CURES["operations"])]
    if old.numerics != graph.numerics:
        return [Difference("numerics", old.numerics, graph.numerics, CURES["numerics"])]
    found = _of_types(old, graph)
    if bucket_key(graph) is not None and record.bucket_key is not None:
        shapes = "; ".join(f"{each.stored}" for each in found if each.field == "shape")
        return [Difference("sizes", f"tuned at {shapes}", bucket_name(graph), CURES["sizes"])]
    if not found:
        return [
            Difference("operations", "other arguments", _argument(old, graph), CURES["operations"])
        ]
    return found


def _operations(old: Graph | None, new: Graph) -> tuple[str, str]:
    """Where the two lists of operations part, in a few words."""
    if old is None:
        return "a graph that the store does not have", f"{len(new.nodes)} nodes"
    for a, b in zip(old.nodes, new.nodes, strict=False):
        if a.op != b.op:
            return f"{len(old.nodes)} nodes, {a.op} at %{a.id}", f"{len(new.nodes)}, {b.op} there"
    return f"{len(old.nodes)} nodes", f"{len(new.nodes)} nodes"


def _argument(old: Graph, new: Graph) -> str:
    """The first operation whose arguments differ."""
    for a, b in zip(old.nodes, new.nodes, strict=True):
        if (a.args, a.kwargs) != (b.args, b.kwargs):
            return f"{b.op} at %{b.id}"
    return "which outputs there are"


def _of_types(old: Graph, new: Graph) -> list[Difference]:
    """Of the graphs' inputs, by field; the first few of each."""
    pairs = [(old.nodes[i], new.nodes[i]) for i in new.inputs]
    found = []
    for field, shown in (("dtype", _dtype), ("shape", _shape), ("stride", _stride)):
        differ = [(a, b) for a, b in pairs if a.type and b.type and shown(a.type) != shown(b.type)]
        if field == "stride":  # another shape has other strides in any case
            differ = [
                (a, b) for a, b in differ if a.type and b.type and a.type.shape == b.type.shape
            ]
        if differ:
            before = ", ".join(_named(a, b, shown) for a, b in differ[:_SHOWN])
            now = ", ".join(shown(b.type) for _, b in differ[:_SHOWN] if b.type)
            more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
            found.append(Difference(field, before + more, now, CURES[field]))
    return found


def _named(old: Node, new: Node, shown: Any) -> str:
    return f"input {new.name} {shown(old.type)}"


def _dtype(of: TensorType) -> str:
    return of.dtype


def _shape(of: TensorType) -> str:
    return str(list(map(int, of.shape)))


def _stride(of: TensorType) -> str:
    return f"strides {tuple(map(int, of.stride))}"


def _print(each: Answer, location: str) -> None:
    out = render.out()
    head = f"{each.name} ({each.stage})"
    if each.key is None:
        out.print(f"{head}: there is no plan at all in {location}: tune the model", soft_wrap=True)
        return
    about = f"{each.key[: render.KEY]} ({each.plan})"
    if each.hit:
        if each.evidence == "measured":
            out.print(f"{head}: plan {about} runs it", soft_wrap=True)
            for line in each.not_compared:
                out.print(line, soft_wrap=True)
        else:
            only = f'it was not compared ({each.evidence}), so it runs only with evidence="any"'
            out.print(f"{head}: plan {about} fits; {only}", soft_wrap=True)
        return
    out.print(f"{head}: no plan fits; the nearest is {about}", soft_wrap=True)
    made = render.table(
        "field", "stored", "now", "what to do", wide=("stored", "now", "what to do")
    )
    for difference in each.differences:
        made.add_row(difference.field, difference.stored, difference.now, difference.cure)
    out.print(made)
