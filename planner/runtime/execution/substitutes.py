"""Substitutes for groups of a plan that cannot be built here.

A plan comes from a store, or from the cost model: its kernel may need more shared memory than the
device has, or not compile with another Triton. The next configs of the group's space are tried
then, and what is left of it runs as ATen: the other groups run as planned. Which config was taken
is kept beside the machine code, so that the next process need not search for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError

from ...config import Config
from ...costs.device import DeviceProfile, profile_of
from ...errors import DeviceError
from ...graph.graph import Graph
from ...lowerings.registry import ATEN, lowering_of
from ...plan import GroupPlan
from ..machine_code import compiled_before, ready
from ..machine_code.compile import CompileFailed

Result = TypeVar("Result")
_CONFIG: TypeAdapter[Config | None] = TypeAdapter(Config | None)

TRIED = 4
"""Configs that are tried: each may take seconds to compile."""


@dataclass(slots=True)
class Substitutes:
    """Finds another way to run groups; `notes` says of which, and why, one sentence each."""

    device: torch.device
    notes: list[str] = field(default_factory=list)
    _instead: dict[tuple[str, str, Config | None, str], GroupPlan] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The text of the warning, for all of them."""
        more = len(self.notes) - 1
        also = f"; so is it with {more} other kind{'s' * (more > 1)} of groups" if more else ""
        return f"a kernel of its plan cannot be built: {self.notes[0]}{also}"

    def build(
        self, group: GroupPlan, part: Graph, build: Callable[[GroupPlan], Result]
    ) -> tuple[GroupPlan, Result | None]:
        """The group with what `build` makes of it; or another way for it with what it makes of
        that, None where each of its operations is left to ATen."""
        same = group.kernel_key, group.lowering, group.config, group.options
        if group.kernel_key and same in self._instead:  # An equal layer.
            return self._made(_like(self._instead[same], group), build)
        try:
            return group, build(group)
        except CompileFailed as error:
            instead, made = self._other(group, part, build)
            self._instead[same] = instead
            how = f"config {instead.config}" if instead.config else "ATen"
            self.notes.append(f"{error}; its group runs by {how}")
            return instead, made

    def _other(
        self, group: GroupPlan, part: Graph, build: Callable[[GroupPlan], Result]
    ) -> tuple[GroupPlan, Result | None]:
        device = self._profile()
        kind = device.key if device else self.device.type
        place = ready.code_key(("substitute", group.kernel_key, str(group.config), kind))
        known = _remembered(place)
        configs: Sequence[Config] = known or ()
        if known is None and device is not None:
            configs = lowering_of(group).others(part, group.config, device)[:TRIED]
        for config in configs:
            instead = _by(group, config)
            try:
                made = build(instead)
            except CompileFailed:
                continue
            if known is None:
                _remember(place, config)
            return instead, made
        if known is None:
            _remember(place, None)
        return _by(group, None), None

    def _profile(self) -> DeviceProfile | None:
        try:
            return profile_of(self.device)
        except DeviceError:
            return None

    @staticmethod
    def _made(
        group: GroupPlan, build: Callable[[GroupPlan], Result]
    ) -> tuple[GroupPlan, Result | None]:
        return group, None if lowering_of(group).one_by_one else build(group)


class ATenInstead(Substitutes):
    """Leaves a group that cannot be built to ATen at once, and remembers nothing of it."""

    def _other(
        self, group: GroupPlan, part: Graph, build: Callable[[GroupPlan], Result]
    ) -> tuple[GroupPlan, Result | None]:
        return _by(group, None), None


def _by(group: GroupPlan, config: Config | None) -> GroupPlan:
    """The group by another config, or by ATen."""
    unknown = replace(group, config=config, predicted=None, measured=None)
    return unknown if config else replace(unknown, lowering=ATEN.name, options="", bodies=())


def _like(instead: GroupPlan, group: GroupPlan) -> GroupPlan:
    return replace(instead, nodes=group.nodes, copies=group.copies)


def _remembered(place: str) -> tuple[Config, ...] | None:
    """The config that was taken; none where ATen was; None where nothing is known."""
    known: Any = compiled_before.told(place)
    try:
        config = _CONFIG.validate_python(known["instead"]) if known is not None else None
    except (ValidationError, KeyError, TypeError):
        return None  # Damaged: it is searched for again.
    return None if known is None else (config,) if config else ()


def _remember(place: str, config: Config | None) -> None:
    compiled_before.tell(place, {"instead": _CONFIG.dump_python(config, mode="json")})
