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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._C import _dispatch_tls_is_dispatch_key_included as _tls_is_included
from torch.utils._python_dispatch import _disable_current_modes

from ...capture.capture import Captured, Stage, is_dynamic
from ...capture.collectives import process_groups
from ...capture.data_dependent import in_parts
from ...capture.dynamo_writes import results_overlap, writes_overlap
from ...collector import paused
from ...errors import summary_of
from ...graph.graph import key
from ...graph.ops import is_compute
from ...graph.varying import bucket_key
from ...lowerings.base import Boxed
from ...lowerings.registry import ATEN, INDUCTOR, lowering_of
from ...plan import GroupPlan, Plan
from ...versions import versions
from ..cuda_graphs.step import WATCH
from ..phases import phase, told
from .compile_inputs import Given, device_of, has_no_numbers, matching, with_tensors
from .frames import (
    COUNTS,
    drop_guards_of_hooks,
    guard_forward_mode,
    guard_frozen,
    leave_frame_alone,
)
from .leaving import DYNAMOS, NoPlan, RunsWhole
from .opened_before import OpenedBefore
from .pass_through import PassThrough, passes_through, without_wrapper
from .plain_calls import set_uncounted
from .plan_runners import (
    Live,
    PlanRunners,
    Unreadable,
)
from .varying_sizes import VaryingSizes
from .whole_way import AS_EAGER, WholeWay, whole_way

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Dispatcher(PlanRunners):
    """Compiles Dynamo graphs."""

    def __deepcopy__(self, memo: Any) -> Dispatcher:
        """A copied model has weights of its own, so that nothing compiled may be shared with it."""
        return Dispatcher(self.policy, self.sources)

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The callable for a graph from Dynamo. Raises NoPlan only when on_miss is "error"."""

        def given(fakes: Sequence[Any], stage: Stage) -> Given:
            real = matching(inputs, fakes)
            return Given(fakes, stage, real, None if real is None else with_tensors(gm, inputs))

        before = None
        if self.policy.remembers:
            before = OpenedBefore.of(gm, inputs, self.numerics, self.sources.kept())
        through: list[PassThrough] = []
        seen: list[Captured] = []

        def inferred(g: fx.GraphModule, x: Sequence[Any]) -> Boxed:
            drop_guards_of_hooks()
            made = self._compile(g, given(x, "inference"), seen)
            if not passes_through(g):
                return made
            # A graph of sizes that vary is no `Captured`, and not kept.
            told = partial(before.keep, seen[-1]) if before and seen else None
            through.append(PassThrough(made, told))
            return through[-1].graph

        def opened() -> Callable[..., Any]:
            # A tune that a miss leads to may leave tensors in cycles.
            waiting = nullcontext() if self.policy.on_miss == "tune" else paused()
            with phase("trace"), waiting:
                ready = None if before is None else self._ready(before, given)
                if ready is not None:
                    drop_guards_of_hooks()
                    return without_wrapper(_boxed(ready))
                # Much to import, and a graph that was opened before needs none of it.
                from ...capture.aot_front import opened_by_aot_autograd

                try:
                    compiled = opened_by_aot_autograd(
                        gm,
                        inputs,
                        self.numerics,
                        fw_compiler=lambda g, x: self._compile(g, given(x, "forward")),
                        # May be asked for late, and must not hold the inputs until then.
                        bw_compiler=lambda g, x: self._compile(g, Given(x, "backward")),
                        inference_compiler=inferred,
                    )
                except RunsWhole:
                    if before and seen and self._is_planned(seen[-1]):
                        before.keep(seen[-1], runs_whole=True)
                    raise
            log.info("seconds of this process so far: %s", told())
            return through[0].called(compiled) if len(through) == 1 else compiled

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
        COUNTS.given += 1
        guard_frozen(inputs)
        try:
            if guard_forward_mode() or writes_overlap(gm) or has_no_numbers(inputs):
                raise RunsWhole(AS_EAGER)
            return opened()
        except RunsWhole as whole:
            way, frame = whole.way, whole.frame
        except DYNAMOS:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the user's model
            cut = in_parts(gm, error, self)
            if cut is not None:
                return cut
            way, frame = self.failed(device_of(inputs), error), False
        if frame and way.lowering.one_by_one:
            leave_frame_alone()
        try:
            return way.lowering.whole(gm, inputs, way.options)
        except Exception as error:  # noqa: BLE001 - whatever Inductor raises, the model must run
            text = f"{way.lowering.said} failed, runs eagerly: {error}"
            self.warn("inductor", str(id(gm)), text)
            return ATEN.whole(gm, inputs, "")

    def _ready(
        self, before: OpenedBefore, given: Callable[[Sequence[Any], Stage], Given]
    ) -> Boxed | None:
        """What runs a graph that was opened before; None where it has to be opened again: nothing
        is kept of it, or it has no plan all of whose groups can be built of what is kept. Raises
        RunsWhole when its plan says to run the whole graph in one way."""
        with _disable_current_modes(), torch.no_grad():
            kept = before.found()
            if kept is None:
                return None
            captured = kept.captured
            try:
                with phase("lookup"):
                    plan = self.sources.find(captured)
            except Exception:
                log.debug("cannot look up the plan of a graph opened before", exc_info=True)
                return None  # `static` looks it up once more, and says what is wrong.
            if not isinstance(plan, Plan):
                return None
            way = whole_way(plan, captured.graph)
            if way is not None:
                self.live[plan.graph_key, "inference"] = Live(plan)
                raise RunsWhole(way, plan.frame)
            if kept.runs_whole or any(lowering_of(g) is INDUCTOR for g in plan.groups):
                return None
            fakes = [captured.fx_nodes[i].meta["val"] for i in captured.graph.inputs]
            live = self._live(captured, plan, given(fakes, "inference"))
            if not isinstance(live, Live) or live.runner is None:
                return None
            self.live[plan.graph_key, "inference"] = live
            return live.runner.boxed

    def _is_planned(self, captured: Captured) -> bool:
        """Whether a plan was found for a graph of inference, be it that of eager."""
        live = self.live.get((key(captured.graph), "inference"))
        return live is not None and not live.why

    def _compile(
        self, gm: fx.GraphModule, given: Given, seen: list[Captured] | None = None
    ) -> Boxed:
        """seen: takes the graph as it was captured, where it is static."""
        from ...capture.aot_front import (
            RESULTS,
            captured_of,
            has_refused_product,
            save_as_they_were,
        )

        given = replace(given, results=gm.meta.get(RESULTS, 0))
        with _disable_current_modes(), torch.no_grad():
            try:
                if given.stage == "forward":
                    if results_overlap(gm, given.results):
                        raise RunsWhole(AS_EAGER)
                    save_as_they_were(gm, given.results)
                if has_refused_product(gm):
                    raise RunsWhole(AS_EAGER)
                if is_dynamic(gm):
                    return _boxed(VaryingSizes(self, gm, given))
                captured = captured_of(gm, given.stage, self.numerics)
                if seen is not None:
                    seen.append(captured)
                return _boxed(self.static(captured, given))
            except DYNAMOS:
                raise
            except Exception as error:
                if given.stage != "backward":
                    raise  # `__call__` has the Dynamo graph, which is what runs then
                whole = error if isinstance(error, RunsWhole) else None
                way = whole.way if whole else self.failed(device_of(given.fakes), error)
                return _boxed(self.entire(gm, given.fakes, way))

    def static(self, captured: Captured, given: Given) -> Boxed:
        """A function that runs a static graph by a plan with groups. Raises RunsWhole when there is
        no plan, or when the plan runs the whole graph in one way."""
        graph_key, stage = key(captured.graph), given.stage
        try:
            live = self.found(captured, given)
        except Exception as error:
            log.debug("cannot look up the plan of graph %s", graph_key, exc_info=True)
            live = f"looking up its plan failed: {summary_of(error)}"
        groups = process_groups(captured.fx_nodes)
        if groups:
            live = _agreed(live, groups)
        if isinstance(live, Live):
            self.live[graph_key, stage] = live
            if live.runner is not None:
                boxed = live.runner.boxed
                return boxed if stage != "backward" else _unless_batched(boxed, captured.gm)
            way = whole_way(live.plan, captured.graph) or AS_EAGER
            raise RunsWhole(way, live.plan.frame)
        why = live
        if any(map(is_compute, captured.graph.nodes)):
            self._missed(graph_key, captured, why)
        else:
            why = "nothing to fuse"  # no tuner would have made a plan for it
        way = self._baseline(captured.device)
        self.live[graph_key, stage] = Live(self._whole_plan(captured, way), None, why)
        raise RunsWhole(way)

    def entire(self, gm: fx.GraphModule, inputs: Sequence[Any], way: WholeWay) -> Boxed:
        """The ATen graph itself run so: for where the Dynamo graph is out of reach."""
        try:
            return way.lowering.entire(gm, inputs, way.options)
        except Exception as error:  # noqa: BLE001 - the model must run, whatever Inductor does
            text = f"{way.lowering.said} failed, runs by ATen: {summary_of(error)}"
            self.warn("inductor", str(id(gm)), text)
            return ATEN.entire(gm, inputs, "")

    def _missed(self, graph_key: str, captured: Captured, why: str) -> None:
        """Says once why this graph has no plan. Raises NoPlan when on_miss is "error"."""
        if self.policy.on_miss == "error":
            raise NoPlan(
                f"graph {graph_key}: {why}; `planner tune` makes a plan, "
                'on_miss="baseline" runs without one'
            )
        how = self._baseline(captured.device).lowering.said
        if isinstance(why, Unreadable):
            if not why.told:
                self.warn("store", why, f"{why}; runs as {how}")
            return
        about = bucket_key(captured.graph) or graph_key
        self.warn("no-plan", about, f"graph {graph_key[:12]}: {why}; runs as {how}")

    def failed(self, device: torch.device, error: Exception) -> WholeWay:
        """The way to run a graph that could not be captured or planned: that of a miss. Raises
        NoPlan when on_miss is "error"."""
        log.debug("a graph cannot be planned", exc_info=error)
        why = f"a graph cannot be planned: {summary_of(error)}"
        if self.policy.on_miss == "error":
            raise NoPlan(why) from error
        way = self._baseline(device)
        self.warn("unplannable", why, f"{why}; runs as {way.lowering.said}")
        return way

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


_BATCHES = torch._C._dispatch_key_parse("VmapMode")
"""Included while torch's older `vmap` runs, that of `is_grads_batched`; within that of `torch.func`
AOTAutograd refuses a backward pass."""


def _unless_batched(run: Boxed, gm: fx.GraphModule) -> Boxed:
    """A backward graph run by `run`, or by ATen where torch computes many gradients at once
    (`is_grads_batched`): then the gradients that come are no tensors with memory of their own."""

    def call(args: list[Any]) -> Sequence[Any]:
        if not _tls_is_included(_BATCHES):
            return run(args)
        given = tuple(args)
        args.clear()
        results: Sequence[Any] = gm(*given)
        return results

    return call


def _boxed(run: Boxed) -> Boxed:
    """Counted, and marked as AOTAutograd wants it, so that it hands over its only references."""

    def boxed(args: list[Any]) -> Sequence[Any]:
        COUNTS.graphs += 1
        return run(args) if WATCH.runs is None else WATCH.ran(run, args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    set_uncounted(boxed, run)
    return boxed
