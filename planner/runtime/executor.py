"""Running a plan: generated kernels, vendors' calls, groups in chunks, Inductor's parts, and ATen
between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..capture.capture import Captured
from ..codegen.source import Program
from ..config import Config
from ..errors import PlanError, Refusal
from ..graph.graph import Graph, kernel_key
from ..groups.group import Subgraph, subgraph
from ..lower import lower
from ..plan import GroupPlan, Plan
from ..regions.chunks import Walk
from ..regions.ways import REGIONAL, way
from ..vendor.vendor import equal
from .chunked import chunked
from .compile import interpreted
from .emit import Emitter, How, Kernels
from .inductor import Boxed, compile_group
from .launch import Launcher
from .layout import match
from .modules import captured_of
from .phases import phase
from .schedule import Unit, schedule

Lower = Callable[..., Program | Refusal]
Load = Callable[..., Launcher]

# A private function of torch; without it, the public one does.
_fast_empty: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


class Executor:
    """`executor(*inputs)` gives the list of the graph's outputs (None where the graph has none).

    `boxed(list_of_inputs)` is the same with less overhead; it empties the list, so that inputs
    that the caller no longer holds are freed after their last use. `text` is what runs.

    device: where the inputs are. guard: the strides of the inputs may differ from the captured
    ones (a backward graph's may); those that a kernel reads are then copied when they do.
    Raises PlanError when the plan does not fit the graph, CompileFailed when a kernel does not
    compile.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        device: torch.device,
        *,
        guard: bool = False,
        lower: Lower = lower,
        load: Load = Launcher,
    ) -> None:
        self.captured, self.plan, self.device = captured, plan, device
        if device.type == "cuda" and device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._count = [0]
        self._bodies_of: list[Executor] = []
        parts = {i: _part(captured, g) for i, g in enumerate(plan.groups) if g.lowering != "aten"}
        units = {i: Unit(i, part.inputs, part.outputs) for i, part in parts.items()}
        known: dict[tuple[str, Config | None], Program] = {}
        order = schedule(captured, units)
        used = {u.group for u in order if u.group is not None}
        names = self._names()
        groups: dict[int, Kernels | Graph | str] = {}
        launchers: list[Launcher] = []
        within = 0
        for i in sorted(used):
            group = plan.groups[i]
            if group.lowering == "inductor":
                names[f"g{i}"] = _inductor(captured, group, units[i])
                groups[i] = f"g{i}"
            elif group.lowering == "vendor":
                groups[i] = _equal(captured.graph, group)
            elif group.lowering in REGIONAL:
                names[f"g{i}"], kernels = self._region(group, lower, load)
                groups[i] = f"g{i}"
                within += kernels
            else:
                # The layers of a model are equal, and are lowered once.
                same = kernel_key(parts[i].graph), group.config
                if same not in known:
                    program = _program(parts[i].graph, group, lower)
                    known[same] = _overlapping(program) if plan.overlaps else program
                program = known[same]
                added = [load(kernel, self.device) for kernel in program.kernels]
                groups[i] = Kernels(program, _register(added, len(launchers), names))
                launchers += added
        self.launchers = tuple(launchers)
        pointers = bool(launchers) and not launchers[0].takes_tensors
        cuda = self.device.type == "cuda" and _fast_empty is not None
        emitter = Emitter(captured, How(pointers, cuda, guard), names)
        self.text = emitter.call(order, groups)
        self.kernels_per_call = emitter.kernels + within
        self._module = _compiled(self.text, names)
        self.boxed = self._guarded(self._module["call"])

    def __call__(self, *inputs: Any) -> list[Any]:
        with torch.no_grad():
            return list(self.boxed(list(inputs)))

    @property
    def calls(self) -> int:
        """How often it ran."""
        return self._count[0]

    @contextmanager
    def filled(self, byte: int) -> Iterator[None]:
        """Within it, memory that the call allocates holds this byte everywhere: what no kernel
        writes then shows."""
        within = [self, *self._bodies_of]
        before = [each._module["empty"] for each in within]
        for each, empty in zip(within, before, strict=True):
            each._module["empty"] = partial(_filled, empty, byte)
        try:
            yield
        finally:
            for each, empty in zip(within, before, strict=True):
                each._module["empty"] = empty

    def discount(self, calls: int) -> None:
        """Take back calls that computed nothing (those that a CUDA graph recorded)."""
        self._count[0] -= calls

    def _region(self, group: GroupPlan, lower: Lower, load: Load) -> tuple[Boxed, int]:
        """The call that runs a group by its bodies, and how many kernels of ours it launches."""
        found = walked(self.captured.graph, group)
        if len(group.bodies) != len(found.bodies):
            raise PlanError(
                f"the plan's group of nodes {group.nodes} has {len(group.bodies)} bodies for "
                f"{len(found.bodies)} kinds of chunks"
            )
        bodies = [
            Executor(captured_of(body, self.device), plan, self.device, lower=lower, load=load)
            for body, plan in zip(found.bodies, self._bodies(group), strict=True)
        ]
        self._bodies_of += bodies
        kernels = sum(bodies[chunk.body].kernels_per_call for chunk in found.chunks())
        return chunked(found, [body.boxed for body in bodies], self.device), kernels

    def _bodies(self, group: GroupPlan) -> list[Plan]:
        """The plans of its bodies, launched as the whole plan is."""
        return [replace(body, overlaps=self.plan.overlaps) for body in group.bodies]

    def _names(self) -> dict[str, Any]:
        names: dict[str, Any] = {"count": self._count, "match": match, "device": self.device}
        names["empty"] = torch.empty_strided
        if self.device.type == "cuda":
            names["empty"] = _fast_empty or torch.empty_strided
            names["current_stream"] = torch._C._cuda_getCurrentRawStream
            names["device_index"] = self.device.index
        else:
            names["current_stream"], names["device_index"] = int, 0
        return names

    def _guarded(self, call: Boxed) -> Boxed:
        """Kernels, streams and memory belong to the current device: on a machine with several,
        make ours the current one."""
        if self.device.type != "cuda" or torch.cuda.device_count() == 1:
            return call
        index, current = self.device.index, torch.cuda.current_device

        def guarded(args: list[Any]) -> Sequence[Any]:
            if current() == index:
                return call(args)
            with torch.cuda.device(index):
                return call(args)

        return guarded


def _part(captured: Captured, group: GroupPlan) -> Subgraph:
    size = len(captured.graph.nodes)
    if not group.nodes or max(group.nodes) >= size:
        raise PlanError(f"the plan names nodes {group.nodes} of a graph of {size} nodes")
    part = subgraph(captured.graph, group.nodes, group.copies)
    if group.lowering in ("triton", "vendor", *REGIONAL):
        nodes = captured.graph.nodes
        odd = [nodes[i].name for i in part.inputs if nodes[i].type is None]
        if odd:
            raise PlanError(f"the plan's group of nodes {group.nodes} reads {odd}: no tensors")
    return part


def _program(part: Graph, group: GroupPlan, lower: Lower) -> Program:
    if group.config is None:
        raise PlanError(f"the plan's group of nodes {group.nodes} has no config")
    with phase("generate"):
        program = lower(part, group.config, interpreted=interpreted())
    if isinstance(program, Refusal):
        raise PlanError(f"the plan's group of nodes {group.nodes} is refused: {program}")
    return program


def _overlapping(program: Program) -> Program:
    """With each kernel launched while the one before it, whose that may be, ends."""
    kernels = tuple(replace(kernel, dependent=True) for kernel in program.kernels)
    return replace(program, kernels=kernels)


def walked(graph: Graph, group: GroupPlan) -> Walk:
    """How a region runs. Raises PlanError where it cannot."""
    found = way(subgraph(graph, group.nodes, group.copies).graph, group.lowering, group.options)
    if isinstance(found, Refusal):
        raise PlanError(f"the plan's group of nodes {group.nodes} is refused: {found}")
    return found


def _equal(graph: Graph, group: GroupPlan) -> Graph:
    found = equal(subgraph(graph, group.nodes, group.copies).graph, group.options)
    if found is None:
        raise PlanError(f"no call {group.options!r} computes the plan's group {group.nodes}")
    return found


def _inductor(captured: Captured, group: GroupPlan, unit: Unit) -> Boxed:
    return compile_group(captured, group.nodes, unit.outputs, group.options)


def _register(added: Sequence[Launcher], first: int, names: dict[str, Any]) -> tuple[str, ...]:
    found = []
    for i, launcher in enumerate(added, first):
        names[f"k{i}"], names[f"k{i}u"] = launcher.aligned, launcher.unaligned
        found.append(f"k{i}")
    return tuple(found)


def _filled(empty: Callable[..., torch.Tensor], byte: int, *args: Any, **named: Any) -> Any:
    made = empty(*args, **named)
    raw = torch.empty(0, dtype=torch.uint8, device=made.device).set_(made.untyped_storage())
    raw.fill_(byte)
    return made


def _compiled(text: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The module of the text, with `call` in it."""
    module = dict(names)
    exec(compile(text, "<fusionplan executor>", "exec"), module)
    return module
