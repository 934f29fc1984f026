"""The choice of the values that the forward graph saves for the backward graph.

torch's default is every value that the backward pass reads: softmax probabilities [.., S, S],
logits [N, V]. A kernel that never stores such a value would have to, for that reason alone. So two
kinds of values are computed again in the backward pass if they are both. *Grown*: much larger than
the stored values that they come from, or cheap to compute from them. *Streamed*: the forward pass
folds them into something small. They come from what is stored: the inputs of their contraction and
the statistics of their folds.
A random mask is never drawn again: it is saved. For all other values torch's own minimum cut
decides, which computes cheap pointwise chains again where that saves traffic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)
from torch.utils.checkpoint import CheckpointPolicy

from ..cures import warn
from ..graph.ops import (
    OPS,
    Cast,
    Concat,
    Constant,
    Contraction,
    Iota,
    Lookup,
    Pointwise,
    Reduction,
    View,
)
from .capture import hint
from .rewrites.rewrite import GRADIENT_REWRITES, rewritten_joint
from .ties import Test, anchors, behind_shapes, behind_views, settle

__all__ = ["FLOOR_BYTES", "RESULTS", "partition", "stored_bytes"]

aten = torch.ops.aten

FLOOR_BYTES = 16 << 20
"""Of a product. A smaller one stays in the second-level cache, or nearly: to store it costs less
than another contraction."""

GROWN = 2
"""A value is computed again from this ratio to its sources on. Below it, what must be kept instead
is as large as the value. A contraction over a product must shrink it as much again:
queries grow into scores, they do not stream into them. Not 4, for a vocabulary of 131072 times a
width of 2048, with 8192 rows, is at 3.8."""

SHALLOW = 256
"""A product over no more terms is computed again whatever its sources are, which its gradient reads
in any case. An H200 does about 400 multiply-adds in the time in which it writes and reads again one
16-bit number."""

FOLDED = 4
"""A fold gives at most one part in so many of what it reads; torch's minimum cut, too, never
computes such a reduction again."""

WIDEST = 256
"""Columns of a contraction over a streamed value. All of a block's row is kept in registers while
the value streams by; with more columns it must be stored, as for the second layer of an MLP."""

SLACK = 1.01
"""Of torch's default, in bytes. The minimum cut may save scores and the statistics of their rows
instead of probabilities: a little more is stored, and much less is written."""

RESULTS = "fusionplan_results"
"""In a forward graph's metadata: how many of its outputs are the user's."""

NodeKind = Literal["local", "fold", "contraction", "random", "given", "opaque"]

# Folds whose result is no single plain reduction, so that the table has no row for them.
_FOLDS = (
    aten.max.dim,
    aten.min.dim,
    aten.argmax.default,
    aten.argmin.default,
)


def partition(
    joint: fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    floor: int | None = None,
    **more: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of a joint graph; AOTAutograd's `partition_fn`.

    floor: bytes from which on a product is computed again; None is FLOOR_BYTES. more: what
    AOTAutograd gives to torch's own partition functions. Stores no more than torch's default
    partition, but for statistics. It is that partition, with one warning, where anything fails.
    """
    chosen = None
    joint = rewritten_joint(joint)
    try:
        chosen = _cut(_copied(joint), joint_inputs, num_fwd_outputs, floor, more)
    except Exception as error:  # noqa: BLE001 - the user's model must run all the same
        _warn(f"{type(error).__name__}: {error}")
    usual = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **more)
    if chosen is not None:
        found, most = [stored_bytes(forward, num_fwd_outputs) for forward, _ in (chosen, usual)]
        usual = usual if found > most * SLACK else chosen
    usual[0].meta[RESULTS] = num_fwd_outputs
    return usual


def stored_bytes(forward: fx.GraphModule, num_fwd_outputs: int) -> int:
    """Memory that a forward graph's saved values hold: each storage once, and those of its inputs
    and of the results for the user not at all. Symbolic sizes count with their hints."""
    saved = _results(forward.graph)[num_fwd_outputs:]
    anyway = [n for n in forward.graph.nodes if n.op == "placeholder"]
    anyway += [n for n in _results(forward.graph)[:num_fwd_outputs] if isinstance(n, fx.Node)]
    known = {storage for node in anyway for storage, _ in _storages(node)}
    kept = {s: b for node in saved if isinstance(node, fx.Node) for s, b in _storages(node)}
    return sum(size for storage, size in kept.items() if storage not in known)


def _cut(
    joint: fx.GraphModule,
    joint_inputs: Any,
    num_fwd_outputs: int,
    floor: int | None,
    more: dict[str, Any],
) -> tuple[fx.GraphModule, fx.GraphModule]:
    joint.graph.eliminate_dead_code()
    for rewrite in GRADIENT_REWRITES:
        rewrite(joint.graph)
    results = _results(joint.graph)
    static = more.get("static_lifetime_input_indices") or ()
    survey = _Survey(
        joint.graph,
        results[:num_fwd_outputs],
        results[num_fwd_outputs:],
        {n for i, n in enumerate(_primals(joint.graph)) if i in static},
        FLOOR_BYTES if floor is None else floor,
    )
    survey.look()
    if survey.settle():
        survey.look()
    survey.mark()
    # torch's minimum cut saves nothing that no forward output depends on: for its sake they are
    # outputs themselves.
    also = survey.statistics_for_the_backward()
    results[num_fwd_outputs:num_fwd_outputs] = also
    _set_results(joint, results, num_fwd_outputs, len(also))
    forward, backward = min_cut_rematerialization_partition(
        joint, joint_inputs, num_fwd_outputs=num_fwd_outputs + len(also), **more
    )
    kept = _results(forward.graph)
    del kept[num_fwd_outputs : num_fwd_outputs + len(also)]
    _set_results(forward, kept, num_fwd_outputs, -len(also))
    return forward, backward


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a value is computed from. leaves: the stored values. given: all of them are there in
    any case, being inputs, or random, so that nothing could replace them. grown: the value is
    computed again. heavy: that takes a contraction. tied: it would be, were it not compared with a
    fold of itself."""

    leaves: frozenset[fx.Node] = frozenset()
    given: bool = False
    grown: bool = False
    heavy: bool = False
    tied: bool = False


@dataclass(slots=True)
class _Survey:
    """The values of a joint graph's forward pass: which of them are computed again."""

    graph: fx.Graph
    outputs: list[Any]
    gradients: list[Any]
    static: set[fx.Node]  # parameters: stored, whatever becomes of the graph
    floor: int
    settled: set[fx.Node] = field(default_factory=set)  # tests that the best element passes
    _tests: dict[fx.Node, list[Test]] = field(default_factory=dict)
    _forward: list[fx.Node] = field(default_factory=list)
    _members: set[fx.Node] = field(default_factory=set)
    _streamed: set[fx.Node] = field(default_factory=set)
    _origin: dict[fx.Node, _Origin] = field(default_factory=dict)

    def look(self) -> None:
        """Where each value of the forward pass comes from."""
        tagged = [n for n in self.graph.nodes if n.meta.get("partitioner_tag") == "is_forward"]
        self._members = _ancestors([*self.outputs, *tagged])
        self._forward = [n for n in self.graph.nodes if n in self._members]
        self._streamed, self._origin = set(), {}
        self._tests = anchors(self.graph)
        for node in reversed(self._forward):
            if self._is_streamed(node):
                self._streamed.add(node)
        for node in self._forward:
            self._origin[node] = self._origin_of(node)

    def settle(self) -> bool:
        """Makes tied values safe to compute again; whether there are any."""
        tied = [node for node, origin in self._origin.items() if origin.tied]
        for node in tied:
            if settle(self.graph, node, self._tests[node]):
                self.settled |= {test for test, _ in self._tests[node]}
        return bool(self.settled)

    def mark(self) -> None:
        """Tells torch's minimum cut: grown values that the backward pass needs must be computed
        again, folds of grown values must be saved."""
        needed = self._needed()
        compared = (n for n in self._forward if n in needed and not self._origin[n].grown)
        for node in filter(self._is_compared, compared):
            # That cut computes a view again whatever is said of it.
            stored = behind_shapes(node)
            if stored.op != "placeholder":
                stored.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
        for node in self._forward:
            # What the user's own checkpointing has marked stays as it is.
            if self._origin[node].grown and node in needed:
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
            elif self._is_statistic(node):
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)

    def statistics_for_the_backward(self) -> list[fx.Node]:
        """The values that the forward pass makes for the backward pass alone: a maximum's index."""
        own = _ancestors(self.outputs)
        return [n for n in self._forward if n not in own and self._is_kept(n)]

    def _is_kept(self, node: fx.Node) -> bool:
        return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE or self._is_statistic(node)

    def _is_compared(self, node: fx.Node) -> bool:
        """Whether the step asks where the value equals a fold of itself, as the gradient of a
        maximum does. Computed again by another kernel, its last bits may be others: one that has
        kept in registers what is rounded in memory, or takes a product and a sum as one. Not so
        one operation on inputs."""
        if all(test in self.settled for test, _ in self._tests.get(node, ())):
            return False
        return not all(behind_views(n).op == "placeholder" for n in node.all_input_nodes)

    def _is_statistic(self, node: fx.Node) -> bool:
        return _is_tensor(node) and any(self._folds(node, n) for n in self._grown_inputs(node))

    def _is_streamed(self, node: fx.Node) -> bool:
        """Whether a fused forward pass need never write the value."""
        if node in self.outputs:
            return False
        return all(self._streams(u, node) for u in node.users if u in self._members)

    def _streams(self, user: fx.Node, node: fx.Node) -> bool:
        if not _tensors(user) or _is_like(user):
            return True  # it reads a size
        kind = _kind(user)
        if kind == "contraction":
            width = _width(user, node)
            if width is None:
                return user in self._streamed
            return width <= WIDEST and _bytes(user) * GROWN <= _bytes(node)
        return self._folds(user, node) or (self._is_local(user) and user in self._streamed)

    def _folds(self, user: fx.Node, node: fx.Node) -> bool:
        return _kind(user) == "fold" and _bytes(user) * FOLDED <= _bytes(node)

    def _is_local(self, node: fx.Node) -> bool:
        """Whether the value is no smaller than what it is made from, element by element. So is a
        fold over a short axis."""
        kind = _kind(node)
        if kind == "fold" and _is_tensor(node):
            return not any(self._folds(node, source) for source in node.all_input_nodes)
        return kind == "local"

    def _grown_inputs(self, node: fx.Node) -> list[fx.Node]:
        return [n for n in node.all_input_nodes if self._origin[n].grown]

    def _origin_of(self, node: fx.Node) -> _Origin:
        kind = _kind(node)
        if kind in ("given", "random"):
            return _Origin(frozenset([node]), given=True)
        if kind != "contraction" and not self._is_local(node):
            return _Origin(frozenset([node]))
        sources = [self._origin[n] for n in node.all_input_nodes if _tensors(n)]
        heavy = kind == "contraction" or any(s.heavy for s in sources)
        leaves, added = self._leaves(kind, sources)
        given = all(s.given for s in sources) and not heavy
        if self._is_grown(node, heavy, leaves, added):
            if self._is_compared(node):
                return _Origin(frozenset([node]), given, tied=True)
            return _Origin(leaves, given, True, heavy)
        if heavy or self._size(leaves) > _bytes(node):
            return _Origin(frozenset([node]), given)
        return _Origin(leaves, given)

    def _leaves(
        self, kind: NodeKind, sources: list[_Origin]
    ) -> tuple[frozenset[fx.Node], frozenset[fx.Node] | None]:
        """All the stored values that a value comes from; and, when it extends a grown value, those
        that come in addition: a mask or bias that is there in any case does not count."""
        grown = [s for s in sources if s.grown]
        if not grown or kind == "contraction":
            return frozenset().union(*(s.leaves for s in sources)), None
        before: frozenset[fx.Node] = frozenset().union(*(s.leaves for s in grown))
        others = [s.leaves for s in sources if not s.grown and not s.given]
        added = frozenset().union(*others) - before
        return before | added, added

    def _is_grown(
        self,
        node: fx.Node,
        heavy: bool,
        leaves: frozenset[fx.Node],
        added: frozenset[fx.Node] | None,
    ) -> bool:
        if node in self.outputs or (heavy and node not in self._streamed):
            return False
        if added is not None:
            largest = max(_bytes(n) for n in [node, *self._grown_inputs(node)])
            return self._size(added) * FOLDED <= largest
        if not heavy:
            return _bytes(node) >= GROWN * self._size(leaves)
        if _bytes(node) < self.floor:
            return False
        # A parameter is stored, whatever is computed from it.
        counted = self._size(leaves - self.static)
        return _depth(node) <= SHALLOW or _bytes(node) >= GROWN * counted

    def _size(self, leaves: frozenset[fx.Node]) -> int:
        return sum(map(_bytes, leaves))

    def _needed(self) -> set[fx.Node]:
        """Values that the backward pass reads, itself or through what it computes again."""
        needed = {n for n in self.gradients if isinstance(n, fx.Node)}
        for node in reversed(self._forward):
            if any(self._needs(user, needed) for user in node.users):
                needed.add(node)
        return needed & self._members

    def _needs(self, user: fx.Node, needed: set[fx.Node]) -> bool:
        if user not in self._members:
            return user.op != "output"
        return user in needed and (self._is_local(user) or self._origin[user].grown)


def _ancestors(values: list[Any]) -> set[fx.Node]:
    """These nodes and all that they are computed from."""
    found: set[fx.Node] = set()
    stack = [n for n in values if isinstance(n, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _kind(node: fx.Node) -> NodeKind:
    if node.op in ("placeholder", "get_attr"):
        return "given"
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "opaque"
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "random"
    row = OPS.get(str(target))
    if isinstance(row, Contraction):
        return "contraction"
    if isinstance(row, (Reduction, Lookup)) or target in _FOLDS:
        return "fold"
    if isinstance(row, (Pointwise, Cast, View, Concat, Constant, Iota)):
        return "local"
    return "local" if torch.Tag.pointwise in target.tags else "opaque"


def _is_like(node: fx.Node) -> bool:
    """Whether the operation takes from its operand only what a tensor is like, as the random
    numbers of dropout do."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        node.target._schema.name.endswith("_like")
    )


def _operands(contraction: fx.Node) -> tuple[Any, Any]:
    assert isinstance(contraction.target, torch._ops.OpOverload)
    row = OPS[str(contraction.target)]
    assert isinstance(row, Contraction)
    names = [argument.name for argument in contraction.target._schema.arguments]
    return contraction.args[names.index(row.left)], contraction.args[names.index(row.right)]


def _depth(contraction: fx.Node) -> int:
    """How many products a sum has."""
    return int(hint(_operands(contraction)[0].meta["val"].shape[-1]) or 0)


def _width(contraction: fx.Node, operand: fx.Node) -> int | None:
    """Columns of the product for each row of this operand; None when it is the bias."""
    shape = contraction.meta["val"].shape
    left, right = _operands(contraction)
    widths = [hint(shape[-1])] * (operand is left) + [hint(shape[-2])] * (operand is right)
    return max(widths, default=None)


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bytes(node: fx.Node) -> int:
    """Of all elements, wherever they lie; 0 where a size depends on the data."""
    return sum((hint(t.numel()) or 0) * t.dtype.itemsize for t in _tensors(node))


def _storages(node: fx.Node) -> Iterator[tuple[int, int]]:
    for tensor in _tensors(node):
        storage = tensor.untyped_storage()
        yield storage._cdata, hint(storage.nbytes()) or 0


def _results(graph: fx.Graph) -> list[Any]:
    return list(pytree.arg_tree_leaves(*_output(graph).args))


def _output(graph: fx.Graph) -> fx.Node:
    found: fx.Node = next(n for n in reversed(graph.nodes) if n.op == "output")
    return found


def _set_results(gm: fx.GraphModule, results: list[Any], place: int, more: int) -> None:
    """Gives the graph these results; at `place` they are `more` than before, or fewer."""
    if not more:
        return
    output = _output(gm.graph)
    output.args = (tuple(results),)
    for name in ("desc", "output_stack_traces"):  # one entry each
        if name in output.meta:
            entries = list(pytree.arg_tree_leaves(output.meta[name]))
            entries[place : place + max(0, -more)] = [None] * more
            output.meta[name] = entries
    gm.graph.eliminate_dead_code()
    gm.recompile()


def _primals(graph: fx.Graph) -> list[fx.Node]:
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    return [n for n in inputs if "tangents" not in str(n.target)]


def _copied(joint: fx.GraphModule) -> fx.GraphModule:
    """Metadata is copied too, so that no mark reaches the joint graph itself."""
    graph = fx.Graph()
    output = graph.output(graph.graph_copy(joint.graph, {}))
    output.meta = dict(_output(joint.graph).meta)
    result = fx.GraphModule(joint, graph)
    result.meta = dict(joint.meta)
    return result


@functools.cache
def _warn(reason: str) -> None:
    warn("saved", f"the forward pass saves what torch's default would: {reason}", stacklevel=3)
