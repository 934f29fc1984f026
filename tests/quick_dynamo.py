"""torch's capture without what it does for its logs, or for nothing.

The graphs are the same. Only torch's private names are touched: where a release has no such name,
its capture is as slow as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch


def quicken() -> None:
    _collect_no_garbage()
    _time_no_guards()
    _measure_no_compilation()
    _print_no_graphs()
    _keep_states_of_no_generator()
    _seed_no_device()
    _remember_no_stacks()
    _patch_no_modules()


def _of(module: str, *names: str) -> Any:
    """A module that is imported and has all these names; None where there is none."""
    found = sys.modules.get(module)
    return found if all(hasattr(found, name) for name in names) else None


def _collect_no_garbage() -> None:
    """After each compilation all that is young is looked through for garbage, which Python does by
    itself after so many new objects."""
    if hasattr(torch, "_dynamo") and hasattr(torch._dynamo.config, "run_gc_after_compile"):
        torch._dynamo.config.run_gc_after_compile = False


def _time_no_guards() -> None:
    """The guards of all that is compiled are timed, and the processor's caches emptied for that: a
    third of what it takes to capture a small function."""
    if guards := _of("torch._dynamo.guards", "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


def _measure_no_compilation() -> None:
    """All settings are written down as JSON after each."""
    if utils := _of("torch._dynamo.utils", "record_compilation_metrics"):
        utils.record_compilation_metrics = lambda *_: None


def _print_no_graphs() -> None:
    """Those of training are printed, whether or not anybody logs them."""
    names = ("_log_joint_graph", "_log_fw_bw_graphs")
    if stages := _of("torch._functorch._aot_autograd.graph_compile", *names):
        stages._log_joint_graph = lambda *_: None
        stages._log_fw_bw_graphs = lambda *_: (None, None)


def _keep_states_of_no_generator() -> None:
    """A dozen empty tensors stand for states of random numbers, before and after a capture."""
    rng = _of("torch._decomp.decompositions_for_rng", "PhiloxState")
    if rng is None or not hasattr(rng.PhiloxState, "reset"):
        return
    empty = torch.empty(0)

    def reset(self: Any) -> None:
        self.seed = self.base_offset = empty
        self.relative_offset = 0
        self.offset_advanced_at_least_once = False

    rng.PhiloxState.reset = reset


def _seed_no_device() -> None:
    """Where there is no device of a kind, each seed is kept for the day when there is one, with the
    stack of its caller."""
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if hasattr(kind, "manual_seed_all") and not kind.is_available():
            kind.manual_seed_all = lambda seed: None


def _remember_no_stacks() -> None:
    """A mode of fake tensors keeps the stack of who made it, to tell of two that are mixed."""
    if fakes := _of("torch._subclasses.fake_tensor", "traceback"):
        fakes.traceback = SimpleNamespace(extract_stack=list, format_list=lambda _: [])


def _patch_no_modules() -> None:
    """While a function is traced, `torch.nn.Module` calls and looks up by functions of the tracer,
    of which this one does nothing; that is told to each of some thousand classes of modules."""
    tracing = _of("torch.fx._symbolic_trace", "_new_patcher", "CURRENT_PATCHER")
    proxies = _of("torch.fx.experimental.proxy_tensor", "dispatch_trace", "PythonKeyTracer")
    if tracing is None or proxies is None:
        return
    trace: Callable[..., Any] = proxies.dispatch_trace
    make: Callable[[], Any] = tracing._new_patcher
    plain: list[bool] = []  # whether the trace that begins is one

    def dispatch_trace(root: Any, tracer: Any, *more: Any, **named: Any) -> Any:
        is_outermost = tracing.CURRENT_PATCHER is None
        plain[:] = [is_outermost and type(tracer) is proxies.PythonKeyTracer]
        return trace(root, tracer, *more, **named)

    @contextmanager
    def new_patcher() -> Iterator[Any]:
        leaves_modules, plain[:] = any(plain), []
        with make() as patcher:
            if leaves_modules:
                patcher.patch_method = lambda *_, **__: None
            yield patcher

    proxies.dispatch_trace = dispatch_trace
    tracing._new_patcher = new_patcher
