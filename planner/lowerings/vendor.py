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
from ..costs import matrix
from ..costs.device import DeviceProfile
from ..errors import Refusal, Refused
from ..graph.graph import Graph, TensorType
from ..graph.ops import Contraction, View, is_input, row
from ..groups.group import Part
from ..plan import LoweringName
from ..trace.trace import trace
from ..values.values import Values
from ..vendor.attention import attention
from ..vendor.copies import copy_of
from ..vendor.linear import linear_gelu, linear_padded, linear_relu, linear_sum
from ..vendor.operands import Other
from .base import Copied, CoverSeconds, GroupSite, Lowering, Modelled

PADDED = "linear_padded"
"""The call on operands with zeros around them, so that all rows start aligned."""


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
    if len(group.outputs) != 1:
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
}
"""By name, what gives the graph of a call that computes a group, or raises Other."""

_BUILT: dict[str, _Call] = {**_CALLS, PADDED: partial(linear_padded, always=True)}
"""The same for a plan that names one. Of the sizes that share a plan some may need no padding."""


_SURE = 1.25
"""Times as fast as the product itself the padded one must be to be planned unmeasured: it launches
several kernels more."""


@lru_cache(maxsize=1024)
def best_padded(part: Part, device: DeviceProfile) -> Modelled | None:
    """The padded call for a group with a product whose rows do not start aligned, where it is much
    faster: of the other calls the model knows only that they are measured."""
    group = part.group
    products = [n.id for n in group.nodes if isinstance(row(n), Contraction)]
    if not any(matrix.unaligned(group, node) > 1 for node in products):
        return None
    made = equal(group, PADDED)
    if made is None:
        return None
    times = _times(group, made, device)
    if _SURE * sum(times) > sum(matrix.vendor_s(group, node, device) for node in products):
        return None
    return Modelled("vendor", sum(times), options=PADDED, kernels=len(times))


def _times(group: Graph, made: Graph, device: DeviceProfile) -> list[float]:
    """Seconds of each kernel of the calls that compute a group: products by the vendor's rate, all
    else that is no view by the speed of memory, and a copy of a result that lies in other strides
    than the group's."""
    found = []
    for node in made.nodes:
        if isinstance(row(node), Contraction):
            found.append(matrix.vendor_s(made, node.id, device))
        elif not is_input(node) and not isinstance(row(node), View):
            ends = (*(made.nodes[i].type for i in node.inputs), node.type)
            found.append(device.stream_s(sum(t.nbytes for t in ends if t)))
    (wanted,), (result,) = group.outputs, made.outputs
    own, given = group.nodes[wanted or 0].type, made.nodes[result or 0].type
    if own and given and own.stride != given.stride:
        found.append(device.stream_s(2 * own.nbytes))
    return found


class Vendor(Lowering):
    name: LoweringName = "vendor"

    def modelled(self, part: Part, device: DeviceProfile, cover_s: CoverSeconds) -> Modelled | None:
        return best_padded(part, device)

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
