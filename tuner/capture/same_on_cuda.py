"""The comparison of a graph that was captured on the CPU with the graph that a CUDA device gives.

A plan is found by the key of its graph. PyTorch's composite operations choose their parts by the
device: attention on the CPU is another operation than on CUDA. So the graph from Dynamo is traced
twice, on fake tensors of both devices, and the operations are compared. No GPU is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from ...planner.capture.capture import hint
from ...planner.errors import line_of

aten = torch.ops.aten


def difference_on_cuda(gm: fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    """The difference between the graph's operations on the CPU and on CUDA; None where there is
    none. gm: a graph from Dynamo; inputs: its arguments, on the CPU."""
    try:
        here, there = (list(_operations(gm, inputs, device)) for device in ("cpu", "cuda"))
    except Exception as error:  # noqa: BLE001 - an operation without a fake CUDA form, of any kind
        return f"it cannot be traced for CUDA here: {line_of(error)}"
    for ours, theirs in zip(here, there, strict=False):
        if ours != theirs:
            return f"{ours[0]} on the CPU is {theirs[0]} on CUDA"
    return None if len(here) == len(there) else "it has another number of operations on CUDA"


def _operations(
    gm: fx.GraphModule, inputs: Sequence[Any], device: str
) -> Iterator[tuple[Any, ...]]:
    """Each operation by name, with its arguments and the types of its results. Autograd's formulas
    belong to the operations, so that the same operations have the same backward graph."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad(), fake, enable_python_dispatcher(), _Indexing():
        fakes = [_fake(value, device) for value in inputs]
        traced = make_fx(_OnOtherDevice(gm, device).run, tracing_mode="real")(*fakes)
    traced.graph.eliminate_dead_code()
    number = {node: i for i, node in enumerate(traced.graph.nodes)}
    for node in traced.graph.nodes:
        arguments = fx.map_arg(node.args, lambda n: f"%{number[n]}")
        named = {name: value for name, value in node.kwargs.items() if name != "device"}
        named = fx.map_arg(named, lambda n: f"%{number[n]}")
        yield str(node.target), str(arguments), str(named), _type(node.meta.get("val"), device)


def _type(value: Any, device: str) -> Any:
    """What the planner sees of a value; a number may lie on the CPU in any graph. Of an operation
    with several results, those that are read are values of their own."""
    if not isinstance(value, torch.Tensor):
        return None
    at_home = value.dim() == 0 or value.device.type == device
    return value.dtype, tuple(value.shape), value.stride(), at_home


def _fake(value: Any, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return hint(value)
    shape, stride = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    return torch.empty_strided(shape, stride, dtype=value.dtype, device=device)


class _OnOtherDevice(fx.Interpreter):
    """Runs a graph on another device than the one its text names."""

    def __init__(self, gm: fx.GraphModule, device: str) -> None:
        super().__init__(gm)
        self._device = torch.device(device)

    def fetch_attr(self, target: str) -> Any:
        return _fake(super().fetch_attr(target), self._device.type)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return super().call_function(target, *self._moved(args, kwargs))

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return super().call_method(target, *self._moved(args, kwargs))

    def _moved(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        def moved(value: Any) -> Any:
            return self._device if isinstance(value, torch.device) else value

        found = torch.utils._pytree.tree_map(moved, (args, dict(kwargs)))
        return found[0], found[1]


class _Indexing(TorchFunctionMode):
    """Indexing by ATen's operations: torch's own binding asks for a CUDA driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _BY_INDEX.get(func, func)(*args, **(kwargs or {}))


def _indexed(x: torch.Tensor, index: Any) -> torch.Tensor:
    """x[index]. Raises NotImplementedError for an index by lists or booleans."""
    view, tensors = _view(x, index)
    return aten.index.Tensor(view, tensors) if tensors else view


def _assigned(x: torch.Tensor, index: Any, value: Any) -> None:
    """x[index] = value."""
    view, tensors = _view(x, index)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    if tensors:
        aten.index_put_.default(view, tensors, value)
    else:
        aten.copy_.default(view, value)


def _view(x: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """x by the numbers and slices of an index; and the tensors in it, by dimension."""
    items = list(index) if isinstance(index, tuple) else [index]
    rest = x.dim() - sum(item is not None and item is not Ellipsis for item in items)
    tensors: list[torch.Tensor | None] = []
    for item in items:
        dim = len(tensors)
        if item is Ellipsis:
            tensors += [None] * rest
        elif item is None:
            x = aten.unsqueeze.default(x, dim)
            tensors.append(None)
        elif isinstance(item, torch.Tensor) and item.dtype != torch.bool:
            tensors.append(item)
        elif isinstance(item, slice):
            x = aten.slice.Tensor(x, dim, item.start, item.stop, item.step or 1)
            tensors.append(None)
        elif type(item) is int:
            x = aten.select.int(x, dim, item)
        else:
            raise NotImplementedError(f"an index by {type(item).__name__}")
    return x, tensors if any(t is not None for t in tensors) else []


_BY_INDEX: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.__setitem__: _assigned,
}
