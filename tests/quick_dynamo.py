"""torch's capture without what it does for its logs, or for nothing.

The graphs are the same. Only torch's private names are touched: where a release has no such name,
its capture is as slow as ever.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def quicken() -> None:
    _collect_no_garbage()
    _time_no_guards()
    _measure_no_compilation()
    _print_no_graphs()
    _keep_states_of_no_generator()
    _seed_no_gpu()


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


def _seed_no_gpu() -> None:
    """Without a GPU each seed is kept for the day when there is one, with the stack of its
    caller."""
    if not torch.cuda.is_available():
        torch.cuda.manual_seed_all = lambda seed: None
