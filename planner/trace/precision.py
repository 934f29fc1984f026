"""In which dtype an operation is computed."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import Refused
from ..graph.dtypes import FLOAT8, MATMUL_DTYPES, NARROW, register_dtype
from ..graph.graph import Arg, Graph, Node, Ref
from ..graph.numbers import stored
from ..graph.op import Op
from ..graph.ops import (
    MAX,
    MIN,
    SUM,
    Cast,
    Concat,
    Contraction,
    Cumulative,
    Depthwise,
    Pointwise,
    Reduction,
    View,
    bound,
    op_of,
    row,
)
from ..graph.sizes import plain
from ..graph.texts import operands_of
from .promotion import promoted

_OF_ELEMENTS = (Pointwise, Cast, View, Reduction)
_KINDS = {
    "default": Kind.DEFAULT,
    "float": Kind.INT_TO_FLOAT,
    "bool": Kind.ALWAYS_BOOL,
}


def working_dtype(group: Graph, node: Node, operation: Pointwise) -> str | None:
    """The dtype in which an operation is computed, by PyTorch's promotion; None where it takes its
    operands as they are."""
    if operation.promotion == "same":
        return None
    kind = _KINDS[operation.promotion]
    working, _ = promoted(_samples(group, node, operation), kind)
    return register_dtype(str(working).removeprefix("torch."))


def compared_dtype(group: Graph, node: Node, operation: Pointwise) -> str | None:
    """The 16-bit dtype to which eager rounds the operands of a comparison or a remainder before it
    looks at them; None where it is no such operation, or its operands have 32 bits or more."""
    if not operation.rounds_numbers:
        return None
    given = _samples(group, node, operation)
    _, common = promoted(given, Kind.DEFAULT)
    name = str(common).removeprefix("torch.")
    return name if name in NARROW else None


def _samples(
    group: Graph, node: Node, operation: Pointwise
) -> list[torch.Tensor | bool | int | float]:
    """What takes part in the promotion of an operation's operands."""
    samples: list[torch.Tensor | bool | int | float] = []
    for name, argument in bound(node).items():
        if name == "condition" or name not in operands_of(operation.op):
            continue
        if isinstance(argument, Ref):
            tensor = group.nodes[argument.node].type
            if tensor is None:
                raise Refused("opaque", f"{group.nodes[argument.node].name} is no single tensor")
            samples.append(_sample(tensor.dtype, len(tensor.shape)))
        elif name != "alpha" and isinstance(argument, (bool, int, float)):
            samples.append(plain(argument))
    return samples


@lru_cache(maxsize=256)
def _sample(dtype: str, dimensions: int) -> torch.Tensor:
    """A tensor of this dtype, as real as one without data is while torch traces, too."""
    with _disable_current_modes():
        return torch.empty((1,) * dimensions, dtype=getattr(torch, dtype), device="meta")


def number_of(group: Graph, node: Node, operation: Pointwise, number: Arg) -> Arg:
    """A number beside tensors, as eager takes it: arithmetic on 16-bit floats keeps all of it, but
    what compares them, or takes a remainder, first makes it one of them."""
    if not isinstance(number, (bool, int, float)) or not operation.rounds_numbers:
        return number
    types = [group.nodes[i].type for i in node.inputs]
    narrow = {t.dtype for t in types if t is not None and t.dtype in NARROW}
    alone = len(narrow) == 1 and len(types) == 1
    return stored(number, narrow.pop()) if alone else number


def dtype_of(node: Node) -> str:
    assert node.type is not None
    return node.type.dtype


def rounds(group: Graph, node: Node) -> bool:
    """Whether a result of 16 bits loses in registers what it loses in memory. A cast that the user
    wrote does, but where it is only stored, or an operand of products of matrices, for there it is
    rounded in any case; so does one that is stored beside a statistic of it. The mean of other
    numbers than those that the gradient of a norm will read would not be theirs, a softmax of
    others would not sum to 1, and the gradient of a maximum would find no element that is equal to
    it. With the numerics of eager the result of every operation does."""
    if node.type is None or node.type.dtype not in NARROW:
        return False
    if node.type.dtype in FLOAT8:
        return isinstance(row(node), Cast)  # Triton's own conversion keeps the largest number.
    users = list(group.users(node.id))
    if group.numerics == "eager":
        kinds = (Pointwise, Cast, Reduction, Cumulative, Contraction, Depthwise)
        return bool(users) and isinstance(row(node), kinds)
    own = row(node)
    if is_stored_beside_its_statistic(group, node):
        return True
    if not isinstance(own, Cast) or not own.by_user:
        return False
    while users:
        user = group.nodes[users.pop()]
        if isinstance(row(user), View) or is_copy(group, user):
            users += group.users(user.id)
        elif not isinstance(row(user), Contraction):
            return True
    return False


def is_copy(group: Graph, node: Node) -> bool:
    """Whether a node gives the very numbers of its operand: a copy, such as a dropout leaves that
    drops nothing."""
    if op_of(node) is not Op.CONVERT or len(node.inputs) != 1:
        return False
    given = group.nodes[node.inputs[0]].type
    return given is not None and given.dtype == dtype_of(node)


def is_stored_beside_its_statistic(group: Graph, node: Node) -> bool:
    """Whether a result of 16 bits is an output, and a wide statistic of it is one, too: something
    smaller, made of this result alone and of sums of its elements in float32. Or the maximum or
    the minimum of its elements is taken, for whatever reader."""
    own = node.type
    if own is None or own.dtype not in NARROW or node.id not in group.outputs:
        return False
    made = {node.id: False}  # of this result alone; whether a sum lies between
    reached = list(group.users(node.id))
    while reached:
        user = group.nodes[reached.pop()]
        kind = row(user)
        is_made = isinstance(kind, _OF_ELEMENTS) and made.keys() >= set(user.inputs)
        if user.type is None or user.id in made or not is_made:
            continue
        summed = any(made[i] for i in user.inputs)
        if isinstance(kind, Reduction):
            if kind.monoid in (MAX, MIN) and not summed:
                return True
            if user.type.dtype in NARROW:
                continue
            summed = True
        if summed and user.type.numel < own.numel and user.id in group.outputs:
            return True
        made[user.id] = summed
        reached += group.users(user.id)
    return False


def is_read_beside_its_sum(group: Graph, node: Node) -> bool:
    """Whether a sum that is not rounded to 16 bits is taken of a result's elements, behind views,
    casts and operations on each element alone, and something else reads them, as in a norm."""
    summed = read = False
    reached = list(group.users(node.id))
    while reached and not (summed and read):
        user = group.nodes[reached.pop()]
        kind = row(user)
        if isinstance(kind, (Pointwise, View, Cast)) and len(user.inputs) == 1:
            reached += group.users(user.id)
        elif isinstance(kind, Reduction) and kind.monoid == SUM and dtype_of(user) not in NARROW:
            summed = True
        else:
            read = True
    return summed and read


def product_dtypes(group: Graph, node: Node, left: int, right: int) -> tuple[str, str]:
    """The dtype in which a product takes its operands, and its precision where that is float32.

    Operands that are 16-bit numbers, only upcast to float32, give the same products as those. With
    one such, tf32 has all that a result shows which is rounded to bfloat16 at once."""
    sides = [held(group, left), held(group, right)]
    own = dtype_of(group.nodes[left])
    if sides[0] is not None and sides[0] == sides[1]:
        return sides[0], "ieee"
    if dict(node.kwargs).get("precision") == "tf32":
        return own, "tf32"
    loose = own == "float32" and any(sides) and group.numerics == "fast"
    shown = loose and _is_rounded_at_once(group, node)
    return own, "tf32" if shown else "ieee"


def is_cast(group: Graph, node: int) -> bool:
    """Whether the numbers of a node are those that a cast of the user's gives, behind views."""
    seen, left = set[int](), [node]
    while left:
        one = left.pop()
        own = row(group.nodes[one])
        if isinstance(own, Cast) and own.by_user:
            return True
        if isinstance(own, (View, Concat)) and one not in seen:
            seen.add(one)
            left += group.nodes[one].inputs
    return False


def held(group: Graph, node: int) -> str | None:
    """The 16-bit dtype of which all of a node's numbers are; None where there is none."""
    while True:
        this = group.nodes[node]
        if this.type is None:
            return None
        if this.type.dtype in NARROW & MATMUL_DTYPES:
            return this.type.dtype
        if len(this.inputs) != 1 or not _passes_on(this):
            return None
        node = this.inputs[0]


def _passes_on(node: Node) -> bool:
    """Whether the result has the operand's numbers, as float32."""
    op = op_of(node)
    same = op is Op.CONVERT or (op is Op.MUL and 1 in node.args[1:])
    return (same or isinstance(row(node), (Cast, View))) and dtype_of(node) == "float32"


def _is_rounded_at_once(group: Graph, node: Node) -> bool:
    """Whether all that reads it is rounded to bfloat16, itself or behind views."""
    stack = [node]
    while stack:
        one = stack.pop()
        readers = [n for n in group.nodes if one.id in n.inputs]
        if not readers or one.id in group.outputs:
            return False
        for reader in readers:
            if _passes_on(reader):
                stack.append(reader)
            elif not isinstance(row(reader), Cast) or dtype_of(reader) != "bfloat16":
                return False
    return True
