"""`load`, `plans` and `executors`: the store, the policies and torch.compile wired together."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import fx

from .db.errors import StoreCorrupt, StoreError
from .db.records import PlanRecord
from .planner.bytecode import kept_bytecode
from .planner.capture.capture import Captured
from .planner.capture.put_off import put_off
from .planner.collector import paused
from .planner.costs.device import profile_of
from .planner.cures import warn
from .planner.errors import BundleError, DeviceError, FusionplanError, PlanError
from .planner.graph.graph import Numerics, key
from .planner.graph.varying import bucket_key, bucket_name
from .planner.groups.plan_at_sizes import plan_at
from .planner.plan import Plan
from .planner.runtime.cuda_graphs.step import Step
from .planner.runtime.dispatch.compile_inputs import Given
from .planner.runtime.dispatch.plan_runners import (
    Baseline,
    OnMiss,
    PlanRunners,
    Policy,
    Runner,
    Sources,
    Unreadable,
)
from .planner.runtime.machine_code.compile import interpreted
from .planner.versions import differences, versions
from .tuner.records.stored_plans import Shelf, plans_that_fit, versions_beside

if TYPE_CHECKING:
    from .bundles.using import BundledPlans
    from .planner.runtime.dispatch.dispatch import Dispatcher

log = logging.getLogger(__name__)

Accepted = Literal["measured", "any"]

_ATTRIBUTE = "_fusionplan_dispatcher"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `torch.compile(model, backend="planner", options={...})` and of `load`."""

    on_miss: OnMiss | None = None
    """What to do with a graph that has no plan. "baseline" runs it as `baseline` says, with one
    warning. "error" raises PlanError. "tune" searches now, on the inputs of the call, beside eager
    and the modes of torch.compile; a backward graph is tuned on random inputs. "model" uses the
    cost model's plan, which is not measured. None means "baseline", or "model" in Triton's
    interpreter."""
    store: str | Path | None = None
    """Path or SQLAlchemy URL of the store with the plans. None is the default store."""
    evidence: Accepted | None = None
    """Which plans may run. "measured": only those that were compared with eager and torch.compile.
    "any": also plans of the cost model. None means "measured", or "any" in the interpreter."""
    baseline: Baseline = "auto"
    """How a graph without a plan runs: "eager", "inductor", or "auto", which is Inductor on CUDA
    and eager elsewhere."""
    cudagraph: bool = False
    """Replay inference graphs as CUDA graphs even if their plans do not say so."""
    numerics: Numerics = "fast"
    """How exact results are. "eager" keeps every rounding that eager makes between operations,
    "fast" need not (see docs/numerics.md). A plan tuned with one is not used for the other."""
    bundle: str | Path | None = None
    """A file written by `planner bundle` or `planner export`. Plans are looked up there first, and
    in the store only if `store` is given, which on_miss="tune" needs. A bundle that cannot be
    read, or that no trusted key has signed, counts as empty, with one warning."""

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> Options:
        """From a dictionary. Raises FusionplanError for an unknown name or value."""
        given = dict(given or {})
        unknown = sorted(given.keys() - Options.__dataclass_fields__.keys())
        if unknown:
            allowed = ", ".join(Options.__dataclass_fields__)
            raise FusionplanError(f"unknown option {', '.join(unknown)}; options are {allowed}")
        _one_of("on_miss", given.get("on_miss"), (*get_args(OnMiss), None))
        _one_of("evidence", given.get("evidence"), (*get_args(Accepted), None))
        _one_of("baseline", given.get("baseline", "auto"), get_args(Baseline))
        _one_of("cudagraph", given.get("cudagraph", False), (True, False))
        _one_of("numerics", given.get("numerics", "fast"), get_args(Numerics))
        if not isinstance(given.get("store"), (str, Path, type(None))):
            raise FusionplanError("option store: give a path or a database URL")
        if not isinstance(given.get("bundle"), (str, Path, type(None))):
            raise FusionplanError("option bundle: give the path of a file")
        bundled_alone = given.get("bundle") is not None and given.get("store") is None
        if given.get("on_miss") == "tune" and bundled_alone:
            raise FusionplanError(
                'option on_miss: "tune" with a bundle needs the option store: what is tuned is '
                "kept there, and looked up there by the next process"
            )
        return Options(**given)


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        shown = ", ".join(repr(a) for a in allowed)
        raise FusionplanError(f"option {name}: {value!r} is not one of {shown}")


def load(
    model: Callable[..., Any],
    *,
    store: str | Path | None = None,
    on_miss: OnMiss | None = None,
    evidence: Accepted | None = None,
    baseline: Baseline = "auto",
    cudagraph: bool = False,
    dynamic: bool | None = None,
    numerics: Numerics = "fast",
    bundle: str | Path | None = None,
) -> Any:
    """Return the model (or function) so that it runs by its stored plans.

    The arguments are those of `Options`; `dynamic` is that of torch.compile. Plans are looked up at
    the first call with new shapes. Nothing is tuned unless on_miss is "tune".

    Raises FusionplanError for an option that is not possible. With on_miss="error" it raises
    BundleError for a bundle that cannot be used (torch.compile, which looks for plans at the first
    call, then raises PlanError), and a call raises PlanError if there is no plan.
    """
    options: dict[str, Any] = {
        "store": store,
        "on_miss": on_miss,
        "evidence": evidence,
        "baseline": baseline,
        "cudagraph": cudagraph,
        "numerics": numerics,
        "bundle": bundle,
    }
    _checked(options)
    _import_dynamo()
    from .planner.runtime.dispatch.loaded import loaded

    compiled = torch.compile(model, backend=compile_graph, options=options, dynamic=dynamic)
    again = partial(load, dynamic=dynamic, **options)
    return loaded(compiled, model, again, collects=on_miss == "tune")


def _import_dynamo() -> None:
    """Imports what the first call needs, most of it Dynamo, while the collector waits; not before
    a model is loaded, for who only reads plans does not need it."""
    with paused(lasting=True), kept_bytecode(), put_off("networkx", frozenset({"DiGraph"})):
        importlib.import_module("torch._functorch.aot_autograd")  # as Dynamo's first trace does
        from .planner.runtime.dispatch import dispatch, loaded  # noqa: F401


def step(
    model: Callable[..., Any],
    *,
    store: str | Path | None = None,
    on_miss: OnMiss | None = None,
    evidence: Accepted | None = None,
    baseline: Baseline = "auto",
    cudagraph: bool = True,
    numerics: Numerics = "fast",
    bundle: str | Path | None = None,
) -> Step:
    """Return the model (or function) as one step of a loop, for example one token of a text.

    It is called like the model, and computes the same. The first call with new shapes, types or
    Python values goes through torch.compile; later ones, where gradients are off, go to the graph
    at once and cost the host little more than its launch. Caches and parameters
    must be written in place (see `Step`). The arguments are those of `load`.

    Raises as `load` does; its first call raises what torch.compile raises with fullgraph=True where
    the model is more than one graph.
    """
    options: dict[str, Any] = {
        "store": store,
        "on_miss": on_miss,
        "evidence": evidence,
        "baseline": baseline,
        "cudagraph": cudagraph,
        "numerics": numerics,
        "bundle": bundle,
    }
    _checked(options)
    _import_dynamo()
    return Step(
        torch.compile(model, backend=compile_graph, options=options, dynamic=False, fullgraph=True)
    )


def _checked(options: Mapping[str, Any]) -> None:
    """Raises FusionplanError for options that are not possible, and where nothing may be missed
    BundleError for a bundle that cannot be used."""
    Options.of(options)
    if options["bundle"] is not None and options["on_miss"] == "error":
        _use(options["bundle"])


def _use(path: str | Path) -> BundledPlans:
    """As `bundles.using.use`, which most processes need not import."""
    from .bundles.using import use

    return use(path)


def pinned(
    model: Callable[..., Any],
    plans: Mapping[str, Plan],
    *,
    dynamic: bool | None = None,
    numerics: Numerics = "fast",
) -> Any:
    """The model as `load` runs it, by these plans, by graph key, in place of a store's. A graph
    that has none of them runs as `load` runs it on a miss."""
    from .planner.runtime.dispatch.loaded import loaded

    dispatcher = dispatcher_by(plans, numerics)
    return loaded(torch.compile(model, backend=dispatcher, dynamic=dynamic), model)


def dispatcher_by(plans: Mapping[str, Plan], numerics: Numerics) -> Dispatcher:
    """A dispatcher that has these plans, by graph key, in place of a store's."""
    from .planner.runtime.dispatch.dispatch import Dispatcher

    def find(captured: Captured) -> Plan | str:
        return plans.get(key(captured.graph), "no plan is given for it")

    sources = Sources(find, device_key=lambda d: profile_of(d).key)
    return Dispatcher(Policy(numerics=numerics), sources)


def plans(compiled: Any) -> list[Plan]:
    """Return the plans that a loaded or compiled model runs by now.

    There is one plan for each graph and shape that the model has run with. A graph that runs as the
    baseline has a plan without kernels. Raises PlanError for a model that neither `load` nor
    torch.compile made.
    """
    return [live.plan for live in _running(compiled).live.values()]


def executors(compiled: Any) -> list[Runner]:
    """Return the objects that run the plans of a loaded or compiled model, one for each plan that
    has kernels. `kernels_per_call` of an executor is the number of generated kernels that it runs
    in a call. Raises PlanError as `plans` does."""
    found = _running(compiled).live.values()
    return [live.runner for live in found if live.runner is not None]


def compile_graph(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The torch.compile back end. Raises FusionplanError for an unknown option."""
    if mode:
        raise FusionplanError(
            f"backend planner has no mode {mode!r}: leave it out, for the plan says how to run"
        )
    from torch._dynamo.symbolic_convert import InstructionTranslator

    chosen = Options.of(options)
    try:
        # What torch.compile made for one call of it; it lives as long as the compiled function.
        compiler: Any = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # no frame is being compiled: `aot_compile` has captured the graph
        from .planner.runtime.dispatch.aot_compile import ahead

        return ahead(gm, inputs, dispatcher_for(chosen))
    owner = _owner(compiler)
    dispatcher: Dispatcher | None = getattr(owner, _ATTRIBUTE, None)
    if dispatcher is None:
        dispatcher = dispatcher_for(chosen)
        setattr(owner, _ATTRIBUTE, dispatcher)
    return dispatcher(gm, inputs)


def _owner(compiler: Any) -> Any:
    """The object of torch.compile that keeps the dispatcher of a compiled function. For a model
    under DistributedDataParallel, Dynamo compiles by a method that cuts the graph where gradients
    are sent, and then calls the back end."""
    from torch._dynamo.eval_frame import innermost_backend

    found = innermost_backend(compiler)
    while isinstance(found, MethodType) and hasattr(found.__self__, "backend_compile_fn"):
        found = innermost_backend(found.__self__.backend_compile_fn)
    return found


def dispatcher_for(options: Options) -> Dispatcher:
    """A dispatcher that reads the store which the options name."""
    from .planner.runtime.dispatch.dispatch import Dispatcher

    default: OnMiss = "model" if interpreted() else "baseline"
    on_miss = options.on_miss or default
    policy = Policy(on_miss, options.baseline, options.cudagraph, options.numerics, remembers=True)
    told: set[str] = set()
    """What was wrong with the bundle."""

    def find(captured: Captured) -> Plan | str:
        if options.bundle is None:
            return _stored_plan(captured, options)
        bundled = _bundled_plan(captured, options.bundle, options, told)
        if isinstance(bundled, Plan) or options.store is None:
            return bundled
        stored = _stored_plan(captured, options)
        alone = isinstance(stored, Plan) or isinstance(bundled, Unreadable)
        return stored if alone else f"{bundled}; {stored}"

    def tune(captured: Captured, given: Given) -> Plan:
        return _tuned(captured, given, options)

    def kept() -> Mapping[str, str]:
        if options.bundle is None:
            return {}
        try:
            return _use(options.bundle).contents.opened
        except BundleError:  # told where its plans are looked for
            return {}

    return Dispatcher(policy, Sources(find, tune, _model, lambda d: profile_of(d).key, kept))


def _model(captured: Captured) -> Plan:
    # Imported here, as below: who runs by stored plans does not wait for what makes plans.
    from .planner.covers.cover import modelled_plan

    return modelled_plan(captured.graph, profile_of(captured.device))


def _tuned(captured: Captured, given: Given, options: Options) -> Plan:
    """Search now: on the inputs of the call where they are at hand, else on made-up ones. Eager
    is the user's own code where we have it."""
    # Imported here: who only loads plans does not wait for Optuna.
    from .tuner.capture.rotating_inputs import RotatingInputs
    from .tuner.decision.baselines import EAGER, graph_baselines, real_inputs
    from .tuner.measure.contest import TurnCall
    from .tuner.session.restore_process import settings_restored
    from .tuner.session.session import tune_captured

    def baselines(turns: RotatingInputs) -> Mapping[str, TurnCall]:
        calls = graph_baselines(captured, turns, given.stage)
        run = given.eager
        if run is not None:
            inputs = [call.args for call in turns.calls]
            calls[EAGER] = lambda turn: run(inputs[turn % len(inputs)])
        return calls

    inputs = given.fakes if given.real is None else given.real
    inputs = real_inputs(captured, inputs, 0)
    with settings_restored():
        return tune_captured(
            captured, inputs, store=options.store, baselines=baselines, stage=given.stage
        )


def _bundled_plan(
    captured: Captured, bundle: str | Path, options: Options, told: set[str]
) -> Plan | str:
    """As `_stored_plan`, in a bundle. One that cannot be used is told here, for its plans may be
    had elsewhere. told: what was told before."""
    try:
        return _plan_on(_use(bundle), captured, options)
    except (BundleError, DeviceError) as error:
        why = f"no plan could be read: {error}"
        log.info("graph %s: %s", key(captured.graph)[:12], why)
        if isinstance(error, DeviceError):
            return Unreadable(why)
        if why not in told:
            told.add(why)
            warn("no-bundle", f"{why}; the bundle counts as empty")
        return Unreadable(why, told=True)


def _stored_plan(captured: Captured, options: Options) -> Plan | str:
    """The plan for this graph, or where sizes vary the newest for its bucket, on this device and
    with these versions; or why there is none. A store that cannot be read is a miss, never a
    crash."""
    quick = _quickly(captured, options)
    if quick is not None:
        return quick
    from .db.readers import failed, reader

    try:
        return _plan_on(reader(options.store), captured, options)
    except (StoreError, DeviceError) as error:
        log.info("graph %s: no plan could be read: %s", key(captured.graph)[:12], error)
        if isinstance(error, StoreCorrupt):  # this plan perhaps, and no other
            return f"no plan could be read: {error}"
        if isinstance(error, StoreError):
            failed(options.store, error)
        return Unreadable(f"no plan could be read: {error}")


def _quickly(captured: Captured, options: Options) -> Plan | None:
    """The plan for the very graph, where a store that is a file has it and it may run."""
    from .db.quick import quick_plan

    try:
        device_key = profile_of(captured.device).key
    except DeviceError:
        return None
    found = quick_plan(options.store, key(captured.graph), device_key, versions())
    plan = None if found is None else _accepted(found, options)
    if found is None or not isinstance(plan, Plan):
        return None
    _log_found([found], [plan])
    return plan


def _plan_on(shelf: Shelf, captured: Captured, options: Options) -> Plan | str:
    """The plan for the graph, or why there is none. Raises StoreError, DeviceError."""
    graph_key, bucket = key(captured.graph), bucket_key(captured.graph)
    device = profile_of(captured.device)
    found = plans_that_fit(shelf, captured.graph, device.key)
    if not found:
        log.info("graph %s: no plan for %s", graph_key[:12], device.name)
        sizes = f" for sizes {bucket_name(captured.graph)}" if bucket is not None else ""
        why = f"no plan is stored for it{sizes} on {device.name}"
        return f"{why} with these versions{_nearest(shelf, graph_key, device.key)}"
    read = [_accepted(record, options) for record in found]
    plan = next((plan for plan in read if isinstance(plan, Plan)), read[0])
    _log_found(found, read)
    if isinstance(plan, Plan) and plan.graph_key != graph_key:
        return plan_at(plan, captured.graph)
    return plan


def _nearest(shelf: Shelf, graph_key: str, device_key: str) -> str:
    """What differs in the plans for this graph that there are, if any."""
    others = shelf.plans(graph_key=graph_key)
    here = [record for record in others if record.device_key == device_key]
    if here or not others:
        return _other_versions(here)
    devices = {record.device_key for record in others}
    names = sorted(d.name if (d := shelf.device(each)) else each for each in devices)
    return f"; there is one for {', '.join(names)}"


def _other_versions(nearest: Sequence[PlanRecord]) -> str:
    """What differs in the plan that is nearest to what is at hand, if there is any."""
    told: list[list[str]] = []
    for record in nearest:
        told.append(differences(record.versions, versions_beside(record.versions)))
    least: list[str] = min(told, key=len, default=[])
    return f" and settings: {'; '.join(least)}" if least else ""


def _log_found(found: Sequence[PlanRecord], read: Sequence[Plan | str]) -> None:
    for record, plan in zip(found, read, strict=True):
        about = f"plan {record.key[:12]} ({record.name}) of graph {record.graph_key[:12]}"
        if isinstance(plan, Plan):
            log.info("runs by %s, %s", about, plan.evidence)
            return
        log.info("%s is left out: %s", about, plan)


def _accepted(record: PlanRecord, options: Options) -> Plan | str:
    """The plan in a record, or why it is not to be used."""
    try:
        plan = Plan.from_json(record.payload)
    except ValueError as error:
        return f"its stored plan is damaged: {error}"
    if plan.graph_key != record.graph_key:
        return "its stored plan is damaged: it is for another graph"
    accepted = options.evidence or ("any" if interpreted() else "measured")
    if plan.evidence != "measured" and accepted == "measured":
        return f'its stored plan is only {plan.evidence} (evidence="any" runs it)'
    return plan


def _running(compiled: Any) -> PlanRunners:
    """The dispatcher of a compiled function or module, empty before its first call. Raises
    PlanError when torch.compile did not make it."""
    if isinstance(compiled, Step):
        compiled = compiled.compiled
    call = getattr(compiled, "_compiled_call_impl", None) or compiled
    context = getattr(call, "dynamo_ctx", None)
    if context is None:
        # A compiled function keeps its context only in the closures torch.compile gave it.
        getter = getattr(call, "get_compiler_config", None)
        cells = getattr(getter, "__closure__", None) or ()
        held = [cell.cell_contents for cell in cells]
        context = next((c for c in held if hasattr(c, "callback")), None)
    if context is None:
        raise PlanError(f"{compiled!r} was not made by fusionplan.load, step or torch.compile")
    owner = _owner(context.callback)
    found = getattr(owner, _ATTRIBUTE, None)
    return PlanRunners(Policy(), Sources(lambda _: "not run yet")) if found is None else found
