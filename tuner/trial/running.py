"""A candidate for a group, bound to its inputs and outputs: a call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...planner.codegen.source import Program
from ...planner.errors import Refusal
from ...planner.graph.graph import Graph, TensorType
from ...planner.lower import lower
from ...planner.lowerings.base import Boxed, Copied, GroupCall, GroupSite
from ...planner.lowerings.registry import lowering_of
from ...planner.plan import Plan
from ...planner.runtime.execution.executor import Executor
from ...planner.runtime.execution.modules import captured_of
from ...planner.runtime.execution.strides import match
from ...planner.runtime.machine_code.compile import interpreted
from ...planner.runtime.machine_code.launch import Launcher
from .evaluate import Evaluator
from .inputs import empty
from .outcome import Candidate

KernelRun = Callable[[], Sequence[torch.Tensor]]


def output_types(group: Graph) -> tuple[TensorType, ...]:
    """Types of the outputs. Raises ValueError for one that is no single tensor."""
    types = []
    for output in group.outputs:
        kind = None if output is None else group.nodes[output].type
        if kind is None:
            raise ValueError("an output of the group is no single tensor")
        types.append(kind)
    return tuple(types)


class LoadedKernels:
    """The generated kernels of a group, loaded on a device. Raises CompileFailed."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program, self.device = program, device
        self.launchers = [Launcher(kernel, device) for kernel in program.kernels]

    def bind(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> KernelRun:
        """A call that launches all kernels over these tensors, which it keeps alive."""
        temporaries = [empty(kind, self.device) for kind in self.program.temporaries]
        outputs = self.program.placed(inputs, outputs)
        kinds = {"in": inputs, "out": outputs, "tmp": temporaries}
        stream = torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else 0
        launches: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        for launcher in self.launchers:
            tensors = [kinds[b.kind][b.index] for b in launcher.source.buffers]
            aligned = all(t.data_ptr() % 16 == 0 for t in tensors)
            arguments: list[Any] = list(tensors)
            if not launcher.takes_tensors:
                arguments = [t.data_ptr() for t in tensors]
            launch = launcher.aligned if aligned else launcher.unaligned
            launches.append((launch, tuple(arguments)))

        def run() -> Sequence[torch.Tensor]:
            for launch, arguments in launches:
                launch(stream, *arguments)
            return outputs

        run.keeps = (inputs, temporaries)  # type: ignore[attr-defined]  # addresses do not
        return run


@dataclass(frozen=True, slots=True)
class Loaded:
    """A candidate that can be bound. kernels: None where it is not generated. partial: it writes
    only part of its outputs (see `partial`)."""

    bind: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], KernelRun]
    kernels: LoadedKernels | None = None
    partial: bool = False


def load(group: Graph, candidate: Candidate, device: torch.device) -> Loaded | Refusal:
    """Something to bind to inputs and outputs, or why there is none. Raises CompileFailed."""
    site = GroupSite(
        group,
        candidate.config,
        candidate.options,
        (),
        device,
        partial(lower, interpreted=interpreted()),
        partial(_inductor, group, device),
        partial(_executor, device),
    )
    built = lowering_of(candidate).build(site)
    match built:
        case Refusal():
            return built
        case GroupCall():
            return _calls(lambda *inputs: built.run(list(inputs)))
        case Graph():
            evaluator = Evaluator(built, device, in_place=True)
            own = built is group
            return _calls(evaluator if own else _matched(evaluator, output_types(group)))
        case Copied(calls=calls, copy=copy):
            types = output_types(group)
            return _calls(_copied(Evaluator(calls, device), LoadedKernels(copy, device), types))
    kernels = LoadedKernels(built, device)
    return Loaded(kernels.bind, kernels)


def _calls(function: Callable[..., Sequence[torch.Tensor]]) -> Loaded:
    def bind(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> KernelRun:
        return lambda: function(*inputs)

    return Loaded(bind)


def _matched(
    function: Callable[..., Sequence[torch.Tensor]], types: Sequence[TensorType]
) -> Callable[..., Sequence[torch.Tensor]]:
    """The function with its results in the strides that the group's readers count on."""

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        results = function(*inputs)
        return [match(r, t.shape, t.stride) for r, t in zip(results, types, strict=True)]

    return run


def _copied(
    function: Callable[..., Sequence[torch.Tensor]],
    copy: LoadedKernels,
    types: Sequence[TensorType],
) -> Callable[..., Sequence[torch.Tensor]]:
    """The function with its results copied by kernels of ours."""

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return copy.bind(function(*inputs), [empty(kind, copy.device) for kind in types])()

    return run


def _inductor(group: Graph, device: torch.device, mode: str) -> Boxed:
    evaluator = Evaluator(group, device)
    compiled: Callable[..., Sequence[torch.Tensor]] = torch.compile(
        evaluator, mode=mode or "default", dynamic=False, fullgraph=True
    )
    return lambda args: compiled(*args)


def _executor(device: torch.device, graph: Graph, plan: Plan) -> Executor:
    return Executor(captured_of(graph, device), plan, device)
