"""Operations of a graph in which the ranks of a process group take part together."""

from __future__ import annotations

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


def process_groups(nodes: tuple[fx.Node, ...]) -> tuple[str, ...]:
    """The process groups of these operations, each once, in the order of their first use."""
    found = (process_group(node) for node in nodes)
    return tuple(dict.fromkeys(name for name in found if name is not None))
