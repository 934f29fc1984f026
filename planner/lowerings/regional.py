"""The common part of the ways to run a region: other graphs stand for it, its bodies, and each
of them runs by a plan of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph
from ..groups.group import GroupContent
from ..regions.chunks import Walk
from .base import CoverSeconds, GroupCall, GroupSite, Lowering, Modelled
from .run_chunks import run_chunks


class Regional(Lowering):
    spares = True

    @abstractmethod
    def choices(self) -> tuple[str, ...]:
        """The options that are tried."""

    @abstractmethod
    def bodies(self, group: Graph, options: str) -> Walk | Refusal:
        """The graphs that stand for a group."""

    def options(self, group: Graph) -> tuple[str, ...]:
        return tuple(each for each in self.choices() if isinstance(self.walk(group, each), Walk))

    def walk(self, group: Graph, options: str) -> Walk | Refusal:
        return self.bodies(group, options)

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled | None:
        found = []
        for options in self.choices():
            walk = self.walk(part.group, options)
            if isinstance(walk, Walk):
                seconds = walk_s(walk, [cover_s(body, device) for body in walk.bodies], device)
                found.append(Modelled(self.name, seconds, options=options, walk=walk))
        return min(found, key=lambda each: each.seconds, default=None)

    def build(self, site: GroupSite) -> GroupCall | Refusal:
        walk = self.walk(site.group, site.options)
        if isinstance(walk, Refusal):
            return walk
        if len(site.bodies) != len(walk.bodies):
            kinds = f"{len(walk.bodies)} kinds of chunks"
            return Refusal("bodies", f"the plan has {len(site.bodies)} bodies for {kinds}")
        made = [site.execute(g, p) for g, p in zip(walk.bodies, site.bodies, strict=True)]
        kernels = sum(made[chunk.body].kernels_per_call for chunk in walk.chunks())
        return GroupCall(run_chunks(walk, [body.boxed for body in made], site.device), kernels)


def walk_s(walk: Walk, bodies: Sequence[float], device: DeviceProfile) -> float:
    """Seconds of all chunks, each body given its own; a slice of a result is moved once more to its
    place."""
    total = sum(bodies[chunk.body] for chunk in walk.chunks())
    for result in walk.results:
        if result.cuts:
            total += walk.count * device.stream_s(2 * result.type.nbytes / walk.count)
    return total


def number_of_bytes(options: str) -> int | Refusal:
    """The number of bytes that `options` names, or a refusal."""
    if not options.isdecimal():
        return Refusal("options", f"{options!r} is no number of bytes")
    return int(options)
