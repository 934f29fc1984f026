"""The one interface by which everything else knows a way to run a group.

A lowering is an object without state. What it must remember of a group is in the plan: a config, or
`options`, a text that no other file reads. A new one is a file with a subclass of `Lowering`, its
name in `plan.LoweringName` and its place in the tables of `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from ..capture.capture import Captured
from ..codegen.source import Program
from ..config import Config
from ..costs.device import DeviceProfile
from ..errors import Refusal
from ..graph.graph import Graph, TensorType
from ..groups.group import GroupContent
from ..plan import GroupPlan, LoweringName, Plan
from ..regions.chunks import Walk

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Takes its inputs in a list that it empties, so that it can free them early."""

CoverSeconds = Callable[[Graph, DeviceProfile], float]
"""The model's seconds of a graph that is cut into groups."""


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A function that computes a group. kernels: of ours, that one call launches."""

    run: Boxed
    kernels: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """ATen calls whose result lies in other strides than the group's, and what copies it there."""

    calls: Graph
    copy: Program


Built: TypeAlias = Program | Graph | Copied | GroupCall
"""What runs a group: kernels to launch, ATen calls to make in its place, those with kernels after
them, or a function."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Kernels that compute what a call reads of parameters alone. inputs: the places of what they
    read among the group's inputs. types: of what they give."""

    program: Program
    inputs: tuple[int, ...]
    types: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """ATen calls in place of a group, of which parts may run before it. reads: what each input of
    `calls` is, by its place among the group's inputs and behind them all that the preparations
    give."""

    preparations: tuple[Preparation, ...]
    calls: Graph
    reads: tuple[int, ...]


def program_of(built: Built) -> Program | None:
    """The kernels of ours that run a group, or end it."""
    return (
        built.copy if isinstance(built, Copied) else built if isinstance(built, Program) else None
    )


class SubgraphRunner(Protocol):
    """Runs one of the graphs that stand for a group."""

    boxed: Boxed
    kernels_per_call: int


@dataclass(frozen=True, slots=True)
class GroupSite:
    """A group where it is to run. config, options, bodies: as the plan of the group has them.

    lower: the kernels of a group with a config. compile: the group by Inductor in a mode of
    torch.compile. execute: what runs another graph by a plan of its own.
    """

    group: Graph
    config: Config | None
    options: str
    bodies: tuple[Plan, ...]
    device: torch.device
    lower: Callable[[Graph, Config], Program | Refusal]
    compile: Callable[[str], Boxed]
    execute: Callable[[Graph, Plan], SubgraphRunner]


@dataclass(frozen=True, slots=True)
class Modelled:
    """One way to run a group with its seconds by the cost model. kernels: launches of a call.
    walk: the graphs that stand for the group, where it is run by others. is_judged: only where
    its numbers were compared may it run."""

    lowering: LoweringName
    seconds: float
    config: Config | None = None
    options: str = ""
    kernels: int = 1
    walk: Walk | None = None
    is_judged: bool = False

    def plan(self, nodes: tuple[int, ...], key: str, copies: tuple[int, ...] = ()) -> GroupPlan:
        """The plan of a group of these nodes; key: of the group alone."""
        return GroupPlan(
            nodes,
            self.lowering,
            key,
            self.config,
            self.seconds,
            kernels=self.kernels,
            options=self.options,
            copies=copies,
        )


class Lowering(Protocol):
    """A way to run a group."""

    name: LoweringName
    """In plans and in the store."""
    generated: bool = False
    """It runs kernels of ours, which are made from a config."""
    one_by_one: bool = False
    """Each operation runs by itself as eager runs it: the group's nodes are no unit, and its
    numbers are what others are compared with."""
    takes_numbers: bool = False
    """The group may read values that are no tensors."""
    spares: bool = False
    """It spares memory for which it may take a little longer."""
    slow: bool = False
    """It compiles for minutes, in the process that measures."""

    def options(self, group: Graph) -> tuple[str, ...]:
        """The values that `options` may have for this group; none where it cannot run it, or needs
        a config."""
        return ()

    def modelled(
        self, part: GroupContent, device: DeviceProfile, cover_s: CoverSeconds
    ) -> Modelled | None:
        """The best that the model knows of it for a group; None where it knows nothing."""
        return None

    def others(
        self, group: Graph, config: Config | None, device: DeviceProfile
    ) -> Sequence[Config]:
        """Configs to try where that one cannot be built, the most hopeful first."""
        return ()

    def build(self, site: GroupSite) -> Built | Refusal:
        """The code that runs the group there, or a refusal. Raises CompileFailed."""
        ...

    def prepared(self, site: GroupSite) -> PreparedCall | None:
        """The same in two steps; None where it is one."""
        return None

    def walk(self, group: Graph, options: str) -> Walk | Refusal | None:
        """The graphs that stand for the group, each with a plan of its own; None where the group
        runs as it is."""
        return None

    def owns_cuda_graphs(self, options: str) -> bool:
        """Whether it captures CUDA graphs itself, which cannot be within another."""
        return False


class WholeLowering(Lowering, Protocol):
    """A lowering that can also run a whole graph, as Dynamo or AOTAutograd gave it."""

    said: str
    """How a message to the user names it."""

    def whole(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], options: str
    ) -> Callable[..., Any]:
        """Runs a graph from Dynamo."""
        ...

    def captured(self, captured: Captured, options: str) -> Callable[..., Any]:
        """Runs a captured graph of static sizes, on its inputs."""
        ...

    def entire(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], options: str) -> Boxed:
        """Runs an ATen graph, with fake or symbolic inputs, that is all AOTAutograd asked for."""
        ...
