"""The machine code of a model's plans, compiled for the device that they are for, and the model's
graphs as AOTAutograd gives them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..planner.codegen.source import KernelSource
from ..planner.errors import PlanError, Refusal
from ..planner.flat import flat
from ..planner.graph.graph import Graph, Numerics, key
from ..planner.groups.group import subgraph
from ..planner.groups.unwritten import places
from ..planner.lower import lower
from ..planner.lowerings.nested import groups_within
from ..planner.lowerings.registry import lowering_of
from ..planner.plan import Plan
from ..planner.runtime.execution.batched import batches
from ..planner.runtime.machine_code import host_code, ready
from ..planner.runtime.machine_code.compile import (
    Compiled,
    CompileFailed,
    Target,
    active_target,
    compile_kernel,
    machine_code,
)
from ..planner.runtime.machine_code.launch import plain
from ..planner.runtime.machine_code.ready import MachineCode
from .contents import Code

log = logging.getLogger(__name__)


def code_of(planned: Iterable[tuple[Graph, Plan]], target: Target) -> Code:
    """The machine code of all kernels that the plans of these graphs launch, for buffers that are
    aligned and for others. Where a device of the target is at hand, also the modules by which
    Triton launches them. Raises PlanError, CompileFailed."""
    import torch

    at_hand = torch.cuda.is_available() and active_target() == target
    found: dict[str, MachineCode] = {}
    with host_code.recorded() as modules:
        for source in dict.fromkeys(s for graph, plan in planned for s in kernels(graph, plan)):
            for compiled in _compiled(source, target):
                code = machine_code(compiled)
                found[code.key] = code
                if at_hand:
                    _ = compiled.kernel.run  # loads it, for which Triton builds its modules
        host = host_code.taken(modules) if at_hand else []
    return Code(ready.maker(), tuple(found.values()), tuple(host))


def kernels(graph: Graph, plan: Plan) -> Iterator[KernelSource]:
    """The kernels of a plan, as its executor launches them. Raises PlanError where a group has
    none: the plan was made by other versions."""
    for each in groups_within(graph, plan):
        group = each.group
        if group.config is None:
            continue
        part = subgraph(each.graph, group.nodes, group.copies)
        is_early = plan.overlaps and each.graph is graph
        early = places(graph, part.inputs, group.nodes) if is_early else frozenset[int]()
        program = lower(part.graph, group.config, unwritten=early)
        if isinstance(program, Refusal):
            raise PlanError(f"group {each.number} has no kernel ({program}); tune the model again")
        for source in program.kernels:
            yield replace(source, dependent=True) if plan.overlaps else source
    for batch in batches(graph, plan, flat) if plan.overlaps else ():
        for source in batch.program.kernels:
            yield replace(source, dependent=True)


def _compiled(source: KernelSource, target: Target) -> Iterator[Compiled]:
    yield compile_kernel(source, target)
    try:
        other, _ = plain(source)
        found = compile_kernel(other, target, aligned=False)
    except CompileFailed as error:
        if error.transient:
            raise
        return  # It takes aligned buffers alone.
    yield found


def opened_of(
    model: Callable[..., Any],
    call: Callable[[Callable[..., Any]], object],
    plans: Mapping[str, Plan],
    numerics: Numerics,
) -> dict[str, str]:
    """The graphs of a model of inference as AOTAutograd gives them, by which another process starts
    without it: what is seen in two calls by these plans, by graph key. Empty where the model does
    not run here. call: calls what it is given as the model is called."""
    import torch

    from ..planner.runtime.dispatch import kept_files
    from ..planner.runtime.dispatch.dispatch import Dispatcher
    from ..planner.runtime.dispatch.plan_runners import Policy, Sources

    def find(captured: Any) -> Plan | str:
        return plans.get(key(captured.graph), "it is not in the bundle")

    torch._dynamo.reset()  # Of what was captured before, nothing is compiled again.
    dispatcher = Dispatcher(Policy(numerics=numerics, remembers=True), Sources(find))
    fast = torch.compile(model, backend=dispatcher, dynamic=False)
    with kept_files.recorded() as found, torch.no_grad():
        try:
            for _ in range(2):
                call(fast)
        except Exception as error:  # noqa: BLE001 - the bundle is good without them
            log.info("the bundle has no graphs as they were opened: %s", error)
            return {}
    return dict(found)


def from_others(plans: Iterable[Plan]) -> int:
    """How many groups of the plans torch.compile runs, which compiles them on its own."""
    waiting, count = list(plans), 0
    while waiting:
        for group in waiting.pop().groups:
            count += lowering_of(group).slow
            waiting += group.bodies
    return count
