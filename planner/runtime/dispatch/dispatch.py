"""From a Dynamo graph to what runs: find its plan, build it, and fall back when there is none.

A plan with no group of its own means "as eager", and one whose only group is the whole graph by
`inductor` means "as torch.compile": then the graph that Dynamo captured runs in exactly that way,
not the opened ATen graph, which eager and Inductor would run slower. Where the plan says that the
whole frame is best left alone, the user's own function runs, as if torch.compile were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

from ...capture.attention_calls import attention_chosen
from ...capture.capture import Captured, Stage, capture, decompositions, is_dynamic
from ...capture.collectives import process_groups
from ...capture.dynamo_writes import results_overlap, writes_overlap
from ...capture.rewrites.rewrite import rewritten
from ...capture.saving import RESULTS, partition
from ...capture.writes_in_place import keeps_writes
from ...collector import paused
from ...costs.device import profile_of
from ...cures import warn
from ...graph.graph import Numerics, key
from ...graph.ops import is_compute
from ...graph.varying import bucket_key
from ...lowerings.base import Boxed
from ...lowerings.registry import ATEN, INDUCTOR
from ...plan import GroupPlan, Plan
from ...versions import versions
from ..cuda_graphs.cudagraph import GraphedExecutor
from ..cuda_graphs.step import WATCH
from ..execution.executor import Executor
from ..execution.overlapping import overlapping
from ..execution.substitutes import Substitutes
from ..phases import phase, told
from .compile_inputs import Given, device_of, has_no_numbers, matching, with_tensors
from .frames import COUNTS, leave_frame_alone
from .leaving import DYNAMOS, NoPlan, RunsWhole
from .varying_sizes import VaryingSizes
from .whole_way import AS_EAGER, WholeWay, whole_way

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
    numerics: see `Graph`."""

    on_miss: OnMiss = "baseline"
    baseline: Baseline = "auto"
    cudagraph: bool = False
    numerics: Numerics = "fast"


@dataclass(frozen=True, slots=True)
class Sources:
    """The functions that plans come from. find: the stored plan, or why there is none. tune, model:
    make one; None where that is not to be had. device_key: how a device is named in a plan."""

    find: Callable[[Captured], Plan | str]
    tune: Callable[[Captured, Given], Plan] | None = None
    model: Callable[[Captured], Plan] | None = None
    device_key: Callable[[torch.device], str] = str


@dataclass(frozen=True, slots=True)
class Live:
    """The function that runs one graph. `why`: for a fall-back, the reason."""

    plan: Plan
    runner: Runner | None = None
    why: str = ""


@dataclass(slots=True)
class Dispatcher:
    """Compiles Dynamo graphs. `live` holds what runs, by graph key and stage, newest last."""

    policy: Policy
    sources: Sources
    live: dict[tuple[str, str], Live] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)
    _made: dict[str, Plan] = field(default_factory=dict)
    """Plans that a miss led to, by bucket."""

    def __deepcopy__(self, memo: Any) -> Dispatcher:
        """A copied model has weights of its own, so that nothing compiled may be shared with it."""
        return Dispatcher(self.policy, self.sources)

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The callable for a graph from Dynamo. Raises NoPlan only when on_miss is "error"."""

        def given(fakes: Sequence[Any], stage: Stage) -> Given:
            real = matching(inputs, fakes)
            return Given(fakes, stage, real, None if real is None else with_tensors(gm, inputs))

        compiler = aot_autograd(
            fw_compiler=lambda g, x: self._compile(g, given(x, "forward")),
            # May be asked for late, and must not hold the inputs until then.
            bw_compiler=lambda g, x: self._compile(g, Given(x, "backward")),
            inference_compiler=lambda g, x: self._compile(g, given(x, "inference")),
            partition_fn=partition,
            decompositions=decompositions(),
            keep_inference_input_mutations=keeps_writes(gm, inputs),
        )

        def opened() -> Callable[..., Any]:
            # A tune that a miss leads to may leave tensors in cycles.
            waiting = nullcontext() if self.policy.on_miss == "tune" else paused()
            with phase("trace"), waiting:
                chosen = attention_chosen(gm, self.numerics)
                compiled: Callable[..., Any] = compiler(chosen, inputs)
            log.info("seconds of this process so far: %s", told())
            return compiled

        return self._compiled(gm, inputs, opened)

    def again(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        captured: Captured,
        fakes: Sequence[Any],
        around: Callable[[Boxed], Callable[..., Any]],
    ) -> Callable[..., Any]:
        """As the call, of a graph of inference that was captured before. fakes: the inputs of the
        captured graph; around: puts around it what AOTAutograd does before and after it."""

        def opened() -> Callable[..., Any]:
            with torch.no_grad():
                return around(_boxed(self.static(captured, Given(fakes, "inference"))))

        return self._compiled(gm, inputs, opened)

    def _compiled(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        opened: Callable[[], Callable[..., Any]],
    ) -> Callable[..., Any]:
        """What `opened` gives, and where that cannot be the graph as a whole."""
        COUNTS.graphs += 1
        try:
            if writes_overlap(gm) or has_no_numbers(inputs):
                raise RunsWhole(AS_EAGER)
            return opened()
        except RunsWhole as whole:
            way, frame = whole.way, whole.frame
        except DYNAMOS:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the user's model
            way, frame = self.failed(device_of(inputs), error), False
        if frame and way.lowering.one_by_one:
            leave_frame_alone()
        try:
            return way.lowering.whole(gm, inputs, way.options)
        except Exception as error:  # noqa: BLE001 - whatever Inductor raises, the model must run
            text = f"{way.lowering.said} failed, runs eagerly: {error}"
            self._warn("inductor", str(id(gm)), text)
            return ATEN.whole(gm, inputs, "")

    def _compile(self, gm: fx.GraphModule, given: Given) -> Boxed:
        given = replace(given, results=gm.meta.get(RESULTS, 0))
        with _disable_current_modes(), torch.no_grad():
            try:
                if given.stage == "forward" and results_overlap(gm, given.results):
                    raise RunsWhole(AS_EAGER)
                if is_dynamic(gm):
                    return _boxed(VaryingSizes(self, gm, given))
                captured = capture(rewritten(gm, given.stage, self.numerics), self.numerics)
                return _boxed(self.static(captured, given))
            except DYNAMOS:
                raise
            except Exception as error:
                if given.stage != "backward":
                    raise  # `__call__` has the Dynamo graph, which is what runs then
                whole = error if isinstance(error, RunsWhole) else None
                way = whole.way if whole else self.failed(device_of(given.fakes), error)
                return _boxed(self.entire(gm, given.fakes, way))

    @property
    def numerics(self) -> Numerics:
        return self.policy.numerics

    def forget(self, live: tuple[str, str]) -> None:
        """What ran by this key of `live` is not kept any more."""
        self.live.pop(live, None)

    def static(self, captured: Captured, given: Given) -> Boxed:
        """What runs a static graph by a plan with groups of its own. Raises RunsWhole when there is
        none, or when it says to run the whole graph in one way."""
        graph_key, stage = key(captured.graph), given.stage
        try:
            live = self._found(captured, given)
        except Exception as error:
            log.debug("cannot look up the plan of graph %s", graph_key, exc_info=True)
            live = f"looking up its plan failed: {_short(error)}"
        groups = process_groups(captured.fx_nodes)
        if groups:
            live = _agreed(live, groups)
        if isinstance(live, Live):
            self.live[graph_key, stage] = live
            if live.runner is not None:
                return live.runner.boxed
            way = whole_way(live.plan, captured.graph) or AS_EAGER
            raise RunsWhole(way, live.plan.frame)
        why = live
        if any(map(is_compute, captured.graph.nodes)):
            self._refuse(graph_key, captured, why)
        else:
            why = "nothing to fuse"  # no tuner would have made a plan for it
        way = self._baseline(captured.device)
        self.live[graph_key, stage] = Live(self._whole_plan(captured, way), None, why)
        raise RunsWhole(way)

    def _found(self, captured: Captured, given: Given) -> Live | str:
        """What runs the graph: by its plan or, where sizes vary, by one for its bucket, or else
        by one that is made now. Or why there is none of them."""
        bucket = bucket_key(captured.graph) or ""
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
        if bucket and isinstance(made, Live):
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

    def entire(self, gm: fx.GraphModule, inputs: Sequence[Any], way: WholeWay) -> Boxed:
        """The ATen graph itself run so: for where the Dynamo graph is out of reach."""
        try:
            return way.lowering.entire(gm, inputs, way.options)
        except Exception as error:  # noqa: BLE001 - the model must run, whatever Inductor does
            text = f"{way.lowering.said} failed, runs by ATen: {_short(error)}"
            self._warn("inductor", str(id(gm)), text)
            return ATEN.entire(gm, inputs, "")

    def _make(self, captured: Captured, given: Given, why: str) -> Plan | str:
        """A plan made for the graph, if that is the policy for a miss; else why it is one."""
        sources, on_miss = self.sources, self.policy.on_miss
        if on_miss == "tune" and process_groups(captured.fx_nodes):
            return f"{why}; and it holds collectives, which one rank cannot measure alone"
        try:
            if on_miss == "tune" and sources.tune is not None:
                return sources.tune(captured, given)
            if on_miss == "model" and sources.model is not None:
                return sources.model(captured)
            return why
        except Exception as error:  # as in _build
            log.debug("no plan by %s", self.policy.on_miss, exc_info=True)
            return f"{why}; and {self.policy.on_miss} failed: {_short(error)}"

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
                self._warn("substitute", f"groups of {plan.graph_key}", text)
            if graphed:
                copies = None if inference else given.results
                return GraphedExecutor(
                    executor, copies=copies, patience=4 * backward, pools=given.pools
                )
            return executor
        except Exception as error:
            # A fault of ours must not stop the user's model: it is told, and the baseline runs.
            log.debug("cannot build the plan of graph %s", plan.graph_key, exc_info=True)
            return f"its plan cannot be built: {_short(error)}"

    def _refuse(self, graph_key: str, captured: Captured, why: str) -> None:
        if self.policy.on_miss == "error":
            raise NoPlan(
                f"graph {graph_key}: {why}; `planner tune` makes a plan, "
                'on_miss="baseline" runs without one'
            )
        how = self._baseline(captured.device).lowering.said
        if isinstance(why, Unreadable):
            if not why.told:
                self._warn("store", why, f"{why}; runs as {how}")
            return
        about = bucket_key(captured.graph) or graph_key
        self._warn("no-plan", about, f"graph {graph_key[:12]}: {why}; runs as {how}")

    def failed(self, device: torch.device, error: Exception) -> WholeWay:
        """How a graph runs that could not be captured or planned: as a miss does. Raises NoPlan
        when on_miss is "error"."""
        log.debug("a graph cannot be planned", exc_info=error)
        why = f"a graph cannot be planned: {_short(error)}"
        if self.policy.on_miss == "error":
            raise NoPlan(why) from error
        way = self._baseline(device)
        self._warn("unplannable", why, f"{why}; runs as {way.lowering.said}")
        return way

    def _warn(self, name: str, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warn(name, text)

    def _baseline(self, device: torch.device) -> WholeWay:
        eager = self.policy.baseline == "eager"
        if self.policy.baseline == "auto":
            # Inductor keeps none of eager's roundings.
            eager = device.type != "cuda" or self.numerics == "eager"
        return AS_EAGER if eager else WholeWay(INDUCTOR, "")

    def _whole_plan(self, captured: Captured, way: WholeWay) -> Plan:
        nodes = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(nodes, way.lowering.name, "", options=way.options)
        groups = () if way.lowering.one_by_one else (group,)
        device = self.sources.device_key(captured.device)
        current = tuple(sorted(versions().items()))
        return Plan(key(captured.graph), device, current, "modelled", groups)


def _agreed(live: Live | str, groups: Sequence[str]) -> Live | str:
    """The same, or why the ranks of these process groups do not all run by that plan."""
    from .ranks import disagreement

    why = disagreement(groups, live.plan if isinstance(live, Live) else None)
    if not why:
        return live
    return f"{live}; and {why}" if isinstance(live, str) else why


def _boxed(run: Boxed) -> Boxed:
    """Counted, and marked as AOTAutograd wants it, so that it hands over its only references."""

    def boxed(args: list[Any]) -> Sequence[Any]:
        COUNTS.graphs += 1
        return run(args) if WATCH.runs is None else WATCH.ran(run, args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
