"""A group as one call of a vendor's library that computes it, made by a graph of ATen calls.
`options`: the name of the call.

What a group computes is read off its values, not off the operations that the user chose: scores
are any multiple of one contraction, a softmax is the quotient of two sums that share their
exponentials, a mask is causal where it keeps exactly the keys up to the query's own index.
Roundings on the way are not looked at: what passes is decided where numbers are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import Refusal, Refused
from ..graph.graph import Graph
from ..plan import LoweringName
from ..trace.trace import trace
from ..values.values import Values
from ..vendor.attention import attention
from ..vendor.linear import linear_gelu, linear_padded, linear_relu, linear_sum
from ..vendor.operands import Other
from .base import GroupSite, Lowering


@dataclass(frozen=True, slots=True)
class Equal:
    """`graph` has the inputs of the group and gives its output by a vendor's call. The strides
    of the output are up to the kernel that the vendor picks."""

    name: str
    graph: Graph


def equals(group: Graph) -> tuple[Equal, ...]:
    """The vendor calls that compute what the group computes."""
    if len(group.outputs) != 1:
        return ()
    try:
        values = trace(group)
    except Refused:
        return ()
    found = []
    for name, made in _CALLS.items():
        try:
            found.append(Equal(name, made(group, values)))
        except Other:
            continue
    return tuple(found)


def equal(group: Graph, name: str) -> Graph | None:
    """The graph of the vendor's call of that name."""
    return next((e.graph for e in equals(group) if e.name == name), None)


_CALLS: dict[str, Callable[[Graph, Values], Graph]] = {
    "attention": attention,
    "linear_relu": linear_relu,
    "linear_gelu": linear_gelu,
    "linear_sum": linear_sum,
    "linear_padded": linear_padded,
}
"""By name, what gives the graph of a call that computes a group, or raises Other."""


class Vendor(Lowering):
    name: LoweringName = "vendor"

    def options(self, group: Graph) -> tuple[str, ...]:
        return tuple(each.name for each in equals(group))

    def build(self, site: GroupSite) -> Graph | Refusal:
        found = equal(site.group, site.options)
        return found or Refusal("vendor", f"no call {site.options!r} computes the group")
