"""Checking part of a large group in Triton's interpreter, which runs programs one after another.

Two reductions of the work, each sound by itself: *both ends* runs the first and the last few
programs of the very kernel and looks at what they wrote; *shrunk* makes the same group with
smaller extents, where that changes nothing but sizes, for a group that memory cannot hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...planner.errors import PlanError
from ...planner.graph.graph import INPUT, Arg, Graph, Node, TensorType
from ..trial.evaluate import Evaluator
from ..trial.inputs import empty, is_poison
from ..trial.running import KernelRun, Loaded, LoadedKernels

PROGRAMS = 4
"""Run at each end of the grid."""

LARGEST = 1 << 20
"""Elements of the largest value of a group that is checked at its own size."""

SMALL = 6
"""No extent becomes smaller."""

_ID = "tl.program_id(0)"


def at_both_ends(kernels: LoadedKernels, device: torch.device) -> tuple[Loaded, str]:
    """The first and last programs only, and that in words; all of them when that is not much
    more, or when a later kernel needs what all programs wrote."""
    program = kernels.program
    whole = program.kernels[0]
    if len(program.kernels) > 1 or whole.grid <= 4 * PROGRAMS or whole.text.count(_ID) != 1:
        return Loaded(kernels.bind, kernels), ""
    shifted = whole.text.replace(_ID, f"({_ID} + {whole.grid - PROGRAMS})")
    parts = [
        LoadedKernels(replace(program, kernels=(replace(whole, text=text, grid=PROGRAMS),)), device)
        for text in (whole.text, shifted)
    ]

    def bind(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> KernelRun:
        runs = [part.bind(inputs, outputs) for part in parts]

        def run() -> Sequence[torch.Tensor]:
            for one in runs:
                one()
            return outputs

        return run

    return Loaded(bind, kernels, partial=True), f"{2 * PROGRAMS} of {whole.grid} programs"


def fill_unwritten(actual: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> int:
    """Give the elements that nobody wrote eager's value; how many were written. What looks like
    poison where eager has NaN, or the same bytes, may well have been written."""
    written = 0
    for tensor, value in zip(actual, eager, strict=True):
        left = is_poison(tensor) & ~(is_poison(value) | torch.isnan(value))
        written += tensor.numel() - int(left.sum())
        tensor.copy_(torch.where(left, value, tensor))
    return written


def shrunk(group: Graph, largest: int = LARGEST) -> tuple[Graph | None, str]:
    """The group itself if it is small; else with its longest extents cut, and which in words;
    (None, why) where it cannot be cut."""
    was: dict[int, int] = {}
    refused: set[int] = set()
    protected = _inner(group)
    while _largest(group) > largest:
        extents = {n for node in group.nodes if node.type for n in node.type.shape}
        rest = sorted(n for n in extents - refused if n >= 4 * SMALL)
        rows = [n for n in rest if n not in protected]
        if not rest:
            return None, "not checked: too large for the interpreter"
        extent = (rows or rest)[-1]
        # A quarter: what divided it mostly still does. Odd stays odd: a ragged end stays ragged.
        small = extent // 4 | extent % 2
        cut = _cut(group, extent, small)
        if cut is None:
            refused.add(extent)
            continue
        group = cut
        was[small] = was.pop(extent, extent)
    return group, ", ".join(f"extent {old} as {new}" for new, old in was.items())


def _largest(group: Graph) -> int:
    return max((n.type.numel for n in group.nodes if n.type), default=0)


def _inner(group: Graph) -> set[int]:
    """Extents of last dimensions: rows, best left as they are."""
    return {n.type.shape[-1] for n in group.nodes if n.type and n.type.shape}


def _cut(group: Graph, extent: int, small: int) -> Graph | None:
    """The group with every such extent made small, or None when that is not just smaller."""

    def size(value: Arg) -> Arg:
        if isinstance(value, tuple):
            return tuple(small if type(v) is int and v == extent else size(v) for v in value)
        return value

    nodes: list[Node] = []
    for node in group.nodes:
        kind = node.type and _smaller(node.type, extent, small)
        nodes.append(replace(node, args=tuple(map(size, node.args)), type=kind))
    candidate = replace(group, nodes=tuple(nodes))
    meta = torch.device("meta")
    inputs = [empty(t, meta) for i in candidate.inputs if (t := candidate.nodes[i].type)]
    try:
        values = Evaluator(candidate, meta).values(inputs)
    except (RuntimeError, IndexError, ValueError, NotImplementedError, PlanError):
        return None
    checked = [_retyped(n, v) for n, v in zip(candidate.nodes, values, strict=True)]
    good = [n for n in checked if n is not None]
    return replace(group, nodes=tuple(good)) if len(good) == len(checked) else None


def _retyped(node: Node, value: Any) -> Node | None:
    """The node with the strides that it really has; None when its shape is another."""
    if node.op == INPUT:
        return node
    if node.type is None or tuple(value.shape) != node.type.shape:
        return None
    return replace(node, type=replace(node.type, stride=tuple(value.stride())))


def _smaller(kind: TensorType, extent: int, small: int) -> TensorType:
    """Dense in the same order of dimensions; an expanded dimension stays expanded."""
    shape = tuple(small if n == extent else n for n in kind.shape)
    stride, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda d: (kind.stride[d], -d)):
        if kind.stride[dim] or kind.shape[dim] == 1:
            stride[dim] = step
            step *= shape[dim]
    return TensorType(shape, tuple(stride), kind.dtype)
