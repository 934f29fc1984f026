"""A group as kernels of ours, generated from a config."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..codegen.source import Program
from ..config import Config
from ..costs.cost import Cost
from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph
from ..groups.group import GroupContent
from ..plan import LoweringName
from ..space.space import Space, space_of
from .base import CoverSeconds, GroupSite, Lowering, Modelled


@lru_cache(maxsize=64)
def space_for(part: GroupContent, device: DeviceProfile) -> Space | Refusal:
    """The group's space; no more of them than memory has room for."""
    return space_of(part.group, device)


@lru_cache(maxsize=1024)
def best(part: GroupContent, device: DeviceProfile) -> tuple[Config, Cost] | None:
    """The model's best config, with its cost."""
    space = space_for(part, device)
    return None if isinstance(space, Refusal) else space.top()


_OFFERED = 24
"""Configs among which others are chosen for one that cannot be built."""


class Triton(Lowering):
    name: LoweringName = "triton"
    generated = True

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled | None:
        found = best(part, device)
        return None if found is None else self.by(*found)

    def by(self, config: Config, cost: Cost) -> Modelled:
        """A group by a config that is known."""
        return Modelled(self.name, cost.seconds, config, kernels=cost.launches)

    def others(
        self, group: Graph, config: Config | None, device: DeviceProfile
    ) -> Sequence[Config]:
        space = space_of(group, device)
        if isinstance(space, Refusal) or config is None:
            return ()
        failed = space.judge(config)
        most = failed.shared_bytes if isinstance(failed, Cost) else 0
        offered = [(c, cost) for c, cost in space.seeds(_OFFERED) if c != config]
        # What takes less of the device is likelier to be built; the sort keeps the model's order.
        offered.sort(key=lambda each: most > 0 and each[1].shared_bytes >= most)
        return [c for c, _ in offered]

    def build(self, site: GroupSite) -> Program | Refusal:
        if site.config is None:
            return Refusal("config", "a generated kernel needs a config")
        return site.lower(site.group, site.config)
