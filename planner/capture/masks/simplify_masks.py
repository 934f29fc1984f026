"""Masks that a graph makes of positions and numbers, in the simplest form that says the same.

Attention with a mask leaves the vendor's fastest kernels, also where the mask keeps every key, or
just those up to the query's own. What of a mask follows from positions alone is derived (see
`known`); attention then has no mask, is causal, or sees a window of keys, and what else reads such
a mask reads a comparison of two positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ..capture import is_dynamic
from ..fx_nodes import is_view, takes_any_strides, value_of
from ..on_a_copy import rewritten_copy
from ..traced_calls import arguments_of, describe, only_result, put, run_on_fakes, traced
from .derived_values import MADE, known
from .masks import Band, Piecewise, band, split
from .positions import Cases, PositionForm, Scalar

__all__ = ["simplify_masks"]

aten = torch.ops.aten

LARGEST_HEAD = 256
"""Elements of a head; above it the vendor has no flash attention."""

_NEUTRAL: dict[Any, bool] = {
    aten.bitwise_and.Tensor: True,
    aten.logical_and.default: True,
    aten.bitwise_or.Tensor: False,
    aten.logical_or.default: False,
}
"""By operation of booleans, the operand that changes nothing."""


def simplify_masks(gm: fx.GraphModule) -> fx.GraphModule:
    """The FX graph with its masks simplified, or `gm` itself where there is nothing to gain. `gm`
    is left as it is; names and metadata are kept. A graph whose sizes vary stays as it is."""
    if is_dynamic(gm) or not any(n.target in MADE for n in gm.graph.nodes):
        return gm

    def change(graph: fx.Graph) -> bool:
        graph.eliminate_dead_code()
        changed = _Simplified(graph).run()
        graph.eliminate_dead_code()
        return changed

    return rewritten_copy(gm, change, "masks stay as they are")


class _Simplified:
    """One walk over a graph, in order."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.known = known(graph)
        self.changed = False

    def run(self) -> bool:
        for node in list(self.graph.nodes):
            if node in self.known or not isinstance(node.target, torch._ops.OpOverload):
                continue
            arguments = arguments_of(node)
            mask = arguments.get("attn_bias", arguments.get("attn_mask"))
            if mask in self.known and "is_causal" in arguments:
                self._attention(node, mask, arguments)
            elif node.target is aten.where.self:
                self._chosen(node)
            elif node.target in _NEUTRAL:
                self._joined(node, _NEUTRAL[node.target])
        for node in self.known:
            self._rewritten(node)
        return self.changed

    # --- attention ---

    def _attention(self, node: fx.Node, mask: fx.Node, arguments: dict[str, Any]) -> None:
        """Attention with a known mask: with none, causal, or with a window of keys."""
        queries, keys = (value_of(arguments[n]).shape[-2] for n in ("query", "key"))
        seen = band(self.known[mask], value_of(mask).dtype)
        if arguments["is_causal"] or seen is None or not seen.is_seen_by_all(queries, keys):
            return
        plain = seen.is_all or seen.is_causal(queries, keys)
        result = only_result(node)
        if result is not None and not arguments["dropout_p"]:
            call = _chosen_anew(arguments, seen) if plain else _windowed(arguments, seen)
            if call is not None and self._put(result, call, arguments):
                return
        if plain and not any(arguments.get("grad_input_mask", (False,) * 4)[3:]):
            self._unmask(node, arguments, causal=not seen.is_all)

    def _unmask(self, node: fx.Node, arguments: dict[str, Any], *, causal: bool) -> None:
        """The same operation, of the forward or the backward pass, without its mask."""
        given = dict(arguments, is_causal=causal)
        given.update({n: None for n in ("attn_bias", "attn_mask") if n in given})
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        node.args = tuple(given[a.name] for a in schema if not a.kwarg_only)
        node.kwargs = {a.name: given[a.name] for a in schema if a.kwarg_only}
        self.changed = True

    def _put(self, result: fx.Node, call: Callable[..., Any], arguments: dict[str, Any]) -> bool:
        """A call on query, key and value in place of a result, if it is one operation of
        attention and gives the result's strides."""
        operands = [arguments[n] for n in ("query", "key", "value")]
        made = traced(call, operands)
        if made is None or not any("attention" in str(n.target) for n in made.graph.nodes):
            return False  # Without the device, torch opens attention.
        changed = put(result, made, operands)
        self.changed |= changed
        return changed

    # --- other readers ---

    def _chosen(self, node: fx.Node) -> None:
        """where(True, x, y) is x."""
        condition, kept, other = node.args
        outcome = self._uniform(condition)
        if outcome is not None:
            self._replace(node, kept if outcome else other)

    def _joined(self, node: fx.Node, neutral: bool) -> None:
        """`x and True` is x."""
        left, right = node.args
        for kept, other in ((left, right), (right, left)):
            if self._uniform(other) is neutral:
                self._replace(node, kept)
                return

    def _uniform(self, node: Any) -> Scalar | None:
        value = self.known.get(node)
        return value.uniform if isinstance(value, Cases) else None

    def _replace(self, node: fx.Node, kept: Any) -> None:
        """Another value of the same dtype in place of a node, broadcast to its shape."""
        if not isinstance(kept, fx.Node) or value_of(kept).dtype != value_of(node).dtype:
            return
        if not takes_any_strides(node):
            return
        if value_of(kept).shape != value_of(node).shape:
            with self.graph.inserting_before(node):
                kept = self._made(node, aten.expand.default, kept, list(value_of(node).shape))
        node.replace_all_uses_with(kept)
        self._views_again(kept)
        self.changed = True

    def _views_again(self, node: fx.Node) -> None:
        """The metadata of its views, whose strides may have changed."""
        for user in node.users:
            if is_view(user.target):
                describe(user, user, run_on_fakes(user.target, user.args, user.kwargs))
                self._views_again(user)

    def _rewritten(self, node: fx.Node) -> None:
        """A known value that others read, in its simplest form where that takes fewer
        operations."""
        value = self.known[node]
        if all(u in self.known for u in node.users) or not isinstance(value, Cases):
            return
        simple = split(value)
        if simple is None or simple.operations >= _operations(node):
            return
        if not takes_any_strides(node):
            return
        with self.graph.inserting_before(node):
            made = self._simple(node, simple)
        self._replace(node, made)

    def _simple(self, node: fx.Node, simple: Piecewise) -> fx.Node:
        like = value_of(node)
        options = {"dtype": like.dtype, "device": like.device}
        if not simple.forms:
            return self._made(node, aten.full.default, [], simple.inside, **options)
        condition: fx.Node | None = None
        for form in simple.forms:
            each = self._compared(node, form)
            if condition is not None:
                each = self._made(node, aten.logical_and.default, condition, each)
            condition = each
        numbers = simple.inside, simple.outside
        if like.dtype != torch.bool:
            both = (self._made(node, aten.full.default, [], n, **options) for n in numbers)
            return self._made(node, aten.where.self, condition, *both)
        assert condition is not None
        return condition if simple.inside else self._made(node, aten.logical_not.default, condition)

    def _compared(self, node: fx.Node, form: PositionForm) -> fx.Node:
        """Whether a form is >= 0: it compares what it counts up with what it counts down."""
        more, less = self._side(node, form, 1), self._side(node, form, -1)
        if more is None:
            return self._made(node, aten.le.Scalar, less, form.constant)
        if less is None:
            return self._made(node, aten.ge.Scalar, more, -form.constant)
        if form.constant:
            more = self._made(node, aten.add.Tensor, more, form.constant)
        return self._made(node, aten.ge.Tensor, more, less)

    def _side(self, node: fx.Node, form: PositionForm, sign: int) -> fx.Node | None:
        """The sum of a form's steps of one sign."""
        total: fx.Node | None = None
        like = value_of(node)
        for dim, step in enumerate(form.steps):
            if step * sign <= 0:
                continue
            ends = (0, like.shape[dim], 1)
            each = self._made(node, aten.arange.start_step, *ends, device=like.device)
            if abs(step) != 1:
                each = self._made(node, aten.mul.Tensor, each, abs(step))
            for _ in range(like.dim() - 1 - dim):
                each = self._made(node, aten.unsqueeze.default, each, -1)
            total = each if total is None else self._made(node, aten.add.Tensor, total, each)
        return total

    def _made(self, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node that belongs to the same pass as `like`."""
        made = self.graph.call_function(target, args, kwargs)
        with value_of(like).fake_mode:
            describe(made, like, run_on_fakes(target, args, kwargs))
        return made


def _chosen_anew(arguments: dict[str, Any], seen: Band) -> Callable[..., Any]:
    """The attention that torch itself chooses where there is no mask."""

    def call(query: Any, key: Any, value: Any) -> Any:
        scale = arguments["scale"]
        causal = not seen.is_all
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)

    return call


def _windowed(arguments: dict[str, Any], seen: Band) -> Callable[..., Any] | None:
    """Flash attention with a window of keys, where that is there for these operands."""
    values = [value_of(arguments[n]) for n in ("query", "key", "value")]
    query, key, _ = values
    # Flash attention counts both from the end, -1 is no limit.
    ahead = key.shape[-2] - query.shape[-2]
    left = None if seen.before is None else seen.before + ahead
    right = None if seen.after is None else seen.after - ahead
    is_possible = (
        query.device.type == "cuda"
        and query.dim() == 4
        and query.dtype in (torch.float16, torch.bfloat16)
        and all(v.shape[-1] == query.shape[-1] and v.stride(-1) == 1 for v in values)
        and all(v.shape[:2] == query.shape[:2] for v in values)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= LARGEST_HEAD
        and all(limit is None or limit >= 0 for limit in (left, right))
        and (not torch.cuda.is_available() or torch.backends.cuda.is_flash_attention_available())
    )
    if not is_possible:
        return None

    def call(query: Any, key: Any, value: Any) -> Any:
        swapped = [x.transpose(1, 2) for x in (query, key, value)]
        lengths = (None, None, query.shape[-2], key.shape[-2])
        found = aten._flash_attention_forward.default(
            *swapped,
            *lengths,
            0.0,
            False,
            False,
            scale=arguments["scale"],
            window_size_left=-1 if left is None else left,
            window_size_right=-1 if right is None else right,
        )
        return found[0].transpose(1, 2)

    return call


def _operations(node: fx.Node) -> int:
    """Operations but views and numbers behind a value."""
    seen, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return sum(n.target not in MADE and not is_view(n.target) for n in seen)
