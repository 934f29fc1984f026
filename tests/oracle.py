"""The one oracle of every kernel: captured groups, their programs run in Triton's interpreter, and
the accuracy rule: within twice eager's own error against float64, plus rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from fusionplan.planner.capture.capture import Captured, capture, decompositions
from fusionplan.planner.codegen.source import Program
from fusionplan.planner.config import Config
from fusionplan.planner.costs.device import H200
from fusionplan.planner.errors import Refusal
from fusionplan.planner.graph import ops
from fusionplan.planner.graph.graph import Graph, TensorType
from fusionplan.planner.groups.group import Subgraph, subgraph, with_free_nodes
from fusionplan.planner.lower import lower
from fusionplan.planner.runtime.machine_code.compile import interpreted
from fusionplan.planner.runtime.machine_code.launch import Launcher
from fusionplan.planner.space.space import Space, space_of
from torch._dynamo.backends.common import aot_autograd

T = TypeVar("T")
DEVICE = "cpu" if interpreted() else "cuda"


def data(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Random numbers on the device of the tests, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def space(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> Space:
    """The configs on an H200 of all that a function does, as one group."""
    found = space_of(whole_group(captured(function, inputs)[0].graph).graph, H200)
    assert isinstance(found, Space), found
    return found


def captured(
    function: Callable[..., object], inputs: Sequence[torch.Tensor]
) -> tuple[Captured, list[torch.Tensor]]:
    """The one graph of a function, captured as the backend captures it, and its own inputs. The
    last one is kept: a test asks for its space and then for a check."""
    if not _is_last(function, inputs):
        (only,) = each_graph(function, inputs, lambda gm, _: capture(gm))
        _LAST[:] = [(function, list(inputs), only)]
    return _LAST[0][2]


_LAST: list[tuple[Callable[..., object], list[torch.Tensor], tuple[Captured, list[torch.Tensor]]]]
_LAST = []


def _is_last(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> bool:
    if not _LAST or _LAST[0][0] is not function or len(_LAST[0][1]) != len(inputs):
        return False
    return all(a is b for a, b in zip(_LAST[0][1], inputs, strict=True))


def each_graph(
    function: Callable[..., object],
    inputs: Sequence[torch.Tensor],
    look: Callable[[torch.fx.GraphModule, Sequence[object]], T],
    *,
    dynamic: bool = False,
    backward: bool = False,
) -> list[tuple[T, list[torch.Tensor]]]:
    """What `look` makes of every graph of a call (and of its backward pass), in order, each with
    the graph's own inputs."""
    found: list[tuple[T, list[torch.Tensor]]] = []

    def compiler(gm: torch.fx.GraphModule, fakes: Sequence[object]) -> Callable[..., object]:
        given: list[torch.Tensor] = []
        found.append((look(gm, fakes), given))

        def run(arguments: list[torch.Tensor]) -> object:
            given[:] = arguments
            return gm(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions())
    with torch.set_grad_enabled(backward):
        result: Any = torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
        if backward:
            result.float().sum().backward()
    return found


def whole_group(graph: Graph) -> Subgraph:
    """All compute nodes of a graph as one group."""
    return subgraph(graph, with_free_nodes(graph, (n.id for n in graph.nodes if ops.is_compute(n))))


def empty(tensor: TensorType) -> torch.Tensor:
    """A poisoned tensor of exactly this shape and stride."""
    dtype = getattr(torch, tensor.dtype)
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True) if n)
    poison = float("nan") if dtype.is_floating_point else 77
    flat = torch.full((size,), poison, dtype=dtype, device=DEVICE)
    return flat.as_strided(tensor.shape, tensor.stride)


def run_program(program: Program, part: Subgraph, inputs: Sequence[torch.Tensor]):
    """The group's outputs, computed by its kernels: in the interpreter, or on the GPU."""
    types = [part.graph.nodes[o].type for o in part.graph.outputs]
    outputs = [empty(t) for t in types]
    temporaries = [empty(t) for t in program.temporaries]
    pools = {"in": list(inputs), "out": outputs, "tmp": temporaries}
    stream = 0 if interpreted() else torch.cuda.current_stream().cuda_stream
    for kernel in program.kernels:
        launcher = Launcher(kernel, torch.device(DEVICE))
        tensors = [pools[b.kind][b.index] for b in kernel.buffers]
        if launcher.takes_tensors:
            launcher.aligned(0, *tensors)
            continue
        pointers = [t.data_ptr() for t in tensors]
        aligned = all(p % 16 == 0 for p in pointers)
        (launcher.aligned if aligned else launcher.unaligned)(stream, *pointers)
    return outputs


def as_double(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def as_tuple(value: object) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def assert_close(mine: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, note: str) -> None:
    """Accuracy rule; NaN exactly where eager has it; integers exactly."""
    assert mine.dtype == eager.dtype, f"{note}: {mine.dtype} is not {eager.dtype}"
    assert mine.shape == eager.shape, note
    if not mine.is_floating_point():
        assert torch.equal(mine, eager), f"{note}: integers differ"
        return
    assert torch.equal(mine.isnan(), eager.isnan()), f"{note}: NaN differs from eager's"
    finite = eager.isfinite() & exact.isfinite()
    assert torch.equal(mine[~finite], eager[~finite]) or eager[~finite].isnan().any(), note
    if not finite.any():
        return
    error = (mine.double() - exact)[finite].abs().max().item()
    own = (eager.double() - exact)[finite].abs().max().item()
    scale = exact[finite].abs().max().item()
    allowance = 4 * torch.finfo(mine.dtype).eps * scale
    assert error <= 2 * own + allowance, f"{note}: error {error:.3g}, eager's own {own:.3g}"


def _viewed(graph: Graph, node: int) -> int:
    """The computed node behind an output that is only a reshape of it."""
    while ops.is_free(graph.nodes[node]):
        assert ops.OPS[graph.nodes[node].op] == ops.View("reshape") or "squeeze" in str(
            ops.OPS[graph.nodes[node].op]
        )
        (node,) = graph.nodes[node].inputs
    return node


def check(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], configs: Sequence[Config]
) -> int:
    """Every config of the whole function as one group agrees with eager; returns kernels run."""
    found, given = captured(function, inputs)
    graph = found.graph
    part = whole_group(graph)
    flat = dict(zip(graph.inputs, given, strict=True))
    exact = as_tuple(function(*map(as_double, inputs)))
    eager = as_tuple(function(*inputs))
    place = {_viewed(graph, node): i for i, node in enumerate(graph.outputs)}
    kernels = 0
    for config in configs:
        program = lower(part.graph, config, interpreted=interpreted())
        assert not isinstance(program, Refusal), f"{config}: {program}"
        results = run_program(program, part, [flat[i] for i in part.inputs])
        kernels += len(program.kernels)
        compared = 0
        for node, mine in zip(part.outputs, results, strict=True):
            if node in place:
                compared += 1
                want, own = exact[place[node]], eager[place[node]]
                assert_close(mine.reshape(own.shape), want.reshape(own.shape), own, str(config))
        assert compared, "no output of the function was computed by the kernel"
    return kernels
