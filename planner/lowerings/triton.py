"""A group as kernels of ours, generated from a config."""

from __future__ import annotations

from functools import lru_cache

from ..codegen.source import Program
from ..config import Config
from ..costs.cost import Cost
from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..groups.group import Part
from ..plan import LoweringName
from ..space.space import Space, space_of
from .base import CoverSeconds, GroupSite, Lowering, Modelled


@lru_cache(maxsize=64)
def space_for(part: Part, device: DeviceProfile) -> Space | Refusal:
    """The group's space; no more of them than memory has room for."""
    return space_of(part.group, device)


@lru_cache(maxsize=1024)
def best(part: Part, device: DeviceProfile) -> tuple[Config, Cost] | None:
    """The model's best config, with its cost."""
    space = space_for(part, device)
    return None if isinstance(space, Refusal) else space.top()


class Triton(Lowering):
    name: LoweringName = "triton"
    generated = True

    def modelled(self, part: Part, device: DeviceProfile, cover_s: CoverSeconds) -> Modelled | None:
        found = best(part, device)
        if found is None:
            return None
        config, cost = found
        return Modelled(self.name, cost.seconds, config, kernels=cost.launches)

    def build(self, site: GroupSite) -> Program | Refusal:
        if site.config is None:
            return Refusal("config", "a generated kernel needs a config")
        return site.lower(site.group, site.config)
