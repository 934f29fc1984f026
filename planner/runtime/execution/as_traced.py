"""The first call of an executor: whether the operations that it leaves to ATen give what they were
traced to give.

A kernel of ours has the types, shapes and strides that the trace promised as literals, and reads by
address. An operation of the user's whose meta function is wrong, or one that another version of
torch changed, may give something else. So the first call looks at each such value that a group
reads. What reads one that is not as traced runs by ATen, operation by operation, in this call and
in all later ones; all else runs as planned.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...capture.capture import Captured
from ...cures import warn
from ...graph.graph import TensorType
from .strides import match
from .units import ScheduledUnit


@dataclass(slots=True)
class AsTraced:
    """The questions of an executor's first call. unseen: not empty until a call has shown that all
    values are as traced; the calls that follow do not ask."""

    captured: Captured
    device: torch.device
    graph_key: str
    unseen: list[bool] = field(default_factory=lambda: [True])
    _told: bool = False

    def noted(self, node: int, value: Any, odd: dict[int, str]) -> Any:
        """The value, in the strides that were traced; or as it is, with a word in `odd`, where a
        kernel would misread it."""
        tensor = self.captured.graph.nodes[node].type
        assert tensor is not None
        wrong = _difference(value, tensor, self.device)
        if not wrong:
            return match(value, tensor.shape, tensor.stride)
        source = self.captured.fx_nodes[node]
        odd[node] = f"{_told_of(source)} gives {wrong}"
        return value

    def by_aten(
        self, unit: ScheduledUnit, values: Sequence[Any], odd: dict[int, str]
    ) -> tuple[Any, ...]:
        """The outputs of a group, by its operations one after the other."""
        nodes = self.captured.fx_nodes
        at = {nodes[i]: value for i, value in zip(unit.inputs, values, strict=True)}
        for i in self._inside(unit):
            at[nodes[i]] = _result(self.captured.gm, nodes[i], at)
        results: dict[int, str] = {}
        given = tuple(self.noted(i, at[nodes[i]], results) for i in unit.outputs)
        odd.update(dict.fromkeys(results, ""))  # no fault of theirs
        return given

    def _inside(self, unit: ScheduledUnit) -> list[int]:
        """The nodes between the inputs and the outputs of a group, in order."""
        found: set[int] = set()
        pending = list(unit.outputs)
        while pending:
            node = pending.pop()
            if node not in found and node not in unit.inputs:
                found.add(node)
                pending.extend(self.captured.graph.nodes[node].inputs)
        return sorted(found)

    def ended(self, odd: dict[int, str]) -> None:
        """The end of a call that asked."""
        if not odd and not self._told:
            self.unseen.clear()
        elif odd and not self._told:
            self._told = True
            first, *rest = filter(None, odd.values())
            more = f"; so do {len(rest)} more" * bool(rest)
            text = f"graph {self.graph_key[:12]}: {first}{more}; what reads it runs by ATen"
            warn("not-as-traced", text)


def _difference(value: Any, tensor: TensorType, device: torch.device) -> str:
    """How a value is other than a kernel reads it, strides aside; "" where it is not."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} where a tensor was traced"
    told = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.layout is not torch.strided:
        return f"{told} of layout {value.layout} where a strided tensor was traced"
    if value.is_conj() or value.is_neg():
        return f"{told} as a view that conjugates or negates, which was not traced"
    if value.device.type != device.type:
        return f"{told} on {value.device} where {device} was traced"
    wanted = f"{tensor.dtype}{list(tensor.shape)}"
    return f"{told} where {wanted} was traced" if told != wanted else ""


def _told_of(node: fx.Node) -> str:
    if node.op == "placeholder":
        return f"the forward pass, for {node.name},"
    while getattr(node.target, "__name__", "") == "getitem" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return str(node.target)


def _result(gm: fx.GraphModule, node: fx.Node, at: Mapping[fx.Node, Any]) -> Any:
    """at: the values that the node reads."""
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(gm)
    args, kwargs = fx.map_arg((node.args, node.kwargs), at.__getitem__)
    run: Any = node.target
    return run(*args, **kwargs)
