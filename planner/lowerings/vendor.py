"""A group as one call of a vendor's library that computes it, made by a graph of ATen calls.
`options`: the name of the call.

What a group computes is read off its values, not off the operations that the user chose: scores
are any multiple of one contraction, a softmax is the quotient of two sums that share their
exponentials, a mask is causal where it keeps exactly the keys up to the query's own index.
Roundings on the way are not looked at: what passes is decided where numbers are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

from ..codegen.source import Program
from ..costs import vendor_products
from ..costs.device import DeviceProfile
from ..costs.vendor_tiles import tiles_s
from ..errors import Refusal, Refused
from ..graph.dtypes import itemsize
from ..graph.graph import Graph, TensorType
from ..graph.ops import Contraction, IndexedWrite, View, is_input, row
from ..groups.group import GroupContent
from ..plan import LoweringName
from ..trace.trace import trace
from ..values.values import Values
from ..vendor.attention import attention
from ..vendor.copies import copy_of
from ..vendor.linear import (
    linear_gelu,
    linear_padded,
    linear_relu,
    linear_strided_rows,
    linear_sum,
)
from ..vendor.operands import Other
from ..vendor.strided_rows import turns_of
from .base import Copied, CoverSeconds, GroupSite, Lowering, Modelled

PADDED = "linear_padded"
"""The call on operands with zeros around them, so that all rows start aligned."""

STRIDED = "linear_strided_rows"
"""One call for every n-th row of the result, from a column on in which these rows start aligned."""


@dataclass(frozen=True, slots=True)
class Equal:
    """`graph` has the inputs of the group and gives its output by a vendor's call. The strides
    of the output are up to the kernel that the vendor picks."""

    name: str
    graph: Graph


def equals(group: Graph) -> tuple[Equal, ...]:
    """The vendor calls that compute what the group computes."""
    return tuple(_equals(group, _CALLS))


def equal(group: Graph, name: str) -> Graph | None:
    """The graph of the vendor's call of that name."""
    made = _BUILT.get(name)
    return next((e.graph for e in _equals(group, {name: made})), None) if made else None


def _equals(group: Graph, calls: Mapping[str, _Call]) -> Iterator[Equal]:
    if len(group.outputs) != 1 or any(isinstance(row(n), IndexedWrite) for n in group.nodes):
        return
    try:
        values = trace(group)
    except Refused:
        return
    for name, made in calls.items():
        try:
            yield Equal(name, made(group, values))
        except Other:
            continue


_Call: TypeAlias = Callable[[Graph, Values], Graph]

_CALLS: dict[str, _Call] = {
    "attention": attention,
    "linear_relu": linear_relu,
    "linear_gelu": linear_gelu,
    "linear_sum": linear_sum,
    PADDED: linear_padded,
    STRIDED: linear_strided_rows,
}
"""By name, what gives the graph of a call that computes a group, or raises Other."""

_BUILT: dict[str, _Call] = {
    **_CALLS,
    PADDED: partial(linear_padded, always=True),
    STRIDED: partial(linear_strided_rows, always=True),
}
"""The same for a plan that names one. Of the sizes that share a plan some may need no padding."""


_SURE = 1.25
"""Times as fast as the product itself the padded one must be to be planned unmeasured: it launches
several kernels more."""


@lru_cache(maxsize=1024)
def best_aligned(part: GroupContent, device: DeviceProfile) -> Modelled | None:
    """The call for a group with a product whose rows do not start aligned, where one is much
    faster: of the other calls the model knows only that they are measured."""
    group = part.group
    products = [n.id for n in group.nodes if isinstance(row(n), Contraction)]
    if not any(vendor_products.unaligned(group, node) > 1 for node in products):
        return None
    made = _equals(group, {name: _CALLS[name] for name in _TIMES})
    found = [(_TIMES[each.name](group, each.graph, device), each.name) for each in made]
    if not found:
        return None
    times, name = min(found, key=lambda each: (sum(each[0]), each[1]))
    if _SURE * sum(times) > sum(vendor_products.vendor_s(group, node, device) for node in products):
        return None
    return Modelled("vendor", sum(times), options=name, kernels=len(times))


def _padded_times(group: Graph, made: Graph, device: DeviceProfile) -> list[float]:
    """Seconds of each kernel of the padded call: products by the vendor's rate, all else that is no
    view by the speed of memory, and a copy of a result that lies in other strides than the
    group's."""
    found = []
    for node in made.nodes:
        if isinstance(row(node), Contraction):
            found.append(vendor_products.vendor_s(made, node.id, device))
        elif not is_input(node) and not isinstance(row(node), View):
            ends = (*(made.nodes[i].type for i in node.inputs), node.type)
            found.append(device.stream_s(sum(t.nbytes for t in ends if t)))
    (wanted,), (result,) = group.outputs, made.outputs
    own, given = group.nodes[wanted or 0].type, made.nodes[result or 0].type
    if own and given and own.stride != given.stride:
        found.append(device.stream_s(2 * own.nbytes))
    return found


def _strided_times(group: Graph, made: Graph, device: DeviceProfile) -> list[float]:
    """Those of `mm_strided_rows`: of its calls, and of the columns at both ends."""
    (call,) = (n for n in made.nodes if len(n.inputs) == 2)
    (product,) = (n.id for n in group.nodes if isinstance(row(n), Contraction))
    left, result = made.nodes[call.inputs[0]].type, call.type
    assert left is not None
    assert result is not None
    turns = turns_of(result.shape[0], result.shape[1], result.dtype)
    assert turns is not None
    (rows, summed), size = left.shape, itemsize(left.dtype)
    rate = vendor_products.vendor_work(group, product, device)[1]
    one = tiles_s(1, rows // turns.calls, turns.body, summed, size, rate, device)
    ends = 2 * turns.ends * size
    moved = 2 * ends * summed, left.nbytes + ends * rows, 2 * ends * rows
    return [device.launch_s + one] * turns.calls + [device.stream_s(nbytes) for nbytes in moved]


_TIMES = {PADDED: _padded_times, STRIDED: _strided_times}
"""Of the calls that the model plans by itself."""


class Vendor(Lowering):
    name: LoweringName = "vendor"

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled | None:
        return best_aligned(part, device)

    def options(self, group: Graph) -> tuple[str, ...]:
        return tuple(each.name for each in equals(group))

    def build(self, site: GroupSite) -> Graph | Copied | Refusal:
        """Where padding leaves the result in longer rows, a kernel of ours copies it: the library's
        takes more than twice as long as the bytes do."""
        found = equal(site.group, site.options)
        if found is None:
            return Refusal("vendor", f"no call {site.options!r} computes the group")
        copy = copy_of(found, _result(site.group)) if site.options == PADDED else None
        program = site.lower(*copy) if copy else None
        return Copied(found, program) if isinstance(program, Program) else found


def _result(group: Graph) -> TensorType | None:
    (output,) = group.outputs
    return None if output is None else group.nodes[output].type
