"""The accuracy of a pointwise operation: as exact as eager, or cheaper where nobody sees the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..graph.dtypes import FLOATS, NARROW
from ..graph.graph import Arg, Graph, Node, Ref, refs
from ..graph.op import EXPONENTIALS, PLUS_ONE, Accuracy, Op
from ..graph.ops import (
    MAX,
    SUM,
    Cast,
    Constant,
    Contraction,
    Lookup,
    Pointwise,
    Reduction,
    View,
    bound,
    op_of,
    row,
)
from ..graph.sizes import nominal, reciprocal, varies
from ..graph.texts import has, operands_of, settled
from ..values.values import Compute, Value
from .precision import dtype_of, is_read_beside_its_sum, rounds

_SCALES = frozenset({Op.CONVERT, Op.MUL, Op.DIV})

_KEEPS = frozenset({Op.MUL, Op.WHERE})
"""Whose results err by no larger a share of themselves than their operands do."""

_MANY = 4096
"""Elements in whose sum the rounding errors of each no longer count."""

Operands = Sequence[tuple[str, Arg]]


@dataclass(frozen=True, slots=True)
class Form:
    """inverts: the operand `other` stands for its inverse, which is computed by itself."""

    op: Op
    operands: Operands
    accuracy: Accuracy = Accuracy.EXACT
    inverts: bool = False

    def at(self, accuracy: Accuracy) -> Form:
        return replace(self, accuracy=settled(self.op, accuracy))


class Forms:
    """The forms that the operations of a group take."""

    def __init__(self, group: Graph) -> None:
        self._group = group
        self._seen_rounded = _seen_rounded(group)
        self._rounded = _after_rounding(group)
        self._factors = _factors_of_bfloat16(group)
        self._exact = _indexing(group)
        self._scaled = _scaled_products(group)
        self._logged = _summed_for_logarithm(group)
        self._below_one = _below_one(group)
        self._summed_alone = _summed_alone(group, self._below_one)
        self._normalizing = _normalizing(group, self._below_one)
        self._averaged = _averaged(group)
        self._subtracted = _subtracted_means(group)

    def of(self, node: Node, operation: Pointwise, operands: Operands, working: str | None) -> Form:
        """The form of a node in a dtype."""
        if node.id in self._subtracted:
            return Form(operation.op, operands)  # by a true division
        form = _divided(Form(operation.op, operands), working)
        if node.id in self._exact or self._group.numerics == "eager":
            return form
        if working == "float64":
            return form  # the cheaper forms are of float32
        form = self._cheaper(node, form, working)
        if working != "float32" or form.op is not operation.op or form.accuracy is Accuracy.EXACT:
            return form
        if has(form.op, Accuracy.FLUSHING) and node.id in self._summed_alone:
            return form.at(Accuracy.FLUSHING)
        if has(form.op, Accuracy.BELOW_ONE) and node.id in self._below_one:
            return form.at(Accuracy.BELOW_ONE)
        if node.id in self._normalizing:
            return Form(Op.MUL, operands, inverts=True)
        return form

    def is_of_softmax(self, node: Node) -> bool:
        """Whether an operation is the logarithm of a softmax, casts and views between."""
        if op_of(node) is not Op.LOG or self._group.numerics == "eager":
            return False
        source = self._group.nodes[node.inputs[0]]
        while isinstance(row(source), (Cast, View)) or op_of(source) is Op.CONVERT:
            source = self._group.nodes[source.inputs[0]]
        return source.id in self._normalizing and node.id not in self._exact

    def joined(self, node: Node, form: Form, values: Sequence[Value]) -> Form:
        """The form of an operation and of what it reads as one function, where there is one: the
        quick inverse of a quick root, the sum of 1 and a quick function."""
        if form.op is Op.RECIPROCAL and form.accuracy is not Accuracy.EXACT:
            return _of_root(form, values)
        number = [a for _, a in form.operands if isinstance(a, (int, float)) and a == 1]
        read = [a for _, a in form.operands if isinstance(a, Ref)]
        if form.op is not Op.ADD or len(number) != 1 or len(read) != 1 or len(form.operands) != 2:
            return form
        kind = values[read[0].node].kind
        if not isinstance(kind, Compute) or kind.accuracy is not Accuracy.QUICK:
            return form
        op = PLUS_ONE.get(kind.op, Op.ADD)
        if has(op, Accuracy.QUICK):
            return Form(op, kind.operands, Accuracy.QUICK)
        if has(op, Accuracy.RELAXED) and node.id in self._factors:
            return Form(op, _scaled(op, kind.operands, values), Accuracy.RELAXED)
        return form

    def _cheaper(self, node: Node, form: Form, working: str | None) -> Form:
        if form.accuracy is Accuracy.BY_INVERSE:
            return self._multiplied(node, form, working)
        if has(form.op, Accuracy.RELAXED) and node.id in self._factors:
            return form.at(Accuracy.RELAXED)
        if working != "float32":
            return form
        if self._is_quick(node, form.op):
            return _quick(form)
        return self._nearly_exact(node, form)

    def _multiplied(self, node: Node, form: Form, working: str | None) -> Form:
        """A division by a number as a product, of which algebra knows more, where that is as
        exact in the interpreter, too."""
        divisor = dict(form.operands)["other"]
        assert isinstance(divisor, (int, float))
        exact = _is_power_of_two(divisor) or self._is_quick(node, form.op)
        return _quick(form) if working == "float32" and exact else form

    def _is_quick(self, node: Node, op: Op) -> bool:
        """What a rounding to 16 bits hides, or follows, carries an error far above that of a quick
        form; what is made of sums of such values is known better, but not to an exponential's
        error. In a sum of many the errors of each no longer count."""
        return (
            node.id in self._seen_rounded
            or (op in EXPONENTIALS and node.id in self._rounded | self._logged | self._averaged)
            or not self._scaled.isdisjoint(node.inputs)
        )

    def _nearly_exact(self, node: Node, form: Form) -> Form:
        """Without correct rounding where only a sum of many is seen."""
        if has(form.op, Accuracy.SUMMED) and node.id in self._averaged:
            return form.at(Accuracy.SUMMED)
        return form


def _divided(form: Form, working: str | None) -> Form:
    """A division by a number is by its inverse, as in CUDA's own kernels."""
    divisor = dict(form.operands).get("other")
    is_number = isinstance(divisor, (int, float)) and not varies(divisor)
    if is_number and working in FLOATS and has(form.op, Accuracy.BY_INVERSE):
        return replace(form, accuracy=Accuracy.BY_INVERSE)
    return form


def _scaled(op: Op, operands: Operands, values: Sequence[Value]) -> Operands:
    """The operands of a function with a positive factor of its argument apart, where it takes one:
    a polynomial has it in its coefficients."""
    ((_, argument),) = operands
    assert isinstance(argument, Ref)
    kind = values[argument.node].kind
    if "alpha" not in operands_of(op) or not isinstance(kind, Compute) or kind.op is not Op.MUL:
        return operands
    numbers = [a for _, a in kind.operands if isinstance(a, (int, float)) and not varies(a)]
    read = [a for _, a in kind.operands if isinstance(a, Ref)]
    if len(read) != 1 or len(numbers) != 1 or not 0 < numbers[0] < 2.0**20:
        return operands
    return [("self", read[0]), ("alpha", numbers[0])]


def _is_power_of_two(number: Arg) -> bool:
    if not isinstance(number, (int, float)) or varies(number):
        return False
    return math.frexp(number)[0] in (0.5, -0.5) and 2.0**-100 < abs(number) < 2.0**100


def _seen_rounded(group: Graph) -> frozenset[int]:
    """Nodes of which eager shows no more than 11 bits of a float: it rounds to 16 bits their
    results, or all that is made of them."""
    found: set[int] = set()
    for node in reversed(group.nodes):
        if node.type is None:
            continue
        users = group.users(node.id)
        hidden = bool(users) and node.id not in group.outputs and found.issuperset(users)
        if node.type.dtype in NARROW or hidden:
            found.add(node.id)
    return frozenset(found)


def _after_rounding(group: Graph) -> frozenset[int]:
    """Nodes computed from what a product of matrices was rounded to 16 bits."""
    found: set[int] = set()
    for node in group.nodes:
        product = isinstance(row(node), Contraction) and dtype_of(node) in NARROW
        if product or not found.isdisjoint(node.inputs):
            found.add(node.id)
    return frozenset(found)


def _indexing(group: Graph) -> frozenset[int]:
    """Nodes that the places of a lookup are computed from: there an error is another element."""
    found: set[int] = set()
    for node in reversed(group.nodes):
        kind = row(node)
        if node.id in found:
            found.update(node.inputs)
        elif isinstance(kind, Lookup):
            found.update(refs(bound(node)[kind.index]))
    return frozenset(found)


def _scaled_products(group: Graph) -> frozenset[int]:
    """Nodes that are a product of matrices, rounded to 16 bits, times other factors: eager knows
    no element of them to more than 9 (bfloat16) or 12 bits. A sum of such may be known better."""
    found: set[int] = set()
    for node in group.nodes:
        kind = row(node)
        product = isinstance(kind, Contraction) and dtype_of(node) in NARROW
        op = op_of(node)
        keeps = op in (Op.MUL, Op.DIV) or isinstance(kind, (Cast, View))
        read = node.inputs if op is Op.MUL else node.inputs[:1]
        if product or (keeps and not found.isdisjoint(read)):
            found.add(node.id)
    return frozenset(found)


def _summed_for_logarithm(group: Graph) -> frozenset[int]:
    """Exponentials that are only summed, and the sum only seen by its logarithm: there their
    relative errors become an absolute one, no larger than those of the largest terms."""

    def leads(node: Node, *, summed: bool) -> bool:
        users = [group.nodes[u] for u in group.users(node.id)]
        return bool(users) and node.id not in group.outputs and all(good(u, summed) for u in users)

    def good(user: Node, summed: bool) -> bool:
        kind = row(user)
        if isinstance(kind, View):
            return leads(user, summed=summed)
        if summed:
            return op_of(user) is Op.LOG
        return isinstance(kind, Reduction) and kind.monoid == SUM and leads(user, summed=True)

    return frozenset(
        node.id for node in group.nodes if op_of(node) in EXPONENTIALS if leads(node, summed=False)
    )


def _below_one(group: Graph) -> frozenset[int]:
    """Exponentials of what lies below its own maximum, which are summed along the same dimensions:
    the largest is 1, so that beside their sum one below 2**-126 is nothing."""
    found: set[int] = set()
    for node in group.nodes:
        if op_of(node) is not Op.EXP:
            continue
        apart = group.nodes[node.inputs[0]]
        if op_of(apart) is not Op.SUB or bound(apart).get("alpha", 1) != 1:
            continue
        largest = _maximum(group, bound(apart)["other"], bound(apart)["self"])
        if largest is None:
            continue
        sums = (group.nodes[u] for u in group.users(node.id))
        if any(_sums_along(group, s, largest) for s in sums):
            found.add(node.id)
    return frozenset(found)


def _summed_alone(group: Graph, below_one: frozenset[int]) -> frozenset[int]:
    """Those of such exponentials of which nothing but sums is seen, those of matrix products among
    them: there 0 stands for what is far below the largest term."""
    hidden: set[int] = set()

    def hides(user: Node) -> bool:
        kind = row(user)
        if isinstance(kind, Contraction) or user.id in hidden:
            return True
        return isinstance(kind, Reduction) and kind.monoid == SUM

    for node in reversed(group.nodes):
        users = [group.nodes[u] for u in group.users(node.id)]
        scales = op_of(node) in _SCALES or isinstance(row(node), (Cast, View))
        if (scales or node.id in below_one) and users and node.id not in group.outputs:
            hidden |= {node.id} if all(map(hides, users)) else set()
    return below_one & hidden


def _normalizing(group: Graph, below_one: frozenset[int]) -> frozenset[int]:
    """Divisions by a sum of such exponentials: it is at least 1, so that its inverse is as good."""
    found: set[int] = set()
    for node in group.nodes:
        if op_of(node) is not Op.DIV or dtype_of(node) != "float32":
            continue
        divisor = bound(node)["other"]
        while isinstance(divisor, Ref):
            at = group.nodes[divisor.node]
            match row(at):
                case View():
                    divisor = bound(at).get("self")
                case Reduction(monoid=monoid) if monoid == SUM and at.inputs[0] in below_one:
                    found.add(node.id)
                    break
                case _:
                    break
    return frozenset(found)


def _maximum(group: Graph, value: Arg, of: Arg) -> Node | None:
    """The maximum of a tensor that a value is, behind views, or with another number in place of
    infinities."""
    while isinstance(value, Ref):
        node = group.nodes[value.node]
        match row(node):
            case Reduction(monoid=monoid) if monoid == MAX and bound(node)["self"] == of:
                return node
            case View():
                value = bound(node).get("self")
            case Pointwise(op=Op.WHERE) if _is_constant(group, bound(node)["self"]):
                value = bound(node)["other"]
            case _:
                return None
    return None


def _is_constant(group: Graph, value: Arg) -> bool:
    return not isinstance(value, Ref) or isinstance(row(group.nodes[value.node]), Constant)


def _sums_along(group: Graph, user: Node, largest: Node) -> bool:
    """Whether a node sums along the dimensions of a maximum of a tensor of the same shape."""
    kind = row(user)
    if not isinstance(kind, Reduction) or kind.monoid != SUM:
        return False
    rank = len(_shape(group, user.inputs[0]))

    def dims(node: Node) -> set[int]:
        match bound(node).get("dim"):
            case int() as dim:
                return {dim % rank}
            case tuple() as chosen if chosen:
                return {d % rank for d in chosen if isinstance(d, int)}
        return set(range(rank))

    return rank > 0 and dims(user) == dims(largest)


def _shape(group: Graph, node: int) -> tuple[int, ...]:
    found = group.nodes[node].type
    return found.shape if found is not None else ()


def _subtracted_means(group: Graph) -> frozenset[int]:
    """Means that are subtracted, as a norm does: of equal numbers nothing is left, so that an error
    in the last bit of the mean is all that is seen, and a small epsilon makes it large. As a
    product the mean would also be fused with the difference, without a rounding between them."""
    found: set[int] = set()
    for node in group.nodes:
        if op_of(node) is not Op.SUB:
            continue
        mean = _behind_views(group, bound(node)["other"])
        if mean is None or op_of(mean) is not Op.DIV or _is_power_of_two(bound(mean)["other"]):
            continue
        total = _behind_views(group, bound(mean)["self"])
        if total is not None and isinstance(kind := row(total), Reduction) and kind.monoid == SUM:
            found.add(mean.id)
    return frozenset(found)


def _behind_views(group: Graph, value: Arg) -> Node | None:
    """The node that a value is, behind views and casts."""
    while isinstance(value, Ref):
        node = group.nodes[value.node]
        if not isinstance(row(node), (View, Cast)):
            return node
        value = Ref(node.inputs[0])
    return None


def _averaged(group: Graph) -> frozenset[int]:
    """Nodes of which only sums of many elements are seen."""
    found: set[int] = set()

    def hides(user: Node) -> bool:
        kind = row(user)
        if user.id in found:
            return True
        if not isinstance(kind, Reduction) or kind.monoid != SUM or user.type is None:
            return False
        read = math.prod(map(nominal, _shape(group, user.inputs[0])))
        return read >= _MANY * max(1, math.prod(map(nominal, user.type.shape)))

    for node in reversed(group.nodes):
        users = [group.nodes[u] for u in group.users(node.id)]
        if users and node.id not in group.outputs and all(map(hides, users)):
            found.add(node.id)
    return frozenset(found)


def _factors_of_bfloat16(group: Graph) -> frozenset[int]:
    """Nodes of which nothing sees more than a rounding to bfloat16, their own or that of products
    with other values or of choices between them: of these, too, it shows in no more. Not a
    rounding that a norm does not see, which sums the terms in float32 and reads them again: another
    kernel that computes them for the gradient errs otherwise, and the mean is not theirs."""
    found: set[int] = set()

    def hides(user: Node) -> bool:
        rounded = isinstance(row(user), Cast) and dtype_of(user) == "bfloat16"
        return (rounded or op_of(user) in _KEEPS) and user.id in found

    for node in reversed(group.nodes):
        users = [group.nodes[u] for u in group.users(node.id)]
        hidden = bool(users) and node.id not in group.outputs and all(map(hides, users))
        narrow = node.type is not None and node.type.dtype == "bfloat16"
        if hidden or (narrow and (rounds(group, node) or not is_read_beside_its_sum(group, node))):
            found.add(node.id)
    return frozenset(found)


def _of_root(form: Form, values: Sequence[Value]) -> Form:
    """The inverse of a quick square root as one instruction, which errs less than both."""
    (root,) = (a for _, a in form.operands if isinstance(a, Ref))
    kind = values[root.node].kind
    if isinstance(kind, Compute) and (kind.op, kind.accuracy) == (Op.SQRT, form.accuracy):
        return Form(Op.RSQRT, kind.operands)
    return form


def _quick(form: Form) -> Form:
    """The cheaper form of an operation in float32, of nearly its full accuracy."""
    divisor = dict(form.operands).get("other")
    if form.op is Op.DIV and isinstance(divisor, (int, float)) and divisor:
        inverse = [(n, reciprocal(divisor) if n == "other" else a) for n, a in form.operands]
        return Form(Op.MUL, inverse)
    return form.at(Accuracy.QUICK) if has(form.op, Accuracy.QUICK) else form
