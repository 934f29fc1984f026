"""Operations of a graph in which the ranks of a process group take part together."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

GROUP = "group_name"
"""What PyTorch's functional collectives call the argument that names their process group."""


def process_group(node: fx.Node) -> str | None:
    """The name of the process group whose ranks must all run this operation; None where it is the
    matter of one rank. It is told by the operation's own schema."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == GROUP:
            given: Any = node.args[place] if place < len(node.args) else node.kwargs.get(GROUP)
            return given if isinstance(given, str) else str(getattr(given, "group_name", ""))
    return None


def is_wait(node: fx.Node) -> bool:
    """Whether the node makes its stream wait for the end of a collective."""
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and target._schema.name == _WAIT
    )


_WAIT = "_c10d_functional::wait_tensor"


def awaited(wait: fx.Node) -> fx.Node | None:
    """The collective that a wait is for, where it writes into none of its inputs and nobody but
    the wait reads what it gives: all who need the result then come behind the wait. None where
    that is not so."""
    source: Any = wait.args[0] if is_wait(wait) else None
    if source is None or set(source.users) != {wait}:
        return None
    made: fx.Node = source.args[0] if source.target is operator.getitem else source
    return None if process_group(made) is None or _is_mutable(made) else made


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def process_groups(nodes: tuple[fx.Node, ...]) -> tuple[str, ...]:
    """The process groups of these operations, each once, in the order of their first use."""
    found = (process_group(node) for node in nodes)
    return tuple(dict.fromkeys(name for name in found if name is not None))
