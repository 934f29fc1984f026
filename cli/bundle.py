"""`planner bundle`: a model's plans with their machine code, in one signed file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..db import Store
from . import render
from .captured import captured_graphs, named_model
from .errors import UsageError
from .export import words
from .options import (
    DeviceOption,
    DynamicOption,
    InputsOption,
    JsonOption,
    ModelArgument,
    NumericsOption,
    OutputOption,
    StoreOption,
    TargetOption,
    TrainingOption,
    numerics_of,
)

if TYPE_CHECKING:
    from ..bundles.contents import Code
    from ..db import PlanRecord, Snapshot
    from ..planner.graph.graph import Graph, Numerics
    from ..planner.plan import Plan
    from ..tuner.session.place import Place
    from .modelfile import NamedModel

EVIDENCE = ("measured", "any")


def bundle(
    model: ModelArgument,
    output: OutputOption = Path("model.plan"),
    inputs: InputsOption = None,
    store: StoreOption = None,
    device: DeviceOption = None,
    target: TargetOption = None,
    training: TrainingOption = False,
    dynamic: DynamicOption = False,
    numerics: NumericsOption = "fast",
    evidence: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="measured: only plans that were compared with eager and torch.compile. any: all "
            "plans.",
        ),
    ] = "measured",
    json: JsonOption = False,
) -> None:
    """Write a model's stored plans and the machine code of their kernels to one file, signed with
    your key.

    On another machine that trusts your key, fusionplan.load(model, bundle=FILE) runs the model by
    this file, without a store. On the same kind of GPU with the same versions no kernel is compiled
    there; only groups that run by torch.compile are. If the model has no stored plan, the exit code
    is 5.
    """
    if evidence not in EVIDENCE:
        raise UsageError(f"--evidence {evidence}: give one of {', '.join(EVIDENCE)}")
    from ..bundles.contents import Contents, plan_kernels, write
    from ..bundles.making import code_of, from_others
    from ..bundles.signing import private_key, shown
    from ..planner.runtime.machine_code.compile import Target

    private = private_key()
    with Store.open(store, create=False, read_only=True) as opened:
        named, place = named_model(model, inputs, device, target)
        name, precise = named.name, numerics_of(numerics)
        captured = captured_graphs(named, training=training, dynamic=dynamic, numerics=precise)
        graphs = [part.captured.graph for part in captured.parts]
        found = [_plan(opened, graph, place.profile.key, name, evidence) for graph in graphs]
        kernels = sorted(plan_kernels(plan.to_json() for _, plan in found))
        records = opened.snapshot([record.key for record, _ in found], kernels)
    plans = [plan for _, plan in found]
    code = code_of(zip(graphs, plans, strict=True), Target(capability=place.profile.capability))
    runs_as_captured = not (training or dynamic) and target is None and _runs_here(place)
    kept = _opened(named, plans, precise) if runs_as_captured else {}
    size = write(output, Contents(records, code, {"model": name}, opened=kept), private)
    written = _Written(
        *(output, size, shown(private.public), from_others(plans), place.profile.name, code),
        records,
        len(kept),
    )
    if json:
        render.print_json(written.to_json() | {"plans": [record.key for record, _ in found]})
        return
    for line in written.lines():
        render.out().print(line, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Written:
    """A bundle that was written. size: in bytes; others: groups that torch.compile compiles;
    opened: graphs that are there as AOTAutograd gives them."""

    file: Path
    size: int
    signer: str
    others: int
    device: str
    code: Code
    records: Snapshot
    opened: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "bytes": self.size,
            "signer": self.signer,
            "machine_code": len(self.code.kernels),
            "host_modules": len(self.code.host),
            "inductor": self.others,
            "opened_graphs": self.opened,
        }

    def lines(self) -> Iterator[str]:
        made_with = f"{self.device}, made with {render.pairs(dict(self.code.maker))}"
        count = len(self.code.kernels)
        yield f"{self.file}: {words(self.records)}"
        yield f"machine code of {count} kernels for {made_with}; {self.size:,} bytes"
        if self.opened:
            graphs = render.counted({"graphs": self.opened})
            yield f"{graphs} that a process takes over without AOTAutograd"
        if self.others:
            yield f"{self.others} groups are torch.compile's, which compiles them at the start"
        yield f"signed by {self.signer}"


def _opened(named: NamedModel, plans: Sequence[Plan], numerics: Numerics) -> dict[str, str]:
    """The model's graphs as AOTAutograd gives them. What the model prints goes to stderr."""
    from ..bundles.making import opened_of

    by_key = {plan.graph_key: plan for plan in plans}
    with contextlib.redirect_stdout(sys.stderr):
        return opened_of(named.model, named.call.run, by_key, numerics)


def _runs_here(place: Place) -> bool:
    """Whether kernels run on the device that the model is on."""
    from ..planner.runtime.machine_code.compile import interpreted

    return place.device.type == "cuda" or interpreted()


def _plan(
    store: Store, graph: Graph, device_key: str, name: str, evidence: str
) -> tuple[PlanRecord, Plan]:
    """The stored plan by which `fusionplan.load` runs the graph. Raises PlanError."""
    from ..planner.errors import PlanError
    from ..planner.graph.graph import key
    from ..planner.plan import Plan
    from ..tuner.records.stored_plans import plans_that_fit

    for record in plans_that_fit(store, graph, device_key):
        if evidence == "any" or record.evidence == "measured":
            return record, Plan.from_json(record.payload)
    raise PlanError(
        f"{store.location} has no {'' if evidence == 'any' else 'measured '}plan for graph "
        f"{key(graph)[:12]} of {name}: tune it, or ask planner why-miss what differs"
    )
