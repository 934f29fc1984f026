"""From a Dynamo graph to what runs: find its plan, build it, and fall back when there is none.

A plan with no group of its own means "as eager", and one whose only group is the whole graph by
`inductor` means "as torch.compile": then the graph that Dynamo captured runs in exactly that way,
not the opened ATen graph, which eager and Inductor would run slower. Where the plan says that the
whole frame is best left alone, the user's own function runs, as if torch.compile were not there.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, ShortenTraceback, SkipFrame
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ..capture.attention_calls import attention_chosen
from ..capture.capture import Captured, Stage, capture, decompositions, hint, is_dynamic, specialise
from ..capture.layouts import laid_out
from ..capture.saving import RESULTS, partition
from ..capture.symbolic import symbolic
from ..cures import warn
from ..errors import PlanError
from ..graph.graph import Graph, Numerics, key
from ..graph.ops import is_compute, is_free
from ..graph.varying import bucket_key
from ..lowerings.base import Boxed, WholeLowering
from ..lowerings.registry import ATEN, INDUCTOR, WHOLE, lowering_of
from ..plan import GroupPlan, Plan
from ..versions import versions
from .cudagraph import GraphedExecutor
from .executor import Executor
from .frames import COUNTS, leave_frame_alone
from .phases import phase, told
from .substitutes import Substitutes

log = logging.getLogger(__name__)

OnMiss = Literal["baseline", "error", "tune", "model"]
Baseline = Literal["auto", "eager", "inductor"]
Runner = Executor | GraphedExecutor


class Unreadable(str):
    """Why there is no plan, where it is no matter of the graph: told once, not for each graph.
    told: whoever made this has done so."""

    told: bool

    def __new__(cls, text: str, told: bool = False) -> Unreadable:
        made = super().__new__(cls, text)
        made.told = told
        return made


class NoPlan(PlanError, ShortenTraceback):
    """No plan, where one was asked for. Dynamo lets it out as it is, not wrapped as its own."""

    def __init__(self, text: str) -> None:
        ShortenTraceback.__init__(self, text, first_useful_frame=None)


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
class Given:
    """What a graph is compiled with. fakes: its inputs as AOTAutograd has them. real: those of
    the call that led to it, where they are at hand; of a backward graph they never are. eager:
    runs the user's code behind the graph on such tensors. results: of a forward graph, how many
    outputs are the user's; the others are saved for its backward graph."""

    fakes: Sequence[Any]
    stage: Stage
    real: Sequence[torch.Tensor] | None = None
    eager: Callable[[Sequence[Any]], Any] | None = None
    results: int = 0


@dataclass(frozen=True, slots=True)
class Sources:
    """Where plans come from. find: the stored plan, or why there is none. tune, model: make one;
    None where that is not to be had. device_key: how a device is named in a plan."""

    find: Callable[[Captured], Plan | str]
    tune: Callable[[Captured, Given], Plan] | None = None
    model: Callable[[Captured], Plan] | None = None
    device_key: Callable[[torch.device], str] = str


@dataclass(frozen=True, slots=True)
class Live:
    """What runs for one graph. `why`: for a fall-back, the reason."""

    plan: Plan
    runner: Runner | None = None
    why: str = ""


class WholeWay(NamedTuple):
    """A way to run a whole graph; options: as in a plan."""

    lowering: WholeLowering
    options: str


AS_EAGER = WholeWay(ATEN, "")


class _Whole(Exception):
    """Leaves AOTAutograd: the whole graph runs in one way. frame: so does all of the function that
    it was traced from."""

    def __init__(self, way: WholeWay, frame: bool = False) -> None:
        super().__init__(way)
        self.way, self.frame = way, frame


_DYNAMOS = (NoPlan, RestartAnalysis, SkipFrame)
"""What Dynamo has to see: the error that the user asked for, and its own ways of control."""


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

        COUNTS.graphs += 1

        def given(fakes: Sequence[Any], stage: Stage) -> Given:
            real = _matching(inputs, fakes)
            return Given(fakes, stage, real, None if real is None else _with_tensors(gm, inputs))

        compiler = aot_autograd(
            fw_compiler=lambda g, x: self._compile(g, given(x, "forward")),
            # May be asked for late, and must not hold the inputs until then.
            bw_compiler=lambda g, x: self._compile(g, Given(x, "backward")),
            inference_compiler=lambda g, x: self._compile(g, given(x, "inference")),
            partition_fn=partition,
            decompositions=decompositions(),
        )
        try:
            with phase("trace"):
                chosen = attention_chosen(gm, self.policy.numerics)
                compiled: Callable[..., Any] = compiler(chosen, inputs)
            log.info("seconds of this process so far: %s", told())
            return compiled
        except _Whole as whole:
            way, frame = whole.way, whole.frame
        except _DYNAMOS:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the user's model
            way, frame = self._failed(_device_of(inputs), error), False
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
                if is_dynamic(gm):
                    return _boxed(_Dynamic(self, gm, given))
                captured = capture(laid_out(gm, given.stage), self.policy.numerics)
                return _boxed(self.static(captured, given))
            except _DYNAMOS:
                raise
            except Exception as error:
                if given.stage != "backward":
                    raise  # `__call__` has the Dynamo graph, which is what runs then
                whole = error if isinstance(error, _Whole) else None
                way = whole.way if whole else self._failed(_device_of(given.fakes), error)
                return _boxed(self.entire(gm, given.fakes, way))

    def static(self, captured: Captured, given: Given) -> Boxed:
        """What runs a static graph by a plan with groups of its own. Raises _Whole when there is
        none, or when it says to run the whole graph in one way."""
        graph_key, stage = key(captured.graph), given.stage
        try:
            live = self._found(captured, given)
        except Exception as error:
            log.debug("cannot look up the plan of graph %s", graph_key, exc_info=True)
            live = f"looking up its plan failed: {_short(error)}"
        if isinstance(live, Live):
            self.live[graph_key, stage] = live
            if live.runner is not None:
                return live.runner.boxed
            way = whole_way(live.plan, captured.graph) or AS_EAGER
            raise _Whole(way, live.plan.frame)
        why = live
        if any(map(is_compute, captured.graph.nodes)):
            self._refuse(graph_key, captured, why)
        else:
            why = "nothing to fuse"  # no tuner would have made a plan for it
        way = self._baseline(captured.device)
        self.live[graph_key, stage] = Live(self._whole_plan(captured, way), None, why)
        raise _Whole(way)

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
            with phase("build"):
                executor = Executor(
                    captured, plan, captured.device, guard=backward, substitutes=others
                )
            if others.notes:
                text = f"graph {plan.graph_key[:12]}: {others.said}"
                self._warn("substitute", f"groups of {plan.graph_key}", text)
            wanted = plan.cudagraph or (self.policy.cudagraph and inference)
            if wanted and captured.device.type == "cuda":
                copies = None if inference else given.results
                return GraphedExecutor(executor, copies=copies, patience=4 * backward)
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

    def _failed(self, device: torch.device, error: Exception) -> WholeWay:
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
            eager = device.type != "cuda" or self.policy.numerics == "eager"
        return AS_EAGER if eager else WholeWay(INDUCTOR, "")

    def _whole_plan(self, captured: Captured, way: WholeWay) -> Plan:
        nodes = tuple(n.id for n in captured.graph.nodes if n.op != "input")
        group = GroupPlan(nodes, way.lowering.name, "", options=way.options)
        groups = () if way.lowering.one_by_one else (group,)
        device = self.sources.device_key(captured.device)
        current = tuple(sorted(versions().items()))
        return Plan(key(captured.graph), device, current, "modelled", groups)


@dataclass(frozen=True, slots=True)
class _Run:
    """What runs for some sizes. numbers: the outputs that are numbers, by position; None where
    `call` takes all the inputs. live: its key among those of the dispatcher."""

    call: Boxed
    numbers: tuple[tuple[int, Any], ...] | None
    live: tuple[str, str]


class _Dynamic:
    """A graph with symbolic sizes: for each set of sizes its own static graph, lowered by the
    plan of its bucket to kernels of which most are compiled already.

    Sizes without a plan share one symbolic baseline, made when the graph is compiled with such
    sizes; only then may Inductor still add guards. Later it compiles for the sizes at hand.
    """

    LIMIT = 64
    """Sizes that are kept; the oldest goes first."""

    def __init__(self, dispatcher: Dispatcher, gm: fx.GraphModule, given: Given) -> None:
        self._dispatcher, self._gm, self._stage = dispatcher, gm, given.stage
        self._symbolic = symbolic(gm, dispatcher.policy.numerics)
        self._tensors = [i for i, x in enumerate(given.fakes) if isinstance(x, torch.Tensor)]
        self._shared: Boxed | None = None
        self._runs: OrderedDict[Any, _Run] = OrderedDict()
        self._runs[self._sizes(given.fakes)] = self._specialised(given, compiling=True)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        sizes = self._sizes(args)
        found = self._runs.get(sizes)
        if found is None:
            given = Given(list(args), self._stage, [args[i] for i in self._tensors])
            found = self._runs[sizes] = self._specialised(given)
            del given
            if len(self._runs) > self.LIMIT:
                _, oldest = self._runs.popitem(last=False)
                self._dispatcher.live.pop(oldest.live, None)
        if found.numbers is None:
            return found.call(args)
        tensors = [args[i] for i in self._tensors]
        args.clear()
        results = found.call(tensors)
        if not found.numbers:
            return results
        results = list(results)
        for position, value in found.numbers:
            results.insert(position, value)
        return results

    def _sizes(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return _sizes(inputs) if self._symbolic is None else self._symbolic.sizes(inputs)

    def _specialised(self, given: Given, compiling: bool = False) -> _Run:
        try:
            return self._planned(given, compiling)
        except _DYNAMOS:
            raise
        except Exception as error:
            if compiling:
                raise  # the dispatcher still has a choice of what runs instead
            self._dispatcher._failed(_device_of(given.fakes), error)
            run = self._shared or ATEN.entire(self._gm, given.fakes, "")
            return _Run(run, None, ("", self._stage))

    def _planned(self, given: Given, compiling: bool) -> _Run:
        inputs = given.fakes
        if self._symbolic is not None:
            captured, numbers = self._symbolic.at(self._symbolic.sizes(inputs))
        else:
            static = specialise(self._gm, inputs)
            numerics = self._dispatcher.policy.numerics
            captured, numbers = capture(static.gm, numerics), static.numbers
        fakes = [captured.fx_nodes[i].meta["val"] for i in captured.graph.inputs]
        live = key(captured.graph), self._stage
        try:
            run = self._dispatcher.static(captured, replace(given, fakes=fakes))
            return _Run(run, numbers, live)
        except _Whole as whole:
            entire, way = self._dispatcher.entire, whole.way
            if way.lowering.one_by_one:  # It runs at any sizes.
                return _Run(entire(self._gm, inputs, way), None, live)
            if compiling and self._shared is None:
                self._shared = entire(self._gm, inputs, way)
            if self._shared is not None:
                return _Run(self._shared, None, live)
            return _Run(entire(captured.gm, fakes, way), numbers, live)


def _matching(inputs: Sequence[Any], fakes: Sequence[Any]) -> list[torch.Tensor] | None:
    """The tensors among Dynamo's inputs when they are those of the graph, one for one: it may
    take fewer, or views of one in place of several. None when they are not."""
    tensors, wanted = [
        [x for x in given if isinstance(x, torch.Tensor)] for given in (inputs, fakes)
    ]
    if len(tensors) != len(wanted) or any(isinstance(x, FakeTensor) for x in tensors):
        return None
    same = all(
        a.dtype == b.dtype and a.device == b.device and _sizes([a]) == _sizes([b])
        for a, b in zip(tensors, wanted, strict=True)
    )
    return tensors if same else None


def _device_of(inputs: Sequence[Any]) -> torch.device:
    """Where the tensors are; CUDA where one of them is there."""
    found = [x.device for x in inputs if isinstance(x, torch.Tensor)]
    return next((d for d in found if d.type == "cuda"), torch.device("cpu"))


def _with_tensors(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Runs the user's graph on other tensors in the place of its own."""
    numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]
    places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]

    def run(tensors: Sequence[Any]) -> Any:
        given = list(numbers)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return gm(*given)

    return run


def _sizes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (*map(hint, a.shape), *map(hint, a.stride())) if isinstance(a, torch.Tensor) else hint(a)
        for a in inputs
    )


def whole_way(plan: Plan, graph: Graph) -> WholeWay | None:
    """The one way in which the plan runs the whole graph; None when it has groups of its own, or a
    CUDA graph of its own of another's kernels."""
    groups = [g for g in plan.groups if not lowering_of(g).one_by_one]
    if not groups:
        return AS_EAGER
    work = {n.id for n in graph.nodes if n.op != "input" and not is_free(n)}
    if len(groups) > 1 or plan.cudagraph or not work <= {*groups[0].nodes}:
        return None
    lowerings = (each for each in WHOLE if each is lowering_of(groups[0]))
    return next((WholeWay(each, groups[0].options) for each in lowerings), None)


def _boxed(run: Boxed) -> Boxed:
    """Marked as AOTAutograd wants it, so that it hands over its only references."""

    def boxed(args: list[Any]) -> Sequence[Any]:
        return run(args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
