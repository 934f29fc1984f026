"""Prices of groups by the cost model. Each is computed once, whatever the names of the group's
nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..costs.depthwise import is_multiplied, is_predicted
from ..costs.device import DeviceProfile
from ..costs.vendor_products import is_skinny
from ..errors import Refusal
from ..graph.ops import is_compute
from ..groups.group import GroupContent
from ..groups.legality import has_nest
from ..lowerings.aten import aten_s
from ..lowerings.triton import space_for
from ..lowerings.vendor import best_aligned

SPARED = 1.1
"""Times the seconds of two kernels that one with a product of matrices may take where it spares a
large intermediate. In a contest of measured plans `SPARED` of `tuner/measure/timing.py` counts."""

_MULTIPLIED = 6.0
"""Times the seconds that the model says which a kernel takes whose product multiplies a depthwise
convolution: each of the warps that share rows of an operand computes all of it. Of the first blocks
of MobileNetV2, MnasNet and MobileViT such kernels took 5 to 9 times as long on an H200. Groups grow
by the model's seconds all the same: half of the way from a convolution to the end of its block is
no faster than none, and is cut between products then."""

_MOST = 1 << 16


class _QuickPrices:
    """Seconds of the best of a few usual configs, by the group's key and device: computed once in a
    process, or told by another one."""

    def __init__(self) -> None:
        self._known: dict[DeviceProfile, dict[str, float | None]] = {}
        self.computed = 0

    def __call__(self, part: GroupContent, device: DeviceProfile) -> float | None:
        known = self.of(device)
        if part.key not in known:
            if len(known) >= _MOST:
                known.clear()
            known[part.key] = _quick_s(part, device)
            self.computed += 1
        return known[part.key]

    def of(self, device: DeviceProfile) -> dict[str, float | None]:
        """All that are known for a device, the same however fast its vendor's products are: they
        are no part of a kernel of ours."""
        found = self._known.get(device)
        if found is None:
            found = self._known.setdefault(replace(device, vendor=1.0), {})
            self._known[device] = found
        return found

    def tell(self, device: DeviceProfile, prices: Mapping[str, float | None]) -> None:
        """Prices that another process has computed by the same code."""
        self.of(device).update(prices)

    def cache_clear(self) -> None:
        self._known.clear()


quick_s = _QuickPrices()
"""Seconds of a group by a quick look; None where it has no usual config, or the model does not know
how fast it is."""


def _quick_s(part: GroupContent, device: DeviceProfile) -> float | None:
    if not is_predicted(part.group):
        return None
    space = space_for(part, device)
    cost = None if isinstance(space, Refusal) else space.quick()
    return cost.seconds if cost else None


def modelled_s(part: GroupContent, device: DeviceProfile) -> float | None:
    """Seconds of a group by the model's best config, or as the vendor's products; None where it
    has no kernel."""
    found = quick_s(part, device)
    if found is None or not (part.contracts or part.convolves):
        return found
    return min(found, called_s(part, device))


def seconds(part: GroupContent, device: DeviceProfile) -> float:
    """Seconds of a group; where it has no kernel, as ATen runs it."""
    found = modelled_s(part, device)
    return called_s(part, device) if found is None else found


def called_s(part: GroupContent, device: DeviceProfile) -> float:
    """Seconds of a group by ATen or, where it has a product whose rows do not start aligned, by the
    vendor's call on padded operands."""
    aligned = best_aligned(part, device) if part.contracts else None
    usual_s = aten_s(part.group, device)
    return usual_s if aligned is None else min(aligned.seconds, usual_s)


def price_s(part: GroupContent, device: DeviceProfile, *, single: bool) -> float | None:
    """Seconds of a group as covers are compared by: less where it spares a large value, more where
    the model is known to say too little; None where it has no kernel. single: it is one operation,
    perhaps with copies of what it reads, which ATen runs where it has no kernel."""
    if single:
        return seconds(part, device)
    if has_nest(part) is not None:
        return None
    found = modelled_s(part, device)
    if found is not None and part.convolves and is_multiplied(part.group):
        return _MULTIPLIED * found
    return found / SPARED if found is not None and spares(part) else found


def spares(part: GroupContent) -> bool:
    """Whether a group with a product holds a value larger than all that it reads and writes."""
    group = part.group
    ends = {*group.inputs, *(o for o in group.outputs if o is not None)}
    inner = [n.type.nbytes for n in group.nodes if n.type and n.id not in ends and is_compute(n)]
    read = sum(t.nbytes for t in (group.nodes[n].type for n in ends) if t)
    return part.contracts and max(inner, default=0) > read


def is_lone_product(part: GroupContent) -> bool:
    """Whether the group is a product by itself, which is always left to the vendor, but for a few
    rows times a matrix: the vendor reads that no faster than kernels of ours."""
    compute = [node.id for node in part.group.nodes if is_compute(node)]
    return part.contracts and len(compute) == 1 and not is_skinny(part.group, compute[0])


def is_left(part: GroupContent) -> bool:
    """Whether a plan without measurements leaves a group to the vendor, whatever the model says."""
    return is_lone_product(part) or not is_predicted(part.group)


def is_vendors(part: GroupContent, found_s: float, device: DeviceProfile) -> bool:
    """Whether the vendor's products or convolutions with ATen around them, or its padded call, are
    no slower than these seconds."""
    return (part.contracts or part.convolves) and called_s(part, device) <= found_s
