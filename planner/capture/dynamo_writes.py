"""Writes and overlapping results of which AOTAutograd makes something else than eager does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from .capture import hint


def writes_overlap(gm: object) -> bool:
    """Whether a write goes through a view in which one element of memory stands several times, or
    through windows with gaps. AOTAutograd makes something else of it than eager: of an expanded
    view it adds up the changes, where eager writes one number or refuses; of windows it loses what
    lies between them."""
    if not isinstance(gm, fx.GraphModule):  # AOTAutograd takes any module
        return False
    return any(_overlaps(x) for node in gm.graph.nodes for x in _targets(node))


def _targets(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that an operation writes into, as far as is known."""
    if not written_by(node):
        return
    if isinstance(node.target, torch._ops.OpOverload):
        named = zip(node.target._schema.arguments, node.args, strict=False)
        found = [x for a, x in named if a.alias_info is not None and a.alias_info.is_write]
    else:
        found = [node.kwargs["out"]] if "out" in node.kwargs else list(node.args[:1])
    yield from (x for x in found if isinstance(x, fx.Node))


def _overlaps(view: fx.Node) -> bool:
    value = view.meta.get("example_value")
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return False
    if any(map(_has_gaps, _behind(view))):
        return True
    if any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride())):
        return any(isinstance(s, int) and s == 0 for s in value.stride())
    return torch._debug_has_internal_overlap(value) == 1


def _behind(view: fx.Node) -> Iterator[fx.Node]:
    """The views through which a view was made."""
    while view.op in ("call_function", "call_method") and view.all_input_nodes:
        yield view
        view = view.all_input_nodes[0]


def _has_gaps(view: fx.Node) -> bool:
    """Whether it is of windows, as of `Tensor.unfold`, that are not side by side over all."""
    if view.op != "call_method" or view.target != "unfold":
        return False
    value = view.all_input_nodes[0].meta.get("example_value")
    given = dict(zip(("dimension", "size", "step"), view.args[1:], strict=False)) | view.kwargs
    if not isinstance(value, FakeTensor) or given["size"] != given["step"]:
        return True
    size, step = value.shape[given["dimension"]], given["step"]  # type: ignore[index]
    return not isinstance(size, int) or not isinstance(step, int) or size % step != 0


def results_overlap(forward: fx.GraphModule, count: int) -> bool:
    """Whether one of the first `count` results of a forward graph has elements at the same place of
    memory, as windows of `Tensor.unfold` have. AOTAutograd copies the gradient that comes for it
    into memory of the same strides, where numbers take the place of others."""
    output = next(n for n in reversed(forward.graph.nodes) if n.op == "output")
    values = [n.meta.get("val") for n in output.args[0][:count] if isinstance(n, fx.Node)]
    return any(isinstance(v, torch.Tensor) and _has_windows(v) for v in values)


def _has_windows(value: torch.Tensor) -> bool:
    """Whether strides are too short for what they step over; an expanded dimension, of stride 0, is
    copied well."""
    if value.layout is not torch.strided or not value.is_floating_point():
        return False
    sizes = zip(value.stride(), value.shape, strict=True)
    reach = 0
    for stride, size in sorted((hint(s), hint(n)) for s, n in sizes):
        if stride and size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def source(view: fx.Node) -> fx.Node:
    """The value of which this may be a view, and that of which that may be one, and so on: the
    first that no operation made of a first argument."""
    for each in _behind(view):
        view = each.all_input_nodes[0]
    return view


def written_by(node: fx.Node) -> Sequence[fx.Node]:
    """The operands that an operation may write into."""
    target, read = node.target, node.all_input_nodes
    if node.op == "call_method":
        return read[:1] if _names_write(str(target)) else ()
    if node.op != "call_function":
        return ()
    if isinstance(target, torch._ops.OpOverload):
        return read if target._schema.is_mutable else ()
    if _names_write(getattr(target, "__name__", "")) or "out" in node.kwargs:
        return read
    return read if _is_in_place(node) else ()


def _names_write(name: str) -> bool:
    if name.strip("_") in _IN_PLACE:
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _KEYWORDS


_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"

_IN_PLACE = frozenset(["setitem", *(f"i{name}" for name in _ARITHMETIC.split(" "))])
"""Operators that write, by the name of their function."""

_KEYWORDS = ("and_", "or_", "not_", "is_")
"""Functions of `operator` that are named so for they cannot have the name of a keyword."""


def _is_in_place(node: fx.Node) -> bool:
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False  # one of C, which says by its name that it writes
    return given.arguments.get("inplace") is True
