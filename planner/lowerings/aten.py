"""A group as eager runs it: operation by operation, each by the framework's own kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from ..capture.capture import Captured
from ..costs import depthwise, vendor_products
from ..costs.device import DeviceProfile
from ..graph.graph import Graph
from ..graph.ops import Contraction, Depthwise, is_compute, row
from ..groups.group import GroupContent
from ..plan import LoweringName
from ..trace.indexed_writes import nbytes_given, target_of
from .base import Boxed, CoverSeconds, GroupSite, Modelled, WholeLowering


def aten_s(group: Graph, device: DeviceProfile) -> float:
    """Seconds of a group as ATen runs it, one operation after the other: the vendor's products and
    convolutions, and every other operation at the speed of memory."""
    total = 0.0
    for node in group.nodes:
        if isinstance(row(node), Contraction):
            total += vendor_products.vendor_s(group, node.id, device)
        elif isinstance(row(node), Depthwise):
            total += depthwise.vendor_s(group, node.id, device)
        elif target_of(group, node) is not None:
            total += device.stream_s(2 * nbytes_given(group, node))
        elif is_compute(node):
            ends = [group.nodes[i].type for i in node.inputs] + [node.type]
            total += device.stream_s(sum(t.nbytes for t in ends if t))
    return total


class Aten(WholeLowering):
    name: LoweringName = "aten"
    one_by_one = True
    takes_numbers = True
    said = "eager"

    def options(self, group: Graph) -> tuple[str, ...]:
        return ("",)

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled:
        return Modelled(self.name, aten_s(part.group, device))

    def build(self, site: GroupSite) -> Graph:
        return site.group

    def whole(self, gm: fx.GraphModule, inputs: Sequence[Any], options: str) -> Callable[..., Any]:
        run: Callable[..., Any] = gm.forward
        return run

    def captured(self, captured: Captured, options: str) -> Callable[..., Any]:
        run: Callable[..., Any] = captured.gm
        return run

    def entire(self, gm: fx.GraphModule, inputs: Sequence[Any], options: str) -> Boxed:
        def run(args: list[Any]) -> Sequence[Any]:
            given = tuple(args)
            args.clear()
            results: Sequence[Any] = gm(*given)
            return results

        return run
