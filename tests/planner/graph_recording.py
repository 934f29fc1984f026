"""Graphs without Dynamo, AOTAutograd or fake tensors: a function runs once on its inputs, and every
operation that it calls is written down, in a fraction of the time of a trace. Functions that write
into views or inputs, and gradients, are for AOTAutograd."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fusionplan.planner.capture.capture import decompositions
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class Recorder(TorchDispatchMode):
    """Writes the operations that run into an FX graph, opened by the backend's decompositions."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._table = decompositions()
        self._nodes: dict[int, fx.Node] = {}
        self._tensors: Counter[int] = Counter()  # by their memory
        self._kept: list[torch.Tensor] = []  # so that no other tensor has its id

    def input(self, tensor: torch.Tensor) -> None:
        self._keep(tensor, self.graph.placeholder(f"arg{len(self._kept)}_1"))

    def _keep(self, tensor: torch.Tensor, node: fx.Node) -> None:
        node.meta["val"] = tensor.detach()  # its sizes may be changed in place
        self._tensors[_storage(tensor)] += id(tensor) not in self._nodes
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)

    def node(self, value: Any) -> Any:
        return self._nodes[id(value)] if isinstance(value, torch.Tensor) else value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            for opened in (self._table.get(func), func.decompose):
                result = opened(*args, **kwargs) if opened else NotImplemented
                if result is not NotImplemented:
                    return result
        read = tree_map(self.node, tuple(args)), tree_map(self.node, dict(kwargs))
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            if self._tensors[_storage(args[0])] > 1:
                raise CannotRecord(str(func))
            func = _functional(func)
        node = self.graph.call_function(func, *read)
        if isinstance(result, torch.Tensor):
            self._keep(result, node)
        else:
            node.meta["val"] = tuple(result)
            for i, each in enumerate(result):
                self._keep(each, self.graph.call_function(operator.getitem, (node, i)))
        return result


class CannotRecord(Exception):
    """A function writes where others look."""


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _functional(func: Any) -> Any:
    """What computes the value that `func` leaves in its first argument. Decompositions write into
    tensors of their own."""
    _, _, name = func._schema.name.partition("::")
    if not name.endswith("_"):
        raise CannotRecord(str(func))
    return getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname)


def recorded(
    function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
) -> fx.GraphModule:
    """The graph of a function for these inputs. Raises CannotRecord."""
    recorder = Recorder()
    for tensor in inputs:
        recorder.input(tensor)
    with torch.no_grad(), recorder:
        results = function(*inputs)
    recorder.graph.output(tuple(recorder.node(r) for r in results))
    return fx.GraphModule(torch.nn.Module(), recorder.graph)
