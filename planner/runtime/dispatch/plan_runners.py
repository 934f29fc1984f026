"""Finds the plan of a captured graph, or makes one where that is the policy, and builds it.

Nothing here imports Dynamo.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from ...capture.capture import Captured
from ...capture.collectives import process_groups
from ...costs.device import profile_of
from ...cures import warn
from ...errors import summary_of
from ...graph.graph import Numerics, key
from ...graph.varying import bucket_key
from ...plan import Plan
from ..cuda_graphs.cudagraph import GraphedExecutor
from ..execution.executor import Executor
from ..execution.overlapping import overlapping
from ..execution.substitutes import Substitutes
from ..phases import phase
from .compile_inputs import Given
from .frames import COUNTS
from .whole_way import whole_way

log = logging.getLogger(__name__)

OnMiss = Literal["baseline", "error", "tune", "model"]
Baseline = Literal["auto", "eager", "inductor"]
Runner = Executor | GraphedExecutor


class Unreadable(str):
    """The reason why there is no plan, where the graph does not matter: told once, not for each
    graph. told: whoever made this has done so."""

    told: bool

    def __new__(cls, text: str, told: bool = False) -> Unreadable:
        made = super().__new__(cls, text)
        made.told = told
        return made


@dataclass(frozen=True, slots=True)
class Policy:
    """on_miss: what a graph without a plan does. baseline: how it then runs ("auto": Inductor on
    CUDA, else eager). cudagraph: replay inference graphs even where the plan does not say so.
    numerics: see `Graph`. remembers: graphs are kept for processes to come as they were opened (see
    `opened_before`)."""

    on_miss: OnMiss = "baseline"
    baseline: Baseline = "auto"
    cudagraph: bool = False
    numerics: Numerics = "fast"
    remembers: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """The functions that plans come from. find: the stored plan, or why there is none. tune, model:
    make one; None where that is not to be had. device_key: how a device is named in a plan. kept:
    graphs that others have opened (see `opened_before`)."""

    find: Callable[[Captured], Plan | str]
    tune: Callable[[Captured, Given], Plan] | None = None
    model: Callable[[Captured], Plan] | None = None
    device_key: Callable[[torch.device], str] = str
    kept: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True, slots=True)
class Live:
    """The function that runs one graph. `why`: for a fall-back, the reason."""

    plan: Plan
    runner: Runner | None = None
    why: str = ""


@dataclass(slots=True)
class PlanRunners:
    """Finds and builds what runs graphs. `live` holds what runs, by graph key and stage, newest
    last."""

    policy: Policy
    sources: Sources
    live: dict[tuple[str, str], Live] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    _made: dict[str, Plan] = field(default_factory=dict)
    """Plans that a miss led to, by bucket; of a graph whose sizes do not vary by its key, for the
    blocks of a model that Dynamo captures one by one have equal graphs."""

    @property
    def numerics(self) -> Numerics:
        return self.policy.numerics

    def forget(self, live: tuple[str, str]) -> None:
        """Removes the runner with this key of `live`."""
        self.live.pop(live, None)

    def found(self, captured: Captured, given: Given) -> Live | str:
        """The runner of a graph: by its plan, by a plan that an earlier miss of its bucket or of an
        equal graph led to, or by a plan that is made now. A text says why there is none."""
        bucket = bucket_key(captured.graph) or key(captured.graph)
        with phase("lookup"):
            found = self.sources.find(captured)
        why = self._live(captured, found, given)
        if isinstance(why, str) and bucket in self._made:
            plan = replace(self._made[bucket], graph_key=key(captured.graph))
            known = self._live(captured, plan, given)
            why = why if isinstance(known, str) else known
        if isinstance(why, Live):
            return why
        made = self._live(captured, self._make(captured, given, why), given)
        if isinstance(made, Live):
            self._made[bucket] = made.plan
        return made

    def _live(self, captured: Captured, plan: Plan | str, given: Given) -> Live | str:
        """What runs the graph by the plan; or why nothing does."""
        if not isinstance(plan, Plan):
            return plan
        if whole_way(plan, captured.graph) is not None:
            return Live(plan)
        built = self._build(captured, plan, given)
        return built if isinstance(built, str) else Live(built.plan, built)

    def _make(self, captured: Captured, given: Given, why: str) -> Plan | str:
        """A plan made for the graph, if that is the policy for a miss; else why it is one."""
        COUNTS.missed += 1
        sources, on_miss = self.sources, self.policy.on_miss
        if on_miss == "tune" and process_groups(captured.fx_nodes):
            return f"{why}; and it holds collectives, which one rank cannot measure alone"
        try:
            if on_miss == "tune" and sources.tune is not None:
                return sources.tune(captured, given)
            if on_miss == "model" and sources.model is not None:
                with phase("plan"):
                    return sources.model(captured)
            return why
        except Exception as error:  # as in _build
            log.debug("no plan by %s", self.policy.on_miss, exc_info=True)
            return f"{why}; and {self.policy.on_miss} failed: {summary_of(error)}"

    def _build(self, captured: Captured, plan: Plan, given: Given) -> Runner | str:
        inference = given.stage == "inference"
        try:
            backward = given.stage == "backward"
            others = Substitutes(captured.device)
            device = captured.device
            wanted = plan.cudagraph or (self.policy.cudagraph and inference)
            # Ranks capture at calls of their own: one would replay what the others run.
            alone = not process_groups(captured.fx_nodes)
            graphed = wanted and alone and device.type == "cuda"
            if graphed:
                capability = torch.cuda.get_device_capability(device)
                plan = overlapping(plan, captured.graph, profile_of(device), capability)
            with phase("build"):
                executor = Executor(
                    captured,
                    plan,
                    captured.device,
                    guard=backward,
                    substitutes=others,
                    updates=True,
                )
            if others.notes:
                text = f"graph {plan.graph_key[:12]}: {others.said}"
                self.warn("substitute", f"groups of {plan.graph_key}", text)
            if graphed:
                copies = None if inference else given.results
                return GraphedExecutor(
                    executor, copies=copies, patience=4 * backward, pools=given.pools
                )
            return executor
        except Exception as error:
            # A fault of ours must not stop the user's model: it is told, and the baseline runs.
            log.debug("cannot build the plan of graph %s", plan.graph_key, exc_info=True)
            return f"its plan cannot be built: {summary_of(error)}"

    def warn(self, name: str, about: str, text: str) -> None:
        if about not in self.warned:
            self.warned.add(about)
            warn(name, text)
