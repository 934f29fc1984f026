"""A call of Python on nodes of an FX graph, traced to operations that can stand in their place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from .decompositions.decompose import decompositions
from .fx_nodes import called, value_of


def traced(call: Callable[..., Any], operands: Sequence[fx.Node]) -> fx.GraphModule | None:
    """The operations of a call on the values of some nodes; None where these have no metadata."""
    values = [value_of(n) for n in operands]
    fake = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if fake is None:
        return None
    with torch.no_grad(), fake:
        found = make_fx(call, decomposition_table=decompositions())(*values)
    # A GPU's attention also gives numbers, and those have no metadata.
    found.graph.eliminate_dead_code()
    return found


def put(result: fx.Node, made: fx.GraphModule, operands: Sequence[fx.Node]) -> bool:
    """Traced operations in place of `result`, which is the only result of a call that is read;
    the call goes, too. False, and nothing is changed, unless they give a tensor of its shape, type
    and strides; where `result` is dense, one of other strides is copied."""
    (end,) = made.graph.output_node().all_input_nodes
    wanted, given = value_of(result), value_of(end)
    if (wanted.shape, wanted.dtype) != (given.shape, given.dtype):
        return False
    is_laid = wanted.stride() == given.stride()
    if not is_laid and not wanted.is_contiguous():
        return False
    places = [n for n in made.graph.nodes if n.op == "placeholder"]
    copies = dict(zip(places, operands, strict=True))
    with result.graph.inserting_before(result):
        for each in made.graph.nodes:
            if each.op == "call_function":
                copies[each] = result.graph.node_copy(each, copies.__getitem__)
                describe(copies[each], result, each.meta["val"])
        found = copies[end]
        if not is_laid:
            order = {"memory_format": torch.contiguous_format}
            found = called(result, torch.ops.aten.clone.default, (found,), **order)
    result.replace_all_uses_with(found)
    # Dead code that draws random numbers, as attention might, is never left out.
    for dead in (result, *result.all_input_nodes):
        result.graph.erase_node(dead)
    return True


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults among them."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    found = {a.name: a.default_value for a in schema if a.has_default_value()}
    found.update({a.name: value for a, value in zip(schema, node.args, strict=False)})
    return {**found, **node.kwargs}


def only_result(node: fx.Node) -> fx.Node | None:
    """The reader of a node's first result, where nobody reads another."""
    readers = list(node.users)
    if len(readers) != 1 or readers[0].target is not operator.getitem or readers[0].args[1] != 0:
        return None
    return readers[0]


def run_on_fakes(target: Any, args: Any, kwargs: Any) -> Any:
    """An operation's value on the metadata of its operands."""
    values, named = pytree.tree_map_only(fx.Node, value_of, (args, kwargs))
    with torch.no_grad():
        return target(*values, **named)


def describe(made: fx.Node, like: fx.Node, value: Any) -> None:
    """Sets the metadata of a node to that of `like`, but with a value of its own: both belong to
    the same pass, forward or backward."""
    made.meta = {**like.meta, "val": value}
    made.meta.pop("tensor_meta", None)
    if isinstance(value, torch.Tensor):
        # torch's partitioner takes what has none for a tuple.
        made.meta["tensor_meta"] = _extract_tensor_metadata(value)
