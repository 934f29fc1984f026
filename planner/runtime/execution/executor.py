"""Running a plan: its groups by what their lowerings build, and ATen between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...capture.capture import Captured
from ...capture.source_lines import source_lines
from ...capture.writes_in_place import Update
from ...codegen.source import Program
from ...config import Config
from ...errors import PlanError, Refusal
from ...flat import flat
from ...graph.graph import Graph, kernel_key
from ...groups.group import Subgraph, subgraph
from ...groups.unwritten import places, unwritten
from ...lower import lower
from ...lowerings.base import Boxed, Built, Copied, GroupCall, GroupSite, PreparedCall, program_of
from ...lowerings.inductor import compile_group
from ...lowerings.registry import TRITON, lowering_of
from ...plan import GroupPlan, Plan
from ..machine_code.compile import CompileFailed, interpreted
from ..machine_code.compile_ahead import compile_ahead
from ..machine_code.launch import Launcher
from ..phases import phase
from .ahead import LaunchAhead, ahead, prepared_names
from .as_traced import AsTraced
from .batched import Batch, batches, in_batches
from .executor_code import (
    EmittedAhead,
    EmittedCalls,
    EmittedGroup,
    EmittedKernels,
    Emitter,
    Ending,
    How,
)
from .joined import joined
from .modules import captured_of
from .one_by_one import set_one_by_one
from .profiled import is_profiled, label, within_range
from .schedule import schedule
from .strides import match
from .substitutes import Substitutes
from .units import ScheduledUnit

log = logging.getLogger(__name__)

Lower = Callable[..., Program | Refusal]
LoadLauncher = Callable[..., Launcher]
Made = tuple[Built | PreparedCall | LaunchAhead, list[Launcher]]
"""What runs a group, and its kernels if it has any."""

# A private function of torch; without it, the public one does.
_fast_empty: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


class Executor:
    """`executor(*inputs)` gives the list of the graph's outputs (None where the graph has none).

    `boxed(list_of_inputs)` is the same with less overhead; it empties the list, so that inputs
    that the caller no longer holds are freed after their last use. `text` is what runs.

    device: where the inputs are. guard: the strides of the inputs may differ from the captured
    ones (a backward graph's may); those that a kernel reads are then copied when they do.
    substitutes: finds what runs instead of a group that does not compile; `plan` is then the plan
    that runs. Without it such a group is an error: what is measured must be what was asked for.
    within: it runs in the midst of another, whose kernels may write what its graph only reads.
    updates: as in the user's code, what the graph computes for its inputs is copied into them, and
    is no output. Without it the same inputs may be given again: what a graph writes in place is the
    same the second time.
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
        load: LoadLauncher = Launcher,
        substitutes: Substitutes | None = None,
        within: bool = False,
        updates: bool = False,
    ) -> None:
        self.captured, self.plan, self.device = captured, plan, device
        if device.type == "cuda" and device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._strides_vary = guard
        self.kernels_per_call = 0
        self._count = [0]
        self._bodies_of: list[Executor] = []
        self._owners: list[int] = []
        """The group of each launcher."""
        self._lower, self._load, self._substitutes = lower, load, substitutes
        self._programs: dict[tuple[str, Config, frozenset[int]], Program | Refusal] = {}
        self._early = plan.overlaps and not within
        # A plan is timed with launches that overlap and without, so that a tune chooses both.
        together = (plan.overlaps or interpreted()) and not within
        self._batches = self._batched() if together else ()
        self._prepares = together and not guard
        order, made = self._with_ahead()
        if self._early:
            order, made = self._joined(order, made)
            made = self._beginning(order, made)
        names = self._names()
        groups = self._emitted(made, names)
        self._write(order, groups, names, captured.updates if updates else ())
        names["is_profiled"], names["profiled"] = is_profiled, self._profiled
        names["is_grad_enabled"] = torch.is_grad_enabled
        names["without_gradients"] = self._without_gradients
        self._module = _compiled(self.text + self._one_by_one, names)
        self._ranged: Boxed | None = None
        self.boxed = self._guarded(self._module["call"])
        set_one_by_one(self.boxed, self._module.get("one_by_one"))

    def _emitted(self, made: Mapping[int, Made], names: dict[str, Any]) -> dict[int, EmittedGroup]:
        """The groups as the text names them. What the text calls is put among the names, and the
        launchers are kept."""
        groups: dict[int, EmittedGroup] = {}
        launchers: list[Launcher] = []
        for i, (built, added) in sorted(made.items()):
            own = _register(added, len(launchers), names)
            self._owners += [built.owner if isinstance(built, LaunchAhead) else i] * len(added)
            launchers += added
            match built:
                case GroupCall() as call:
                    names[f"g{i}"] = call.run
                    groups[i] = f"g{i}"
                    self.kernels_per_call += call.kernels
                case Program() as program:
                    groups[i] = EmittedKernels(program, own)
                case Copied(calls=calls, copy=copy):
                    groups[i] = Ending(calls, EmittedKernels(copy, own))
                case Graph() as calls:
                    groups[i] = calls
                case PreparedCall() as two:
                    groups[i] = EmittedCalls(two.calls, two.reads, prepared_names(i, two))
                case LaunchAhead(program=program, given=given):
                    groups[i] = EmittedAhead(EmittedKernels(program, own), given)
        self.launchers = tuple(launchers)
        return groups

    def _write(
        self,
        order: Sequence[ScheduledUnit],
        groups: Mapping[int, EmittedGroup],
        names: dict[str, Any],
        updates: Sequence[Update],
    ) -> None:
        """Writes `text`. Where a group reads what may not be as traced, a second text asks in the
        first call whether it is."""
        pointers = bool(self.launchers) and not self.launchers[0].takes_tensors
        how = How(
            pointers, self.device.type == "cuda" and _fast_empty is not None, self._strides_vary
        )
        emitter = Emitter(self.captured, how, names)
        self.text = emitter.call(order, groups, updates)
        # With several devices the current one is asked for first.
        self._one_by_one = emitter.one_by_one if self._is_only_device else ""
        self.kernels_per_call += emitter.kernels
        if emitter.doubtful:
            asking = Emitter(self.captured, replace(how, asks=True), names)
            self.text += asking.call(order, groups, updates)
            first = AsTraced(self.captured, self.device, self.plan.graph_key)
            names["noted"], names["by_aten"] = first.noted, first.by_aten
            names["unseen"], names["ended"] = first.unseen, first.ended

    def __call__(self, *inputs: Any) -> list[Any]:
        with torch.no_grad():
            return list(self.boxed(list(inputs)))

    def _profiled(self, args: list[Any]) -> Sequence[Any]:
        """A call while a profiler runs: the same, with the source of each launch told."""
        if self._ranged is None:
            lines, names = source_lines(self.captured.fx_nodes), dict(self._module)
            for i, (launcher, group) in enumerate(zip(self.launchers, self._owners, strict=True)):
                name = label(launcher.source.name, self.plan.groups[group].nodes, lines)
                for each in (f"k{i}", f"k{i}u"):
                    names[each] = within_range(names[each], name)
            names["is_profiled"] = lambda: False
            self._ranged = _compiled(self.text, names)["call"]
        return self._ranged(args)

    @property
    def calls(self) -> int:
        """The number of calls."""
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

    def _batched(self) -> tuple[Batch, ...]:
        """The groups that run together; their kernels take the place of those of the plan."""
        flattened = partial(flat, interpreted=interpreted())
        return batches(self.captured.graph, self.plan, flattened)

    def _built_in_batches(self) -> tuple[tuple[ScheduledUnit, ...], dict[int, Made]]:
        """As `_made`, with what runs the batches; one that does not compile is no batch."""
        while True:
            order, made = self._made()
            failed: list[Batch] = []
            for batch in self._batches:
                program = batch.program
                if self.plan.overlaps:
                    program = _overlapping(program)
                try:
                    loaded = [self._load(kernel, self.device) for kernel in program.kernels]
                except CompileFailed as error:
                    log.warning("kernels of one text are launched one by one: %s", error)
                    failed.append(batch)
                else:
                    made[batch.groups[0]] = program, loaded
            if not failed:
                return in_batches(order, self._batches), made
            self._batches = tuple(b for b in self._batches if b not in failed)

    def _with_ahead(self) -> tuple[tuple[ScheduledUnit, ...], dict[int, Made]]:
        """As `_built_in_batches`, with what reads inputs alone in few launches before all others;
        where that does not compile, without."""
        order, made = self._built_in_batches()
        if not self._prepares:
            return order, made
        graph = self.captured.graph
        able = {
            i: built for i, (built, _) in made.items() if isinstance(built, (Program, PreparedCall))
        }
        units: list[ScheduledUnit] = []
        try:
            for number, found in enumerate(ahead(graph, order, able, unwritten(graph)), 1):
                program = _overlapping(found.program) if self.plan.overlaps else found.program
                loaded = [self._load(kernel, self.device) for kernel in program.kernels]
                made[-number] = replace(found, program=program), loaded
                units.append(ScheduledUnit(-number, found.inputs, found.outputs))
        except CompileFailed as error:
            log.warning("kernels that read inputs alone are launched one by one: %s", error)
            self._prepares = False
            return self._built_in_batches()
        done = {
            i for built, _ in made.values() if isinstance(built, LaunchAhead) for i in built.groups
        }
        rest = (unit for unit in order if unit.group not in done)
        return (*units, *rest), {i: one for i, one in made.items() if i not in done}

    def _made(self) -> tuple[tuple[ScheduledUnit, ...], dict[int, Made]]:
        """The order in which the plan's groups and other nodes run, and what runs the groups."""
        made: dict[int, Made] = {}
        together = {i for batch in self._batches for i in batch.groups}
        while True:
            plan = self.plan
            own = {i: g for i, g in enumerate(plan.groups) if not lowering_of(g).one_by_one}
            parts = {i: _part(self.captured, group) for i, group in own.items()}
            units = {i: ScheduledUnit(i, p.inputs, p.outputs) for i, p in parts.items()}
            order = schedule(self.captured, units)
            used = sorted({u.group for u in order if u.group is not None} - together)
            held = self._compiled_ahead([(own[i], parts[i]) for i in used if i not in made])
            for i in used:
                if i not in made:
                    found = self._group(i, parts[i])
                    if found is not None:
                        made[i] = found
            del held
            # Where ATen runs a group instead, each of its nodes has a place of its own.
            if all(i in made for i in used):
                return order, {i: made[i] for i in used}

    def _compiled_ahead(self, groups: Sequence[tuple[GroupPlan, Subgraph]]) -> list[Any]:
        """Triton's kernels of these groups that were not compiled before; to be held until they are
        loaded."""
        if self._load is not Launcher:
            return []
        programs = [
            self._lowered(self._unwritten(group, part), part.graph, group.config)
            for group, part in groups
            if group.config is not None and lowering_of(group) is TRITON
        ]
        kernels = [
            k for program in programs if isinstance(program, Program) for k in program.kernels
        ]
        return compile_ahead(kernels, self.device)

    def _joined(
        self, order: Sequence[ScheduledUnit], made: Mapping[int, Made]
    ) -> tuple[tuple[ScheduledUnit, ...], dict[int, Made]]:
        """The same with small kernels that are neighbours in one launch."""
        programs = {i: built for i, (built, _) in made.items() if isinstance(built, Program)}
        units: list[ScheduledUnit] = []
        found: dict[int, Made] = {}
        for unit, program in joined(order, programs):
            units.append(unit)
            if unit.group is None:
                continue
            found[unit.group] = made[unit.group]
            if program is not None:
                launchers = [self._load(kernel, self.device) for kernel in program.kernels]
                found[unit.group] = program, launchers
        return tuple(units), found

    def _beginning(
        self, order: Sequence[ScheduledUnit], made: Mapping[int, Made]
    ) -> dict[int, Made]:
        """The same with the first kernel of ours launched plainly: when it begins, whatever wrote
        the inputs before has ended. So those after it may read them before they wait."""
        found = dict(made)
        for unit in order:
            if unit.group is None:
                continue
            built, launchers = found[unit.group]
            program = built.program if isinstance(built, LaunchAhead) else _program_of(built)
            if program is None:
                continue
            for place, kernel in enumerate(program.kernels):
                if kernel.grid > 0:
                    first = self._load(replace(kernel, dependent=False), self.device)
                    found[unit.group] = built, [*launchers[:place], first, *launchers[place + 1 :]]
                    return found
        return found

    def _group(self, number: int, part: Subgraph) -> Made | None:
        """What runs a group; None where it is left to ATen after all."""
        group = self.plan.groups[number]

        def build(group: GroupPlan) -> Made:
            built = self._built(group, part)
            program = _program_of(built)
            kernels = program.kernels if program else ()
            return built, [self._load(kernel, self.device) for kernel in kernels]

        if self._substitutes is None:
            return build(group)
        runs, found = self._substitutes.build(group, part.graph, build)
        if runs is not group:
            groups = (*self.plan.groups[:number], runs, *self.plan.groups[number + 1 :])
            self.plan = replace(self.plan, groups=groups)
        return found

    def _built(self, group: GroupPlan, part: Subgraph) -> Built | PreparedCall:
        early = self._unwritten(group, part)

        def lowered(graph: Graph, config: Config) -> Program | Refusal:
            # Another graph reads what the calls before it have given.
            return self._lowered(early if graph is part.graph else frozenset(), graph, config)

        site = GroupSite(
            part.graph,
            group.config,
            group.options,
            group.bodies,
            self.device,
            lowered,
            partial(compile_group, self.captured, group.nodes, part.outputs),
            self._body,
        )
        two = lowering_of(group).prepared(site) if self._prepares else None
        if two is not None and _reads(part, two) <= unwritten(self.captured.graph):
            return two
        built = lowering_of(group).build(site)
        if isinstance(built, Refusal):
            raise PlanError(f"the plan's group of nodes {group.nodes} is refused: {built}")
        return built

    def _unwritten(self, group: GroupPlan, part: Subgraph) -> frozenset[int]:
        """The inputs of a group, by place, that its first kernel may read before it waits."""
        own = (self.captured.graph, part.inputs, group.nodes)
        return places(*own) if self._early else frozenset()

    def _lowered(self, early: frozenset[int], part: Graph, config: Config) -> Program | Refusal:
        """The kernels of a group. The layers of a model are equal, and are lowered once."""
        same = kernel_key(part), config, early
        if same not in self._programs:
            more = {"unwritten": early} if early else {}
            with phase("generate"):
                program = self._lower(part, config, interpreted=interpreted(), **more)
            if self.plan.overlaps and isinstance(program, Program):
                program = _overlapping(program)
            self._programs[same] = program
        return self._programs[same]

    def _body(self, graph: Graph, plan: Plan) -> Executor:
        """What runs a graph that stands for a group, its kernels launched as the whole plan's."""
        plan = replace(plan, overlaps=self.plan.overlaps)
        captured = captured_of(graph, self.device)
        body = Executor(
            captured,
            plan,
            self.device,
            lower=self._lower,
            load=self._load,
            substitutes=self._substitutes,
            within=True,
        )
        self._bodies_of.append(body)
        return body

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

    @property
    def _is_only_device(self) -> bool:
        return self.device.type != "cuda" or torch.cuda.device_count() == 1

    def _without_gradients(self, args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return self.boxed(args)

    def _guarded(self, call: Boxed) -> Boxed:
        """Kernels, streams and memory belong to the current device: on a machine with several,
        make ours the current one."""
        if self._is_only_device:
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
    if not lowering_of(group).takes_numbers:
        nodes = captured.graph.nodes
        odd = [nodes[i].name for i in part.inputs if nodes[i].type is None]
        if odd:
            raise PlanError(f"the plan's group of nodes {group.nodes} reads {odd}: no tensors")
    return part


def _program_of(built: Built | PreparedCall | LaunchAhead) -> Program | None:
    """The kernels that run a group in its place."""
    return None if isinstance(built, (PreparedCall, LaunchAhead)) else program_of(built)


def _reads(part: Subgraph, two: PreparedCall) -> set[int]:
    """The nodes that the kernels read that run before a group."""
    return {part.inputs[place] for each in two.preparations for place in each.inputs}


def _overlapping(program: Program) -> Program:
    """The program with each kernel launched before the previous one in the stream has finished
    (programmatic dependent launch)."""
    kernels = tuple(replace(kernel, dependent=True) for kernel in program.kernels)
    return replace(program, kernels=kernels)


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
