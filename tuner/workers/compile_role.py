"""The compile role: a group and a config to machine code in Triton's own cache on disk, a group's
configs in the order of the cost model, and a graph's covers.

The worker that measures compiles the same text with the same options and finds it there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...planner.costs.device import DeviceProfile
from ...planner.errors import Refusal
from ...planner.graph import graph as graphs
from ...planner.lower import lower
from ...planner.runtime.machine_code.compile import CompileFailed, Target, compile_kernel, resources
from ...planner.runtime.machine_code.launch import build_launcher, plain
from ...planner.space.space import space_of
from ..trial.outcome import Miscompiled, Rejected, to_json
from ..trial.wire import config_from_json
from .covering import Covering
from .kernels_ahead import SOURCE
from .ranking import Ranking


def handle(request: Mapping[str, Any]) -> dict[str, Any]:
    """{"group", "config", "capability"} to {"registers", ...}, or to a failure; with "aligned":
    false for buffers at any address. {"rank", "profile"} to a ranking; {"cover", "profile",
    "count"} to covers; {"kernel", "aligned", "capability"}, a kernel's text, to {}."""
    if "kernel" in request:
        return _compiled(request)
    if "rank" in request:
        return _ranked(request)
    if "cover" in request:
        return _covered(request)
    group = graphs.from_json(request["group"])
    program = lower(group, config_from_json(request["config"]))
    if isinstance(program, Refusal):
        return to_json(Rejected(str(program)))
    target = Target(capability=request["capability"])
    start = time.perf_counter()
    try:
        if request.get("aligned", True):
            compiled = [compile_kernel(kernel, target) for kernel in program.kernels]
        else:
            others = [plain(kernel)[0] for kernel in program.kernels]
            compiled = [compile_kernel(kernel, target, False) for kernel in others]
        taken = time.perf_counter() - start
        for kernel in compiled:
            build_launcher(kernel)
        used = [resources(one) for one in compiled]
    except CompileFailed as error:
        return to_json(Miscompiled(str(error), error.transient))
    return {
        "registers": max(r.registers for r in used),
        "spill_bytes": max(r.spill_bytes for r in used),
        "shared_bytes": max(r.shared_bytes for r in used),
        "compile_s": taken,
        "kernels": len(used),
    }


def _compiled(request: Mapping[str, Any]) -> dict[str, Any]:
    source = SOURCE.validate_python(request["kernel"])
    try:
        target = Target(capability=request["capability"])
        build_launcher(compile_kernel(source, target, request["aligned"]))
    except CompileFailed as error:
        return to_json(Miscompiled(str(error), error.transient))
    return {}


def _ranked(request: Mapping[str, Any]) -> dict[str, Any]:
    space = space_of(graphs.from_json(request["rank"]), DeviceProfile.from_json(request["profile"]))
    # The parent has made the same space: it asks for none that is refused.
    assert not isinstance(space, Refusal), space
    return Ranking.of(space).to_json()


def _covered(request: Mapping[str, Any]) -> dict[str, Any]:
    profile = DeviceProfile.from_json(request["profile"])
    graph = graphs.from_json(request["cover"])
    return Covering.of(graph, profile, request["count"]).to_json()
